"""Baselines: a policy that never changes its choice, and a grid search."""

from collections.abc import Sequence

from policies.replay.batch_size.simulation import MAX_TRIES, EpochSampler, JobHistory, SimulatedRun, simulate_run
from policies.replay.batch_size.workload import Consumption, FixedChoice, Workload

NO_PROBES = Consumption(energy_j=0.0, duration_s=0.0)


def replay_fixed(
    workload: Workload, choices: Sequence[FixedChoice], *, sampler: EpochSampler, eta: float
) -> JobHistory:
    """Simulate a job with a given batch size and power limit in each recurrence, without a cost bound."""
    runs: list[SimulatedRun] = []
    n_unreached = 0
    for recurrence, choice in enumerate(choices):
        for _ in range(MAX_TRIES):
            runs.append(_run(workload, recurrence, choice.batch_size, choice.power_limit_w, sampler, eta))
            if runs[-1].reached:
                break
        n_unreached += not runs[-1].reached
    return _history(runs, len(choices), n_unreached)


def grid_search(workload: Workload, *, sampler: EpochSampler, eta: float, n_recurrences: int) -> JobHistory:
    """Simulate a grid search: each batch size at each power limit once, then the best one found.

    Batch sizes ascend and limits descend (the paper does not state its order). A batch size that misses the target
    is dropped, and the recurrence is repeated with the next one.
    """
    grid = [(size, limit_w) for size in workload.candidates for limit_w in workload.limits_of(size)]
    runs: list[SimulatedRun] = []
    dropped: set[int] = set()
    n_unreached = 0
    for recurrence in range(n_recurrences):
        for _ in range(MAX_TRIES):
            grid = [point for point in grid if point[0] not in dropped]
            size, limit_w = grid.pop(0) if grid else _best(runs, workload)
            runs.append(_run(workload, recurrence, size, limit_w, sampler, eta))
            if runs[-1].reached:
                break
            dropped.add(size)
        n_unreached += not runs[-1].reached
    return _history(runs, n_recurrences, n_unreached)


def _run(
    workload: Workload, recurrence: int, batch_size: int, power_limit_w: float, sampler: EpochSampler, eta: float
) -> SimulatedRun:
    return simulate_run(
        workload,
        recurrence=recurrence,
        batch_size=batch_size,
        power_limit_w=power_limit_w,
        epochs_needed=sampler(batch_size, recurrence),
        max_epochs=float(workload.max_epochs),
        eta=eta,
    )


def _best(runs: list[SimulatedRun], workload: Workload) -> tuple[int, float]:
    """Return batch size and power limit of the cheapest run that reached the target; the default if none did."""
    reached = [run for run in runs if run.reached]
    if not reached:
        return workload.default, workload.limits_of(workload.default)[0]
    best = min(reached, key=lambda run: run.cost)
    return best.batch_size, best.power_limit_w


def _history(runs: list[SimulatedRun], n_recurrences: int, n_unreached: int) -> JobHistory:
    return JobHistory(
        runs=tuple(runs), n_recurrences=n_recurrences, n_unreached=n_unreached, probes=NO_PROBES, probes_cost=0.0
    )
