"""The whole fault campaign, and its tables in docs/faults.md: `make campaign`.

Schedules on virtual time use every core, those with real processes mostly wait. `--virtual N --real N` say how many,
`--seed` which; `--repeat SEED` lives through one part on virtual time again and shrinks a schedule that failed to the
shortest that does, `--repeat-real SEED` repeats one with real processes.
"""

import argparse
import os
import platform
import secrets
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from tests.live.campaign.schedule import LiveOutcome, compile_disk, run_live_schedule
from tests.live.nvml_stub.fixtures import compile_stub
from tests.scenarios.campaign.labels import faults_of
from tests.scenarios.campaign.machine import Outcome, run_campaign

PAGE: Final = Path(__file__).parents[2] / "docs" / "faults.md"
PART: Final = 50
"""Schedules on virtual time that share a seed."""
REAL_PER_CORE: Final = 5
"""Schedules with real processes at a time."""
ALL: Final = "**all schedules**"


@dataclass(slots=True)
class Row:
    """A line of a table."""

    n_schedules: int = 0
    n_writes: int = 0
    n_kills: int = 0
    n_kept: int = 0
    n_stranded: int = 0
    n_other: int = 0

    def add(self, outcome: Outcome | LiveOutcome) -> None:
        """Count a schedule."""
        has_stranded = any("stranded" in violation for violation in outcome.violations)
        self.n_schedules += 1
        self.n_writes += outcome.n_writes
        self.n_kills += outcome.n_kills
        self.n_kept += outcome.n_kept
        self.n_stranded += has_stranded
        self.n_other += bool(outcome.violations) and not has_stranded

    def __str__(self) -> str:
        """Return its cells."""
        numbers = (self.n_schedules, self.n_writes, self.n_kills, self.n_kept, self.n_stranded, self.n_other)
        return " | ".join(f"{number:,}" for number in numbers)


@dataclass(slots=True)
class Tally:
    """Every fault's line, and the seeds that failed."""

    rows: dict[str, Row] = field(default_factory=dict)
    failed_seeds: list[int] = field(default_factory=list)
    violations: Counter[str] = field(default_factory=Counter)

    def add(self, labels: Iterable[str], outcome: Outcome | LiveOutcome) -> None:
        """Count a schedule in the line of each of its faults."""
        for label in (ALL, *labels):
            self.rows.setdefault(label, Row()).add(outcome)
        self.violations.update(outcome.violations)

    def table(self) -> str:
        """Return it in Markdown, the total last."""
        head = "| fault | schedules | writes | SIGKILLs | kept and told | stranded | other faults |\n"
        head += "|---|---:|---:|---:|---:|---:|---:|\n"
        labels = [*sorted(self.rows.keys() - {ALL}, key=str.casefold), *self.rows.keys() & {ALL}]
        return head + "".join(f"| {label} | {self.rows[label]} |\n" for label in labels)


def run_part(seed: int, n_schedules: int) -> tuple[int, list[tuple[set[str], Outcome]]]:
    """Live through the schedules of one seed on virtual time, in a process of its own."""
    outcomes: list[tuple[set[str], Outcome]] = []

    def note(outcome: Outcome) -> None:
        if len(outcomes) < n_schedules:
            short = Outcome(steps=(), violations=outcome.violations, history=(), **outcome.counts())
            outcomes.append((faults_of(outcome.steps), short))

    run_campaign(seed, n_schedules, note, fails=False)
    return seed, outcomes


def run_virtual(first_seed: int, n_schedules: int, progress: Progress) -> Tally:
    """Live through schedules on virtual time, on every core."""
    tally, bar = Tally(), progress.add_task("virtual time", total=n_schedules)
    with ProcessPoolExecutor() as processes:
        parts = [
            processes.submit(run_part, first_seed + number, min(PART, n_schedules - number * PART))
            for number in range(-(-n_schedules // PART))
        ]
        for part in as_completed(parts):
            seed, outcomes = part.result()
            for labels, outcome in outcomes:
                tally.add(labels, outcome)
            if any(outcome.violations for _, outcome in outcomes):
                tally.failed_seeds.append(seed)
            progress.advance(bar, len(outcomes))
    return tally


def run_real(first_seed: int, n_schedules: int, progress: Progress) -> Tally:
    """Live through schedules with real processes, several at a time."""
    tally, bar = Tally(), progress.add_task("real processes", total=n_schedules)
    with tempfile.TemporaryDirectory(prefix="gridchase-campaign-") as name:
        folder = Path(name)
        library, disk_library = compile_stub(folder), compile_disk(folder)
        with ThreadPoolExecutor(REAL_PER_CORE * (os.cpu_count() or 1)) as threads:
            runs = [
                threads.submit(run_live_schedule, seed, folder / f"schedule-{seed}", library, disk_library)
                for seed in range(first_seed, first_seed + n_schedules)
            ]
            for run in as_completed(runs):
                outcome = run.result()
                tally.add({*outcome.plan.labels()}, outcome)
                if outcome.violations:
                    tally.failed_seeds.append(outcome.plan.seed)
                    progress.console.print(str(outcome), markup=False)
                progress.advance(bar)
    return tally


def write_page(block: str, text: str) -> None:
    """Replace one generated block of the page."""
    begin, end = f"<!-- {block}: begin -->\n", f"<!-- {block}: end -->"
    page = PAGE.read_text()
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    PAGE.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def machine() -> str:
    """Return what it ran on."""
    today = datetime.now(tz=UTC).date()
    system = f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
    return f"{today}, {system}, Hypothesis {version('hypothesis')}"


@contextmanager
def shown() -> Iterator[Progress]:
    """Show progress on a terminal; in a pipe only the result is printed."""
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield progress


def _unignore_signals() -> None:
    """Ignore by a handler, which does not survive exec: controllers do not inherit what nohup or a shell ignores."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def main(arguments: list[str] | None = None) -> int:
    """Run it; 1 if any schedule failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--virtual", type=int, default=10_000, metavar="N")
    parser.add_argument("--real", type=int, default=500, metavar="N")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000_000))
    parser.add_argument("--repeat", type=int, metavar="SEED")
    parser.add_argument("--repeat-real", type=int, metavar="SEED")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/faults.md")
    options = parser.parse_args(arguments)
    if options.repeat is not None:
        run_campaign(options.repeat, PART, lambda _: None)
        return 0
    _unignore_signals()
    print(f"seed {options.seed}", flush=True)
    with shown() as progress:
        if options.repeat_real is not None:
            return int(bool(run_real(options.repeat_real, 1, progress).failed_seeds))
        tallies = {
            "virtual time": run_virtual(options.seed, options.virtual, progress) if options.virtual else Tally(),
            "real processes": run_real(options.seed, options.real, progress) if options.real else Tally(),
        }
    for name, tally in tallies.items():
        if not tally.rows:
            continue
        text = f"{machine()}; seed {options.seed}.\n\n{tally.table()}"
        print(f"{name}\n\n{text}")
        if options.write:
            write_page(name, text)
        for violation, count in tally.violations.most_common(20):
            print(f"{count} times: {violation}", file=sys.stderr)
        repeat = "--repeat" if name == "virtual time" else "--repeat-real"
        for seed in tally.failed_seeds:
            print(f"failed; once more: python -m tests.benchmarks.campaign {repeat} {seed}", file=sys.stderr)
    return int(any(tally.failed_seeds for tally in tallies.values()))


if __name__ == "__main__":
    sys.exit(main())
