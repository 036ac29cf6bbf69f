"""How precisely rate and power of a real board are known: `python -m tests.benchmarks.h100 --data DIR [--write]`.

DIR holds `steps.npz` and `meter.npz`, recorded on an H100 whose limit never changed, or what `tests.device.record` has
recorded on another board.
"""

import argparse
import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.accounting.iteration_log import IterationLog
from controller.accounting.meter_intervals import meter_intervals
from controller.control.curve_learning import observation_of
from controller.gpu.meter.counter_step import CounterStep
from controller.gpu.meter.energy_meter import CLOSE_S, COUNTER_PERIOD_S
from controller.gpu.meter.instants import InstantPower, spread
from controller.ports import Sample
from policies.profiling.measurement import (
    EMPTY_WINDOW,
    MIN_READINGS,
    PRIOR_SCATTER,
    Observation,
    Window,
    estimate_window,
)
from policies.vocabulary.units import Values
from publishers.messages.codec import decode, encode
from publishers.messages.training import Iterations, pack_ends
from tests.benchmarks.pages import add_write, measured_on, show

TABLE: Final = Path(__file__).with_suffix(".md")
NS_PER_S: Final = 1_000_000_000
FLUSH_S: Final = 0.25
READ_S: Final = 0.1
WINDOWS_S: Final = (0.5, 1.0, 2.0, 4.0)
AFTER_PAUSE_S: Final = 1.0
TRAININGS: Final = {
    "resnet50_b256": "ResNet-50, batch 256, a loss read each 50th step",
    "resnet50_b64_nosync": "ResNet-50, batch 64, nothing waits (host bound)",
    "tiny_ev": "MLP of 2 ms (host bound)",
    "gpt2_acc1": "GPT-2, sequences of unequal length",
}
STEADY_W: Final = 500.0
"""Power is compared where a training keeps the board busy."""
ABOUT: Final = (
    "One H100 80GB HBM3 (SXM, 700 W), driver 580.159.04, 26 November 2026, PyTorch 2.11; its limit never changed."
)
PROTOCOL: Final = """\
Marks of each training go through the wire, in messages of a quarter of a second, and into the log of its rank;
iterations are counted between readings, ten a second, in windows that follow one another. Left out are windows with a
pause, and those that begin within a second of one."""

METHODS: Final = ("the counter's ends", "least squares over the counter", "the instant readings", "combined")
N_STARTS: Final = 8
TOP_W: Final = 700.0
POWER_PROTOCOL: Final = """\
*combined* is the profiler's power: its meter finds out when the counter moves (by close readings, a burst now and
then), and the energy between two moves is weighed against the instant readings, by the errors of both. Windows begin at
8 phases, so that those of different phases overlap. In long ones what is left is mostly the warming of the board."""

SELDOM: Final = f"""\
Read every 0.1 s, but the counter every {COUNTER_PERIOD_S:g} s only, away from its steps, as while nothing is measured.
Between two of its readings the instants tell how its energy was spread: windows may begin and end anywhere."""

TimesNs = NDArray[np.int64]


def scatter_percent(values: Sequence[float] | Values) -> float:
    """Return by how much neighbouring values differ, as a standard deviation in % of their mean: without drift."""
    found = np.asarray(values, dtype=np.float64)
    return float(100 * np.sqrt(np.mean(np.diff(found) ** 2) / 2) / found.mean()) if len(found) > 1 else math.nan


def messages_of(marks_ns: TimesNs) -> Iterator[Iterations]:
    """Yield the messages that a publisher sends of steps that ended at these times."""
    begin, seq = 0, 0
    for end in range(1, len(marks_ns)):
        is_last = end + 1 == len(marks_ns)
        if is_last or marks_ns[end + 1] - marks_ns[begin] > FLUSH_S * NS_PER_S:
            message = Iterations(
                run="run",
                seq=seq,
                first=begin,
                begin_ns=int(marks_ns[begin]),
                end_ns=pack_ends(array("q", marks_ns[begin + 1 : end + 1].tolist())),
                epoch=0,
                dropped=0,
                counted_by="optimizer",
            )
            yield decode(encode(message), Iterations)
            begin, seq = end, seq + 1


def counts_of(marks_ns: TimesNs, edges_ns: TimesNs) -> list[float]:
    """Return how many iterations the log counts between readings, as soon as it knows them."""
    log, counts = IterationLog(), list[float]()
    for message in messages_of(marks_ns):
        assert log.append(message, now_ns=int(marks_ns[-1]))
        while len(counts) + 1 < len(edges_ns) and edges_ns[len(counts) + 1] <= (log.settled_ns or 0):
            begin_ns, end_ns = (int(edge_ns) for edge_ns in edges_ns[len(counts) : len(counts) + 2])
            activity = log.activity(begin_ns, end_ns)
            counts.append(activity.n_iterations if activity.is_continuous and not activity.gaps_s else math.nan)
            log.forget_before(end_ns)
    return counts


def windows_of(counts: Sequence[float], window_s: float) -> list[float]:
    """Return the rates in windows that follow one another, without those with a pause, or right after one [1/s]."""
    n, n_after = round(window_s / READ_S), round(AFTER_PAUSE_S / READ_S)
    rates, place, last_pause = list[float](), 0, -n_after
    while place + n <= len(counts):
        paused = [at for at in range(max(place - n_after, 0), place + n) if math.isnan(counts[at])]
        last_pause = max([last_pause, *paused])
        if last_pause >= place - n_after and paused:
            place = last_pause + n_after + 1
            continue
        rates.append(sum(counts[place : place + n]) / window_s)
        place += n
    return rates


def plain_counts(marks_ns: TimesNs, edges_ns: TimesNs, logged: Sequence[float]) -> list[float]:
    """Return the counts by the marks as they are, where the log has counts."""
    found = np.diff(np.interp(edges_ns, marks_ns, np.arange(len(marks_ns)))).tolist()
    return [math.nan if math.isnan(known) else count for count, known in zip(found, logged, strict=False)]


def waiting_hook(device_ns: TimesNs, *, wait_share: float) -> TimesNs:
    """Return when an optimizer's hook would be called that runs a step ahead, and waits for the device at random."""
    waits = np.random.default_rng(1).random(len(device_ns)) < wait_share
    return np.where(waits[1:], device_ns[1:], device_ns[:-1])


def _trainings(steps: Any) -> Iterator[tuple[str, TimesNs, TimesNs | None]]:  # noqa: ANN401 — numpy's archive has no type
    """Yield the name of each training, the marks of its hook, and those of the device where they are known."""
    others = {name.removesuffix(".what"): str(steps[name]) for name in steps if name.endswith(".what")}
    for name, what in (TRAININGS | others).items():
        if f"{name}.hook_ns" in steps:
            yield what, steps[f"{name}.hook_ns"], steps.get(f"{name}.device_ns")
    device_ns = steps.get("resnet50_b256.device_ns", ())
    for one_in in (50, 10, 5) if len(device_ns) else ():
        what = (
            f"ResNet-50, batch 256, a hook that waits at random, for one step in {one_in} (simulated from the device)"
        )
        yield what, waiting_hook(device_ns, wait_share=1 / one_in), device_ns[1:]


def rates_table(steps: Any) -> Iterator[str]:  # noqa: ANN401 — numpy's archive has no type
    """Yield the scatter of rates."""
    heads = " | ".join(f"{window_s:g} s" for window_s in WINDOWS_S)
    yield f"| training | marks | ms a step | late | {heads} |"
    yield "|---|---|---:|---:|" + "---:|" * len(WINDOWS_S)
    for what, hook_ns, device_ns in _trainings(steps):
        edges_ns = np.arange(int(hook_ns[10]), int(hook_ns[-1]), round(READ_S * NS_PER_S))
        logged = counts_of(hook_ns, edges_ns)
        plain = plain_counts(hook_ns, edges_ns, logged)
        rows = [("hook, as they come", plain), ("hook, in the log", logged)]
        if device_ns is not None:
            rows.append(("device", plain_counts(device_ns, edges_ns, logged)))
        step_ms = 1e-6 * float(np.median(np.diff(hook_ns)))
        n_late = int(np.count_nonzero(np.diff(hook_ns) > 1.05e6 * step_ms))
        for marks, counts in rows:
            scatters = (scatter_percent(windows_of(counts, window_s)) for window_s in WINDOWS_S)
            cells = " | ".join("-" if math.isnan(scatter) else f"{scatter:.3f} %" for scatter in scatters)
            yield f"| {what} | {marks} | {step_ms:.1f} | {n_late} of {len(hook_ns)} | {cells} |"


@dataclass(frozen=True, slots=True, eq=False)
class Readings:
    """What was read of a board, oldest first; obeys `EnergyMeter` as far as intervals ask.

    Attributes:
        samples: as a meter tells them: with what was not counted yet, and the instant power scaled.
        instants_w: the instant power as the board told it [W].
    """

    samples: Sequence[Sample]
    instants_w: Values

    @property
    def latest(self) -> Sample:
        """Return the newest sample."""
        return self.samples[-1]

    def samples_since(self, time_ns: int, *, until_ns: int | None = None) -> Sequence[Sample]:  # noqa: ARG002
        """Return all samples."""
        return self.samples

    def counter_at_j(self, time_ns: int) -> float | None:  # noqa: ARG002 — not asked for
        """Return None."""
        return None

    def read_closely(self, until_ns: int) -> None:
        """Do nothing."""

    def most_j(self, duration_s: float) -> float:
        """Return what a board of 700 W uses in a time [J]."""
        return TOP_W * duration_s


def readings_of(rows: NDArray[np.int64], *, period_s: float, counter_period_s: float = 0.0) -> Readings:
    """Return the readings of a controller that reads so often, as its meter makes them of what the board said.

    Args:
        rows: what the board said.
        period_s: how often it is read [s].
        counter_period_s: how often its counter is read, which is at each reading in the first seconds [s].
    """
    step, instants, samples, due_s = CounterStep(), InstantPower(), list[Sample](), 0.0
    told_w, between = list[float](), list[Sample]()
    for before_ns, after_ns, energy_mj, instant_mw in rows[:, :4].tolist():
        raw = Sample(
            time_ns=(before_ns + after_ns) // 2,
            power_w=instant_mw / 1e3,
            energy_j=energy_mj / 1e3,
            instant_power_w=instant_mw / 1e3,
            read_s=(after_ns - before_ns) / NS_PER_S,
        )
        if step.is_sought(raw.time_ns):
            step.look(raw)
        if raw.time_ns < due_s * NS_PER_S:
            continue
        due_s = max(due_s + period_s, raw.time_ns / NS_PER_S)
        told_w.append(instant_mw / 1e3)
        is_close = raw.time_ns - int(rows[0, 0]) < CLOSE_S * NS_PER_S or not samples or samples[-1].uncounted_j is None
        if not is_close and raw.time_ns - samples[-1].time_ns < (counter_period_s - period_s / 2) * NS_PER_S:
            between.append(raw)
            continue
        if between and step.clear_in_s(raw.time_ns):
            due_s = raw.time_ns / NS_PER_S
            told_w.pop()
            continue
        scaled_w = instants.scaled_w(raw, raw.energy_j)
        sample = replace(raw, uncounted_j=step.uncounted_j(raw), instant_power_w=scaled_w, n_instants=instants.n)
        samples += [*(spread(samples[-1], between, sample) if between else []), sample]
        between.clear()
    told_w = told_w[: len(samples)]
    return Readings(samples, np.array(told_w))


def observations_of(readings: Readings) -> list[Observation]:
    """Return what the profiler sees between readings, of a training that iterates all the time."""
    first_ns, last_ns = readings.samples[0].time_ns, readings.samples[-1].time_ns
    log = IterationLog()
    for message in messages_of(np.arange(first_ns - NS_PER_S, last_ns + NS_PER_S, NS_PER_S // 20)):
        log.append(message, now_ns=last_ns)
    intervals = meter_intervals(logs=[log], meters=[readings], since_ns=first_ns, until_ns=last_ns)
    return [observation_of(interval, enforced_power_limit_w=TOP_W) for interval in intervals]


def powers_table(rows: NDArray[np.int64], *, period_s: float, counter_period_s: float = 0.0) -> Iterator[str]:
    """Yield the scatter of powers, by how they are estimated, where readings come so often [s]."""
    readings = readings_of(rows, period_s=period_s, counter_period_s=counter_period_s)
    yield f"| power by | {' | '.join(f'{window_s:g} s' for window_s in WINDOWS_S)} |"
    yield "|---|" + "---:|" * len(WINDOWS_S)
    seen = observations_of(readings)
    columns = [_powers_of(readings, seen, window_s) for window_s in WINDOWS_S]
    for name in METHODS:
        yield f"| {name} | " + " | ".join(f"{100 * column.scatter_ratios[name]:.2f} %" for column in columns) + " |"
    yield "| error told of the last | " + " | ".join(f"{100 * column.told_ratio:.2f} %" for column in columns) + " |"
    yield "| pairs of windows | " + " | ".join(str(column.n) for column in columns) + " |"
    covered = " | ".join(f"{100 * column.covered_ratio:.0f} %" for column in columns)
    yield f"| pairs within their 95 % interval | {covered} |"


class Powers(NamedTuple):
    """The powers of neighbouring windows.

    Attributes:
        scatter_ratios: by how much they differ, by method.
        told_ratio: the standard error that the last method tells, root mean square.
        covered_ratio: the share of pairs that differ by less than 1.96 of their standard errors.
        n: how many pairs there are.
    """

    scatter_ratios: dict[str, float]
    told_ratio: float
    covered_ratio: float
    n: int


def _powers_of(readings: Readings, seen: Sequence[Observation], window_s: float) -> Powers:
    """Return how powers scatter from one window to the next, over windows that begin at `N_STARTS` phases."""
    squares: dict[str, list[float]] = {name: [] for name in METHODS}
    told2, covered = list[float](), list[bool]()
    for begin_s in np.linspace(0, window_s, N_STARTS, endpoint=False).tolist():
        for one, other in pairwise(_windows(readings, seen, window_s, begin_s)):
            if one is None or other is None:
                continue
            for name, first_w, second_w in zip(METHODS, one.powers_w, other.powers_w, strict=True):
                squares[name].append((second_w / first_w - 1) ** 2 / 2)
            told2.append((one.error_ratio**2 + other.error_ratio**2) / 2)
            covered.append(abs(math.log(other.powers_w[-1] / one.powers_w[-1])) < 1.96 * math.sqrt(2 * told2[-1]))
    return Powers(
        {name: math.sqrt(sum(each) / len(each)) for name, each in squares.items()},
        math.sqrt(sum(told2) / len(told2)),
        sum(covered) / len(covered),
        len(covered),
    )


class WindowPowers(NamedTuple):
    """The powers of a window by each method [W], and the standard error of the last as a ratio."""

    powers_w: tuple[float, ...]
    error_ratio: float


def _windows(
    readings: Readings, seen: Sequence[Observation], window_s: float, begin_s: float
) -> Iterator[WindowPowers | None]:
    """Yield the powers of windows that follow one another; None where the board was not busy all the time."""
    times_s = np.array([sample.time_ns / NS_PER_S for sample in readings.samples])
    for since_s in np.arange(times_s[0] + begin_s, times_s[-1] - window_s, window_s).tolist():
        first, last = np.searchsorted(times_s, [since_s, since_s + window_s]).tolist()
        instants_w = readings.instants_w[first:last]
        if last - first < MIN_READINGS or instants_w.min() < STEADY_W:
            yield None
            continue
        begin, end = readings.samples[first], readings.samples[last - 1]
        ends_w = ((end.energy_j or 0.0) - (begin.energy_j or 0.0)) / (times_s[last - 1] - times_s[first])
        inside = seen[first : last - 1]
        slope, combined = (
            estimate_window(_window(each), PRIOR_SCATTER)
            for each in ([replace(one, interpolated_energy_j=None, n_instants=0.0) for one in inside], inside)
        )
        powers_w = (float(ends_w), slope.power_w, float(instants_w.mean()), combined.power_w)
        yield WindowPowers(powers_w, combined.power_error_ratio)


def _window(seen: Sequence[Observation]) -> Window:
    window = EMPTY_WINDOW
    for observation in seen:
        window = window.with_observation(replace(observation, iteration_times_s=(observation.active_s,)))
    return window


def page(data: Path) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Rate and power of a real board\n"
    yield f"{measured_on()}; `python -m tests.benchmarks.h100 --data DIR --write`.\n"
    steps = np.load(data / "steps.npz")
    yield f"{steps.get('about', ABOUT)}\n{PROTOCOL}\n\n## Rate: scatter from one window to the next\n"
    yield from rates_table(steps)
    yield "\n*late*: steps that seem more than 5 % longer than the median; most of those of host-bound trainings are."
    rows = np.load(data / "meter.npz")["rows"]
    yield f"\n## Power above {STEADY_W:g} W: scatter from one window to the next\n"
    yield f"{POWER_PROTOCOL}\n\nRead every 0.1 s, as the controller does by default while something is measured:\n"
    yield from powers_table(rows, period_s=READ_S)
    yield f"\n{SELDOM}\n"
    yield from powers_table(rows, period_s=READ_S, counter_period_s=COUNTER_PERIOD_S)
    yield "\nRead every 15 to 20 ms:\n"
    yield from powers_table(rows, period_s=0.0)


def main() -> None:
    """Compute and print; with `--write` into the page beside this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, metavar="DIR", help="a folder with steps.npz and meter.npz")
    add_write(parser, TABLE)
    options = parser.parse_args()
    if options.data is None or not (options.data / "steps.npz").is_file():
        print("skipped: there is no data; name a folder with steps.npz and meter.npz with --data DIR")
        return
    show(page(options.data), TABLE, write=options.write)


if __name__ == "__main__":
    main()
