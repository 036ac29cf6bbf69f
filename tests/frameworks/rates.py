"""How fast real trainings are, as the controller finds out from what they publish, beside their own clocks.

`python -m tests.frameworks.rates` prints the table; `--write` writes it to `tests/benchmarks/framework_rates.md`. It
needs the environment of `make test-frameworks`, and a mosquitto; about five minutes.
"""

import argparse
import contextlib
import datetime as dt
import importlib.metadata
import math
import os
import platform
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from controller.accounting.iteration_log import IterationLog
from tests.frameworks.bus import listening
from tests.frameworks.process import ROOT, TRAININGS, command, train
from tests.live.conftest import Mosquitto

TABLE: Final = ROOT / "tests" / "benchmarks" / "framework_rates.md"
TOLERANCE_RATIO: Final = 0.02
BATCH_S: Final = 0.01
N_STEPS: Final = 1_500
"""Enough for a verdict on nearly every one."""
_BATCHES_AN_EPOCH: Final = 40
_NS_PER_S: Final = 1e9
_LATE_NS: Final = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """A training: how its batches make a step, and what is between the steps.

    Attributes:
        framework: what it is a training of.
        script: the name of the training.
        arguments: what the script is asked.
        accumulation: how many batches make a step.
        has_validation: whether it validates after each epoch.
    """

    framework: str
    script: str
    arguments: tuple[str, ...] = ()
    accumulation: int = 1
    has_validation: bool = False

    def line(self, n_steps: int) -> list[str]:
        """Return the command line of so many steps, about."""
        n_epochs = math.ceil(n_steps * self.accumulation / _BATCHES_AN_EPOCH)
        batch = f"--batch-s={BATCH_S / self.accumulation if self.accumulation > 1 else BATCH_S}"
        arguments = [f"--accumulation={self.accumulation}", f"--epochs={n_epochs}", batch, *self.arguments]
        return command(TRAININGS / f"{self.script}.py", arguments + ["--validation"] * self.has_validation)


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found out, and what was true.

    Attributes:
        fault: why the controller claims no rate; None: the run is steady.
        found_s: the time of an iteration, as the controller finds it [s].
        true_s: the same, by the training's own clock [s].
    """

    fault: str | None
    found_s: float
    true_s: float

    @property
    def off_ratio(self) -> float:
        """Return how far off it is."""
        return self.found_s / self.true_s - 1.0


_TORCH: Final = Pace(framework="PyTorch", script="with_torch", arguments=("--wrap",))
_HF: Final = Pace(framework="Transformers", script="with_transformers", arguments=("--callback",))
_LIGHTNING: Final = Pace(framework="Lightning", script="with_lightning")
_ACCELERATE: Final = Pace(framework="Accelerate", script="with_accelerate", arguments=("--wrap-after",))
PACES: Final = tuple(
    replace(pace, accumulation=accumulation, has_validation=has_validation)
    for pace in (_HF, _LIGHTNING, _TORCH, _ACCELERATE)
    for accumulation, has_validation in ((1, False), (1, True), (4, True), (8, False))
)


def measure(pace: Pace, folder: Path, n_steps: int = N_STEPS) -> Measured:
    """Train, and judge what was published as a controller does."""
    folder.mkdir(parents=True, exist_ok=True)
    broker = Mosquitto(folder, "listener {port} 127.0.0.1\nallow_anonymous true\n")
    broker.start()
    with contextlib.ExitStack() as stack:
        stack.callback(broker.stop)
        bus = stack.enter_context(listening(broker.port))
        ours = {"GRIDCHASE_JOB": "toy", "GRIDCHASE_BROKER": broker.url, "GRIDCHASE_QUIET": "1"}
        (truth,) = train(pace.line(n_steps), folder, **ours).truths
        (record,) = bus.records(1)
    log = IterationLog()
    for message in record.messages:
        log.append(message, now_ns=_LATE_NS)
    return Measured(log.rhythm.rhythm.not_profiled_reason, log.running_s / log.n_iterations, truth["iteration_time_s"])


def row(pace: Pace, measured: Measured) -> str:
    """Return a row of the table."""
    cells = (
        pace.framework,
        str(pace.accumulation),
        "yes" if pace.has_validation else "no",
        "steady" if measured.fault is None else measured.fault.replace("_", " "),
        f"{1 / measured.found_s:.2f}" if measured.fault is None else f"({1 / measured.found_s:.2f})",
        f"{1 / measured.true_s:.2f}",
        f"{measured.off_ratio:+.2%}" if measured.fault is None else f"({measured.off_ratio:+.2%})",
    )
    return f"| {' | '.join(cells)} |"


def table(rows: list[str]) -> str:
    """Return the page."""
    packages = ("torch", "transformers", "lightning", "accelerate")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    heads = "framework | batches a step | validation | judged | found [1/s] | true [1/s] | time of a step off by"
    today = dt.datetime.now(tz=dt.UTC).date()
    return "\n".join(
        [
            "# How fast real trainings are",
            "",
            f"Steps a second of real trainings, {N_STEPS} steps each with a real broker, as the controller finds",
            "them out from what was published; beside what the script's own optimizer and clock say, where nothing",
            "but the next batch was between two steps. In brackets: no claim is made, as the run is not judged steady.",
            "",
            f"| {heads} |",
            f"|{'---|' * (heads.count('|') + 1)}",
            *rows,
            "",
            f"Made on {today} on {os.cpu_count()} cores, with Python {platform.python_version()}, {versions};",
            "`python -m tests.frameworks.rates --write`.",
            "",
        ]
    )


def main() -> int:
    """Print the table; return 1 where a run that is judged steady is further off than 2 %."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write the table to {TABLE.relative_to(ROOT)}")
    options = parser.parse_args()
    rows, n_wrong = [], 0
    with tempfile.TemporaryDirectory(prefix="gridchase-rates-") as name:
        for k, pace in enumerate(PACES):
            measured = measure(pace, Path(name, str(k)))
            rows.append(row(pace, measured))
            n_wrong += measured.fault is None and abs(measured.off_ratio) > TOLERANCE_RATIO
            print(f"{k + 1}/{len(PACES)} {rows[-1]}", file=sys.stderr, flush=True)  # noqa: T201 — long work shows progress
    text = table(rows)
    print(text)  # noqa: T201 — that is what it is for
    if options.write:
        TABLE.write_text(text, encoding="utf-8")
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
