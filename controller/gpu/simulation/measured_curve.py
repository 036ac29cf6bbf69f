"""A measured power curve: draw and speed of a training job at each power limit. The files are in `curves/`."""

import csv
from bisect import bisect_right
from dataclasses import dataclass
from importlib.resources import files

from controller.errors import BackendError

A40_RESNET50 = "a40-resnet50-imagenet-b256"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCurve:
    """Power and speed at each measured limit, linear in between.

    Attributes:
        name: the file it was read from.
        model: the GPU it was measured on.
        workload: the job it was measured with.
        power_limits_w: the measured limits, ascending [W].
        powers_w: the mean draw at each limit [W].
        speeds_per_s: the speed at each limit [iterations/s].
        idle_power_w: the draw without a job [W].
        iterations_per_epoch: how many iterations an epoch has; the last may be a part of one.
    """

    name: str
    model: str
    workload: str
    power_limits_w: tuple[float, ...]
    powers_w: tuple[float, ...]
    speeds_per_s: tuple[float, ...]
    idle_power_w: float
    iterations_per_epoch: float

    @property
    def min_power_limit_w(self) -> float:
        """Return the lowest measured limit [W]."""
        return self.power_limits_w[0]

    @property
    def max_power_limit_w(self) -> float:
        """Return the highest measured limit, which is also the default [W]."""
        return self.power_limits_w[-1]

    def power_w(self, power_limit_w: float) -> float:
        """Return the mean draw of the job at a limit [W]."""
        right, share_ratio = self._segment(power_limit_w)
        low_w, high_w = self.powers_w[right - 1 : right + 1]
        return low_w + share_ratio * (high_w - low_w)

    def iterations_per_s(self, power_limit_w: float) -> float:
        """Return the speed of the job at a limit [iterations/s]."""
        right, share_ratio = self._segment(power_limit_w)
        low_per_s, high_per_s = self.speeds_per_s[right - 1 : right + 1]
        return low_per_s + share_ratio * (high_per_s - low_per_s)

    def _segment(self, power_limit_w: float) -> tuple[int, float]:
        """Return the measured limit above a limit, by its index, and how far it lies from the one below (0 to 1)."""
        right = min(max(bisect_right(self.power_limits_w, power_limit_w), 1), len(self.power_limits_w) - 1)
        low_w, high_w = self.power_limits_w[right - 1 : right + 1]
        return right, (power_limit_w - low_w) / (high_w - low_w)


def load_curve(name: str = A40_RESNET50) -> MeasuredCurve:
    """Return the curve in `curves/<name>.csv`.

    Raises:
        BackendError: there is no such file.
    """
    file = files("controller.gpu.simulation") / "curves" / f"{name}.csv"
    if not file.is_file():
        raise BackendError(f"no measured curve is called {name!r}; there are {', '.join(list_curves())}")
    lines = file.read_text(encoding="utf-8").splitlines()
    notes = dict(line.removeprefix("# ").split(": ", 1) for line in lines if line.startswith("# ") and ": " in line)
    rows = sorted(
        (tuple(float(cell) for cell in row.values()) for row in csv.DictReader(_data_lines(lines))),
        key=lambda row: row[0],
    )
    power_limits_w, epoch_times_s, powers_w = zip(*rows, strict=True)
    iterations_per_epoch = float(notes["iterations_per_epoch"])
    return MeasuredCurve(
        name=name,
        model=notes["gpu"],
        workload=notes["workload"],
        power_limits_w=power_limits_w,
        powers_w=powers_w,
        speeds_per_s=tuple(iterations_per_epoch / time_s for time_s in epoch_times_s),
        idle_power_w=float(notes["idle_power_w"]),
        iterations_per_epoch=iterations_per_epoch,
    )


def list_curves() -> list[str]:
    """Return the names of the measured curves there are."""
    folder = files("controller.gpu.simulation") / "curves"
    return sorted(file.name.removesuffix(".csv") for file in folder.iterdir() if file.name.endswith(".csv"))


def _data_lines(lines: list[str]) -> list[str]:
    return [line for line in lines if not line.startswith("#")]
