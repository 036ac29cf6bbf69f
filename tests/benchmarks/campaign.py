"""The whole fault campaign, and its tables in docs/faults.md: `make campaign`.

Schedules on virtual time use every core, those with real processes mostly wait. `--virtual N --real N` say how many,
`--energy N` how many runs whose meters fail, `--seed` which; `--repeat SEED` lives through one part on virtual time
again and shrinks a schedule that failed to the shortest that does, `--repeat-real SEED` repeats one with real
processes, `--repeat-energy SEED` one whose meters fail.
"""

import argparse
import os
import platform
import secrets
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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
from tests.scenarios.campaign.energy import EnergyOutcome, run_energy_schedule
from tests.scenarios.campaign.labels import faults_of
from tests.scenarios.campaign.machine import Outcome, run_campaign

PAGE: Final = Path(__file__).parents[2] / "docs" / "faults.md"
PART: Final = 50
"""Schedules on virtual time that share a seed."""
REAL_PER_CORE: Final = 5
"""Schedules with real processes at a time."""
ALL: Final = "**all schedules**"
ALL_RUNS: Final = "**all runs**"


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


def run_energy(first_seed: int, n_runs: int, progress: Progress) -> list[EnergyOutcome]:
    """Live through runs whose meters fail, on every core."""
    bar, outcomes = progress.add_task("energy", total=n_runs), []
    with ProcessPoolExecutor() as processes:
        runs = [processes.submit(run_energy_schedule, seed) for seed in range(first_seed, first_seed + n_runs)]
        for run in as_completed(runs):
            outcomes.append(run.result())
            progress.advance(bar)
    return outcomes


def energy_table(outcomes: Sequence[EnergyOutcome]) -> str:
    """Return what became of the energy, a line a fault, in Markdown."""
    table = (
        "| fault of the meters | runs whose energy was checked | worst error in % | failed |\n|---|---:|---:|---:|\n"
    )
    for label in (*sorted({label for outcome in outcomes for label in outcome.labels}, key=str.casefold), ALL_RUNS):
        of_label = [outcome for outcome in outcomes if label in {*outcome.labels, ALL_RUNS}]
        worst_ratio = max(outcome.worst_ratio for outcome in of_label)
        n_failed = sum(bool(outcome.violations) for outcome in of_label)
        table += f"| {label} | {len(of_label):,} | {100 * worst_ratio:.2f} | {n_failed} |\n"
    return table


def report_energy(outcomes: Sequence[EnergyOutcome], *, seed: int, writes: bool) -> bool:
    """Print the table, or write it into the page; return whether every run passed."""
    text = f"{machine()}; seed {seed}.\n\n{energy_table(outcomes)}"
    print(f"energy\n\n{text}")
    if writes:
        write_page("energy", text)
    failed = [outcome for outcome in outcomes if outcome.violations]
    for outcome in failed:
        print(f"failed; once more: python -m tests.benchmarks.campaign --repeat-energy {outcome.seed}", file=sys.stderr)
        print("\n".join(outcome.violations), file=sys.stderr)
    return not failed


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


def report_limits(name: str, tally: Tally, *, seed: int, writes: bool) -> bool:
    """Print the table of limits, or write it into the page, too; return whether every schedule passed."""
    text = f"{machine()}; seed {seed}.\n\n{tally.table()}"
    print(f"{name}\n\n{text}")
    if writes:
        write_page(name, text)
    for violation, count in tally.violations.most_common(20):
        print(f"{count} times: {violation}", file=sys.stderr)
    repeat = "--repeat" if name == "virtual time" else "--repeat-real"
    for failed_seed in tally.failed_seeds:
        print(f"failed; once more: python -m tests.benchmarks.campaign {repeat} {failed_seed}", file=sys.stderr)
    return not tally.failed_seeds


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--virtual", type=int, default=10_000, metavar="N")
    parser.add_argument("--real", type=int, default=500, metavar="N")
    parser.add_argument("--energy", type=int, default=1_000, metavar="N")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000_000))
    parser.add_argument("--repeat", type=int, metavar="SEED")
    parser.add_argument("--repeat-real", type=int, metavar="SEED")
    parser.add_argument("--repeat-energy", type=int, metavar="SEED")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/faults.md")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run it; 1 if any schedule failed."""
    options = _options(arguments)
    if options.repeat is not None:
        run_campaign(options.repeat, PART, lambda _: None)
        return 0
    if options.repeat_energy is not None:
        return int(not report_energy([run_energy_schedule(options.repeat_energy)], seed=options.seed, writes=False))
    _unignore_signals()
    print(f"seed {options.seed}", flush=True)
    with shown() as progress:
        if options.repeat_real is not None:
            return int(bool(run_real(options.repeat_real, 1, progress).failed_seeds))
        tallies = {
            "virtual time": run_virtual(options.seed, options.virtual, progress) if options.virtual else Tally(),
            "real processes": run_real(options.seed, options.real, progress) if options.real else Tally(),
        }
        energy = run_energy(options.seed, options.energy, progress) if options.energy else []
    writes = options.write
    passed = [
        report_limits(name, tally, seed=options.seed, writes=writes) for name, tally in tallies.items() if tally.rows
    ]
    if energy:
        passed.append(report_energy(energy, seed=options.seed, writes=writes))
    return int(not all(passed))


if __name__ == "__main__":
    sys.exit(main())
