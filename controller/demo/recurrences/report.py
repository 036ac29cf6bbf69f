"""The result of the demo of recurrences: energy, time and regret against the default and the best batch size."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from msgspec import Struct
from rich.console import Console

from controller.demo.recurrences.jobs import ETA, RecurringJob, sources
from controller.demo.recurrences.training import TrainedRun
from controller.demo.recurrences.view import hours_text
from controller.demo.runner import VERSION, comparison_table, percent_change, print_notes
from policies.replay.batch_size.workload import total_consumption
from policies.service.records import Posterior
from publishers.training.reporting.amounts import energy_text

_HINTS = """\
Next: `gridchase policy` is the service, `gridchase up` runs it beside broker and controller, and in the training code
`Publisher(job="…").batch_size([…], default=…, target=…)` is the call. See docs/batch-size.md."""


class RunRow(Struct, frozen=True, kw_only=True):
    """A run; `cost_ratio` is its cost over the mean cost at the best batch size."""

    recurrence: int
    batch_size: int
    reason: str
    detail: str
    epochs: int
    reached: bool
    stop_reason: str | None
    energy_j: float
    duration_s: float
    cost: float
    cost_bound: float | None
    cost_ratio: float


class RecurrencesResult(Struct, frozen=True, kw_only=True):
    """The result; costs are η·E + (1-η)·P_max·T [J].

    Attributes:
        runs: all runs, in order; a run that was stopped is repeated in the same recurrence.
        regret: the cumulative cost beyond the best batch size after each recurrence, in runs at that size.
        energy_j, duration_s, cost: of all runs.
        default_energy_j, default_duration_s, default_cost_j: the mean of as many recurrences at the default.
        energy_saved_ratio, duration_saved_ratio, cost_saved_ratio: the saving relative to the default (0 to 1).
        last_energy_saved_ratio: the saving of energy in the last quarter of the recurrences.
        best_batch_size: of least mean cost, by the traces; `learned_batch_size`: by the posterior.
        posterior: the final posterior.
    """

    workload: str
    policy: str
    seed: int
    eta: float
    n_recurrences: int
    runs: tuple[RunRow, ...]
    regret: tuple[float, ...]
    energy_j: float
    duration_s: float
    cost: float
    default_energy_j: float
    default_duration_s: float
    default_cost_j: float
    energy_saved_ratio: float
    duration_saved_ratio: float
    cost_saved_ratio: float
    last_energy_saved_ratio: float
    default_batch_size: int
    best_batch_size: int
    learned_batch_size: int | None
    posterior: Posterior
    sources: tuple[str, ...]
    broker: str
    version: str


def recurrences_result(
    job: RecurringJob,
    runs: Sequence[TrainedRun],
    posterior: Posterior,
    *,
    n_recurrences: int,
    policy: str,
    seed: int,
    broker: str,
) -> RecurrencesResult:
    """Return the result of all runs of a job."""
    best, default = job.best, job.default
    total, default_total = total_consumption(run.spent for run in runs), default.mean.times(n_recurrences)
    cost, default_cost_j = sum(run.cost for run in runs), default.cost * n_recurrences
    n_last = max(1, n_recurrences // 4)
    last = total_consumption(run.spent for run in runs if _recurrence(run) >= n_recurrences - n_last)
    believed = [b for b in posterior.beliefs if b.n_reached and b.cost is not None and not b.is_pruned]
    learned = min(believed, key=lambda belief: belief.cost or 0.0, default=None)
    return RecurrencesResult(
        workload=job.workload.name,
        policy=policy,
        seed=seed,
        eta=ETA,
        n_recurrences=n_recurrences,
        runs=tuple(_row(run, best.cost) for run in runs),
        regret=tuple(_regret(runs, best.cost, n_recurrences)),
        energy_j=total.energy_j,
        duration_s=total.duration_s,
        cost=cost,
        default_energy_j=default_total.energy_j,
        default_duration_s=default_total.duration_s,
        default_cost_j=default_cost_j,
        energy_saved_ratio=1 - total.energy_j / default_total.energy_j,
        duration_saved_ratio=1 - total.duration_s / default_total.duration_s,
        cost_saved_ratio=1 - cost / default_cost_j,
        last_energy_saved_ratio=1 - last.energy_j / default.mean.times(n_last).energy_j,
        default_batch_size=job.workload.default,
        best_batch_size=best.batch_size,
        learned_batch_size=None if learned is None else learned.batch_size,
        posterior=posterior,
        sources=tuple(sources()),
        broker=broker,
        version=VERSION,
    )


def print_recurrences(result: RecurrencesResult, console: Console) -> None:
    """Print what was saved, what learning has cost, and where the figures come from."""
    n, default = result.n_recurrences, result.default_batch_size
    energies = (energy_text(result.energy_j), energy_text(result.default_energy_j))
    times = (hours_text(result.duration_s), hours_text(result.default_duration_s))
    costs = (energy_text(result.cost), energy_text(result.default_cost_j))
    table = comparison_table(
        None,
        (f"{n} recurrence{'s' * (n != 1)}", f"always {default}", "difference"),
        [
            ("Energy", *energies, percent_change(-result.energy_saved_ratio)),
            ("Time", *times, percent_change(-result.duration_saved_ratio)),
            ("Cost", *costs, percent_change(-result.cost_saved_ratio)),
        ],
    )
    console.print(table)
    print_notes(_notes(result), console)


def _notes(result: RecurrencesResult) -> Iterator[str]:
    n_failed = sum(not run.reached for run in result.runs)
    yield (
        f"Regret: {result.regret[-1]:.1f} runs at the best batch size, which is {result.best_batch_size}. Missed the"
        f" target and repeated: {n_failed} of {len(result.runs)} runs. Energy of the last"
        f" {_recurrences_text(max(1, result.n_recurrences // 4))}: {percent_change(-result.last_energy_saved_ratio)}."
    )
    yield "cost/best: cost over the mean cost at the best batch size; below 1 is luck, since runs differ."
    yield (
        f"Cost = η·energy + (1-η)·highest power·time, η = {result.eta:g}. Every batch size, including the default, runs"
        " at its best power limit: the difference comes from the batch size alone."
    )
    yield (
        f"Policy {result.policy}, seed {result.seed}. Broker: {result.broker}. Publisher, bus, service and database are"
        " real; epochs, time and power of each run are drawn from the traces."
    )
    yield from result.sources
    yield _HINTS


def _row(run: TrainedRun, best_cost: float) -> RunRow:
    return RunRow(
        recurrence=_recurrence(run),
        batch_size=run.trial.batch_size,
        reason=run.trial.reason,
        detail=run.trial.detail,
        epochs=run.n_epochs,
        reached=run.reached,
        stop_reason=run.stop_reason,
        energy_j=run.spent.energy_j,
        duration_s=run.spent.duration_s,
        cost=run.cost,
        cost_bound=run.trial.cost_bound,
        cost_ratio=run.cost / best_cost,
    )


def _regret(runs: Sequence[TrainedRun], best_cost: float, n_recurrences: int) -> Iterator[float]:
    """Yield the cumulative cost beyond the best batch size after each recurrence, in runs at that size."""
    costs: dict[int, float] = defaultdict(float)
    for run in runs:
        costs[_recurrence(run)] += run.cost
    regret_ratio = 0.0
    for recurrence in range(n_recurrences):
        regret_ratio += costs[recurrence] / best_cost - 1
        yield regret_ratio


def _recurrence(run: TrainedRun) -> int:
    return run.trial.recurrence or 0


def _recurrences_text(n: int) -> str:
    return "recurrence" if n == 1 else f"{n} recurrences"
