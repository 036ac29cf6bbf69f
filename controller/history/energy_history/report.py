"""What was used and saved in a time, by job, user, day, run or GPU, from the rows of a history; a function of these."""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from controller.history.energy_history.growth import GPU_AMOUNTS, Amounts, added
from publishers.messages.reports import RunEnergy

HOW_COMBINED: Final = (
    "Intervals are of 90 %. What is unknown of a job's curve is the same in all its runs: within a job they add up;"
    " between jobs, which are independent, their squares do."
)
TOO_EARLY: Final = "too early to tell"


class Part(NamedTuple):
    """What a run, or a node's part of one, used and saved in a time."""

    user: str
    job: str
    run: str
    record: RunEnergy
    amounts: Amounts


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of a report. Without evidence there is nothing of what was saved: neither amounts nor ratios.

    `saved_…` is of the `measured_runs` of all `runs`, with the half-width of its 90 % interval (`…_ci90_…`); the ratios
    are shares of what the same work would have used, or how long it would have taken, at the prior limits.
    """

    name: str
    runs: int | None = None
    measured_runs: int | None = None
    duration_s: float | None = None
    energy_j: float | None = None
    carbon_g: float | None = None
    cost: float | None = None
    currency: str | None = None
    saved_energy_j: float | None = None
    saved_energy_ci90_j: float | None = None
    saved_energy_ratio: float | None = None
    saved_carbon_g: float | None = None
    saved_carbon_ci90_g: float | None = None
    saved_carbon_ratio: float | None = None
    saved_cost: float | None = None
    saved_cost_ci90: float | None = None
    saved_cost_ratio: float | None = None
    slowdown_ratio: float | None = None


def entry_of(name: str, parts: Sequence[Part]) -> Entry:
    """Return the sum of runs, or of what they used and saved in a time."""
    total: Amounts = {}
    for part in parts:
        total = added(total, part.amounts)
    measured = [part for part in parts if _is_measured(part)]
    currencies = {part.record.currency for part in parts if part.amounts.get("cost") is not None}
    if len(currencies) != 1:  # there is no sum of several
        total["cost"] = None
    entry = Entry(
        name=name,
        runs=len({part[:3] for part in parts}),
        measured_runs=len({part[:3] for part in measured}),
        duration_s=total.get("duration_s"),
        energy_j=total.get("energy_j"),
        carbon_g=total.get("carbon_g"),
        cost=total.get("cost"),
        currency=next(iter(currencies)) if len(currencies) == 1 else None,
        slowdown_ratio=_slowdown_ratio(measured),
    )
    quantities = ("energy_j", "carbon_g", *(("cost",) if total["cost"] is not None else ()))
    saved = {key: value for quantity in quantities for key, value in _saved(measured, quantity).items()}
    return msgspec.structs.replace(entry, **saved)


def sum_of_gpus(name: str, gpus: Sequence[Entry]) -> Entry:
    """Return what GPUs used together."""
    total: Amounts = {}
    for gpu in gpus:
        total = added(total, {quantity: getattr(gpu, quantity) for quantity in GPU_AMOUNTS})
    currencies = {gpu.currency for gpu in gpus if gpu.cost is not None}
    if len(currencies) != 1:
        total["cost"] = None
    return msgspec.structs.replace(Entry(name=name, currency=next(iter(currencies), None)), **total)


def _is_measured(part: Part) -> bool:
    return bool(part.amounts.get("baseline_energy_j")) and part.record.saved_energy_ci90_ratio is not None


def _saved(parts: Sequence[Part], quantity: str) -> Amounts:
    """Return what runs have saved together of a quantity, with the half-width of its interval, and as a share.

    Errors add up within a job, and their squares do between jobs.
    """
    known = [part for part in parts if part.amounts.get(f"baseline_{quantity}") is not None]
    if not known:
        return {}
    halves: dict[tuple[str, str], float] = {}
    used = baseline = 0.0
    for part in known:
        of_run, record = part.amounts[f"baseline_{quantity}"] or 0.0, part.record
        half_ratio = record.saved_energy_ci90_ratio if quantity == "energy_j" else record.saved_ci90_ratio
        halves[part[:2]] = halves.get(part[:2], 0.0) + abs(of_run) * (half_ratio or 0.0)
        used += part.amounts[f"compared_{quantity}"] or 0.0
        baseline += of_run
    stem, _, unit = quantity.partition("_")
    unit = f"_{unit}" if unit else ""
    return {
        f"saved_{stem}{unit}": baseline - used,
        f"saved_{stem}_ci90{unit}": math.hypot(*halves.values()),
        f"saved_{stem}_ratio": 1 - used / baseline if baseline > 0 else None,
    }


def _slowdown_ratio(parts: Sequence[Part]) -> float | None:
    compared_s = sum(part.amounts["compared_duration_s"] or 0.0 for part in parts)
    baseline_s = sum(part.amounts["baseline_duration_s"] or 0.0 for part in parts)
    return compared_s / baseline_s if compared_s > 0 and baseline_s > 0 else None
