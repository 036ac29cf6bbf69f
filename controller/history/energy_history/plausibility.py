"""What is believed of the records of other machines: energy has a physical bound, whoever publishes it.

A site hears many controllers. A counter that has grown by more than boards can draw in that time is damaged, forged, or
another machine's of the same name: it counts nothing. What was only late is believed once enough time has passed.
"""

import math
from typing import Final

from controller.history.energy_history.growth import (
    GPU_AMOUNTS,
    SPLIT,
    Amounts,
    RunAccount,
    begin_anew,
    growth,
    run_amounts,
)
from policies.savings.interval import MAX_CI90_RATIO
from policies.vocabulary.units import DAY_S, JOULES_PER_KWH
from publishers.messages.reports import GpuEnergy, RunEnergy

MAX_GPU_POWER_W: Final = 5_000.0
"""Several times what any board draws [W]."""
MAX_GPUS_OF_RUN: Final = 100_000
MAX_G_PER_KWH: Final = 20_000.0
"""Of energy that boards may have used, with the rest of the machine and the building [g/kWh]."""
MAX_COST_PER_KWH: Final = 1e6
"""In the smallest of currencies."""
MAX_RUN_S: Final = 3_660 * DAY_S
FUTURE_S: Final = 3_600.0
"""A record whose clock is ahead of ours by more is not believed [s]."""
_WIDEST: Final = 10.0
"""So many times the widest interval that controllers publish is believed."""
_MAX_TIMES: Final = 10.0
"""Of the baseline a run uses less, and takes less time."""
_SLACK_S: Final = 60.0
"""Energies and their times are not read at one moment [s]."""


def are_possible(amounts: Amounts, *, max_energy_j: float) -> bool:
    """Return whether so much may have been used where at most so much energy was."""
    max_kwh = max_energy_j / JOULES_PER_KWH
    bounds = {"energy_j": max_energy_j, "carbon_g": max_kwh * MAX_G_PER_KWH, "cost": max_kwh * MAX_COST_PER_KWH}
    return all(abs(amounts.get(name) or 0.0) <= bound for name, bound in bounds.items())


def is_possible_run(account: RunAccount | None, record: RunEnergy, grown: Amounts, *, now_s: float = math.inf) -> bool:
    """Return whether a run can have used, and its baseline can be, what a record says.

    Args:
        account: what was counted before it; None: nothing.
        record: the record.
        grown: by how much the account grows with it.
        now_s: the time [Unix s]; what was counted by a clock that was far ahead says nothing of the time since.
    """
    if record.n_gpus > MAX_GPUS_OF_RUN or not 0 <= record.duration_s <= MAX_RUN_S:
        return False
    max_power_w = record.n_gpus * MAX_GPU_POWER_W
    max_energy_j = max_power_w * (record.duration_s + _SLACK_S)
    baseline: Amounts = {
        "energy_j": record.baseline_energy_j,
        "carbon_g": record.baseline_carbon_g,
        "cost": run_amounts(record)["baseline_cost"],
    }
    used: Amounts = {"energy_j": record.energy_j, "carbon_g": record.carbon_g, "cost": record.cost}
    split: list[Amounts] = [{quantity: run_amounts(record)[name]} for name, (_, quantity) in SPLIT.items()]
    if not all(are_possible(amounts, max_energy_j=max_energy_j) for amounts in (used, baseline, *split)):
        return False
    if (record.baseline_duration_s or 0.0) > _MAX_TIMES * (record.duration_s + _SLACK_S) or not _has_possible_ratios(
        record
    ):
        return False
    if account is None or record.final or not 0 < account.time_s <= now_s + FUTURE_S:
        return True
    elapsed_s = (record.time_s or 0.0) - account.time_s
    return are_possible(grown, max_energy_j=max_power_w * max(elapsed_s, 0.0)) or not any(grown.values())


def _has_possible_ratios(record: RunEnergy) -> bool:
    """Return whether intervals are about as narrow as those that are published, and ratios of this world.

    A share of a cost has no bound: with prices below zero, the baseline may be next to nothing.
    """
    halves = record.saved_ci90_ratio, record.saved_energy_ci90_ratio, record.slowdown_ci90_ratio
    is_narrow = all((half or 0.0) <= _WIDEST * MAX_CI90_RATIO for half in halves)
    is_share = -_MAX_TIMES <= (record.saved_energy_ratio or 0.0) < 1
    return is_narrow and is_share and 1 / _MAX_TIMES <= (record.slowdown_ratio or 1.0) <= _MAX_TIMES


def foreign_gpu_growth(
    before: Amounts, heard_s: float | None, started_at_s: float | None, counters: GpuEnergy
) -> Amounts | None:
    """Return by how much the counters of a GPU of another machine have grown; None: by more than is possible.

    {} where the message is not newer than what was counted: a duplicate, one that the broker had retained, or of a
    clock that was set back, which counts once that has caught up. Counters that have fallen, or began after the last
    message, are a new controller's: two controllers of one name cannot take turns.

    Args:
        before: the counters of the last message.
        heard_s: its time [Unix s]; None: there was none.
        started_at_s: when its controller had started [Unix s]; None: not known.
        counters: those now.
    """
    after: Amounts = {name: getattr(counters, name) for name in GPU_AMOUNTS}
    if heard_s is None:  # what it had counted before is not of now
        return growth(after, after)
    if counters.time_s <= heard_s:
        return {}
    grown = growth({} if begin_anew(before, heard_s, started_at_s, counters) else before, after)
    return grown if are_possible(grown, max_energy_j=MAX_GPU_POWER_W * (counters.time_s - heard_s)) else None
