"""A/B: the runs of a job that were held out at the prior limit, beside the others, by what is remembered of them.

Compared are runs that have finished and were observed throughout, with the same batch size, as many processes, and as
many GPUs of one model. Each counts as what it was drawn to be, whatever became of its plan.
"""

from collections.abc import Sequence

import msgspec

from controller.history.run_history import EndedRun
from policies.savings.holdout import (
    ComparedRun,
    Difference,
    HoldoutComparison,
    TooFewHoldouts,
    compare_holdouts,
)
from publishers.messages.reports import RunEnergy


def compare_with(
    ended: EndedRun, runs: Sequence[EndedRun], *, holdout_ratio: float
) -> HoldoutComparison | TooFewHoldouts:
    """Return what those of a job's runs say that are comparable with one of them."""
    alike = [each for each in runs if _configuration(each) == _configuration(ended) and _is_comparable(each)]
    compared = (
        ComparedRun(
            number=each.number,
            is_held_out=each.is_held_out,
            iteration_energy_j=each.energy_j / each.n_iterations,
            iteration_time_s=each.active_s / each.n_iterations,
        )
        for each in alike
    )
    return compare_holdouts(compared, holdout_ratio=holdout_ratio)


def with_comparison(record: RunEnergy, found: HoldoutComparison | TooFewHoldouts) -> RunEnergy:
    """Return the record of a run with what the runs held out say."""
    counted = msgspec.structs.replace(record, ab_runs=found.n_runs, ab_held_out_runs=found.n_held_out)
    if isinstance(found, TooFewHoldouts):
        return counted
    energy, time = found.energy, _more(found.time)
    return msgspec.structs.replace(
        counted,
        ab_more_runs=found.n_more_runs,
        ab_saved_energy_ratio=energy.less_ratio,
        ab_saved_energy_lower_ratio=energy.lower_ratio,
        ab_saved_energy_upper_ratio=energy.upper_ratio,
        ab_slowdown_ratio=time[0],
        ab_slowdown_lower_ratio=time[1],
        ab_slowdown_upper_ratio=time[2],
    )


def _more(time: Difference) -> tuple[float, float, float]:
    """Return how many times as long the others took, with the ends of the interval."""
    return 1 - time.less_ratio, 1 - time.upper_ratio, 1 - time.lower_ratio


def _configuration(run: EndedRun) -> tuple[object, ...]:
    return run.batch_size, run.world_size, run.gpu_model, run.n_gpus


def _is_comparable(run: EndedRun) -> bool:
    return run.end == "finished" and run.is_complete and min(run.n_iterations, run.energy_j, run.active_s) > 0
