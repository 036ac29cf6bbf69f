"""What was used and saved in a time, by job, user, day, run or GPU, from the rows of a history; a function of these."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from controller.history.energy_history.growth import (
    BASELINE,
    COMPARED,
    CURRENCY_SEPARATOR,
    GPU_AMOUNTS,
    SAME_RATIO,
    SPLIT,
    WORKED,
    Amounts,
    added,
)
from publishers.messages.reports import KNOWN_EVIDENCE, RunEnergy

HOW_COMBINED: Final = (
    "Intervals are 90 % intervals. Runs of one job share the uncertainty of its power curve, so within a job the"
    " half-widths add up; jobs are independent, so between jobs their squares do."
)
TOO_EARLY: Final = "too early to tell"
PARTS: Final = tuple(dict.fromkeys(part for part, _ in SPLIT.values()))
"""Of a saving."""
_INTERVALS: Final = {
    ("saved_ci90_ratio",): ("saved_ratio", "baseline_carbon_g", "baseline_cost"),
    ("saved_energy_ci90_ratio",): ("saved_energy_ratio", "baseline_energy_j"),
    ("slowdown_ci90_ratio",): ("slowdown_ratio", "baseline_duration_s"),
    ("saved_better_limit_ci90_ratio",): ("saved_better_limit_ratio",),
    ("saved_following_ci90_ratio",): ("saved_following_ratio",),
    ("saved_measuring_ci90_ratio",): ("saved_measuring_ratio",),
}
"""Of a run that is compared with what it would have used: the numbers that an interval is of."""
_NEED_EVIDENCE: Final = [name for group in _INTERVALS.items() for names in group for name in names]
_INTERVALS_OF_RUNS: Final = {
    ("ab_saved_energy_lower_ratio", "ab_saved_energy_upper_ratio"): ("ab_saved_energy_ratio",),
    ("ab_slowdown_lower_ratio", "ab_slowdown_upper_ratio"): ("ab_slowdown_ratio",),
    ("would_save_ci90_ratio",): ("would_save_ratio",),
}
"""The same of runs that are compared with those held out, and of plans that were only observed: these need no looks."""


class Part(NamedTuple):
    """What a run, or a node's part of one, used and saved in a time."""

    user: str
    job: str
    run: str
    record: RunEnergy
    amounts: Amounts


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of a report. Without evidence there is nothing of what was saved: neither amounts nor ratios.

    `saved_…` is of the `measured_runs` of all `runs`, with the half-width of its 90 % interval (`…_ci90_…`); ratios
    are shares of what the same work would have used, or how long it would have taken, at the prior limits, which is
    `baseline_…`. `better_limit_…`, `following_…` (the grid) and `measuring_…` are what the saving is made of, where
    that is known of all of it: they add up to it. `work` is of the runs that tell it, all in one unit, and
    `energy_per_work_j` what they used for each unit of it.
    """

    name: str
    runs: int | None = None
    measured_runs: int | None = None
    duration_s: float | None = None
    energy_j: float | None = None
    carbon_g: float | None = None
    cost: float | None = None
    currency: str | None = None
    baseline_energy_j: float | None = None
    baseline_carbon_g: float | None = None
    baseline_cost: float | None = None
    baseline_duration_s: float | None = None
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
    slowdown_ci90_ratio: float | None = None
    better_limit_carbon_g: float | None = None
    better_limit_carbon_ci90_g: float | None = None
    better_limit_cost: float | None = None
    better_limit_cost_ci90: float | None = None
    following_carbon_g: float | None = None
    following_carbon_ci90_g: float | None = None
    following_cost: float | None = None
    following_cost_ci90: float | None = None
    measuring_carbon_g: float | None = None
    measuring_carbon_ci90_g: float | None = None
    measuring_cost: float | None = None
    measuring_cost_ci90: float | None = None
    work: float | None = None
    work_unit: str | None = None
    worked_energy_j: float | None = None
    energy_per_work_j: float | None = None


def csv_text(rows: Iterable[Entry]) -> str:
    """Return lines as CSV: a row of names, then a row each; what is not known is empty."""
    written = io.StringIO()
    writer = csv.DictWriter(written, fieldnames=Entry.__struct_fields__, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: spreadsheet_cell(value) for key, value in msgspec.to_builtins(row).items()})
    return written.getvalue()


def spreadsheet_cell(value: object) -> object:
    """Return a cell that no spreadsheet takes for a formula: names are what users make them."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def with_evidence(record: RunEnergy) -> RunEnergy:
    """Return a record without its numbers of what was saved that have no evidence, or no interval.

    Older controllers published such numbers, and anybody may; nobody is told them.
    """
    groups = _INTERVALS if record.evidence in KNOWN_EVIDENCE else {}
    lacking = [] if groups else _NEED_EVIDENCE
    for intervals, numbers in (groups | _INTERVALS_OF_RUNS).items():
        if any(getattr(record, interval) is None for interval in intervals):
            lacking = [*lacking, *intervals, *numbers]
    lacking = [name for name in lacking if getattr(record, name) is not None]
    return msgspec.structs.replace(record, **dict.fromkeys(lacking)) if lacking else record


def entry_of(name: str, parts: Sequence[Part]) -> Entry:
    """Return the sum of runs, or of what they used and saved in a time."""
    total: Amounts = {}
    for part in parts:
        total = added(total, part.amounts)
    measured = [part for part in parts if _is_measured(part)]
    cost, currency = _in_one_currency(
        total.get("cost"), (part.record.currency for part in parts if part.amounts.get("cost") is not None)
    )
    entry = Entry(
        name=name,
        runs=len({part[:3] for part in parts}),
        measured_runs=len({part[:3] for part in measured}),
        duration_s=total.get("duration_s"),
        energy_j=total.get("energy_j"),
        carbon_g=total.get("carbon_g"),
        cost=cost,
        currency=currency,
    )
    quantities = ("energy_j", "carbon_g", *(("cost",) if cost is not None else ()))
    saved = {key: value for quantity in quantities for key, value in _saved(measured, quantity).items()}
    split = {key: value for quantity in quantities[1:] for key, value in _split(measured, quantity).items()}
    return msgspec.structs.replace(entry, **saved, **_slowdown(measured), **split, **_worked(parts))


def _worked(parts: Sequence[Part]) -> dict[str, Any]:
    """Return the work of the runs that tell it, and what they used for it; nothing where their units differ."""
    known = [part for part in parts if part.amounts.get("work") is not None and any(map(part.amounts.get, WORKED))]
    units = {part.record.work_unit for part in known}
    if len(units) != 1:
        return {}
    work, energy_j = (sum(part.amounts[name] or 0.0 for part in known) for name in WORKED)
    per_work_j = energy_j / work if work > 0 else None
    return {"work": work, "work_unit": units.pop(), "worked_energy_j": energy_j, "energy_per_work_j": per_work_j}


class SavingPart(NamedTuple):
    """What brought a part of a saving: `better_limit`, `following` or `measuring`; how much, and half its interval."""

    name: str
    saved: float
    ci90: float


def saving_parts(entry: Entry) -> list[SavingPart]:
    """Return what the saving that is told first is made of: of carbon, else of money; none: that is not known."""
    quantity = "carbon_g" if entry.saved_carbon_g is not None else "cost"
    found = [[getattr(entry, key) for key in _amount_and_half(name, quantity)] for name in PARTS]
    return [] if None in found[0] else [SavingPart(name, *known) for name, known in zip(PARTS, found, strict=True)]


def _split(parts: Sequence[Part], quantity: str) -> Amounts:
    """Return what the saving of runs is made of; nothing where that is not known of each, so that it adds up."""
    known = _known_of(parts, quantity)
    if not known or any(
        part.amounts[f"{name}_{quantity}"] is None or getattr(part.record, _half_of(name)) is None
        for part in known
        for name in PARTS
    ):
        return {}
    used, baseline = _sums(known, quantity)
    saved = {name: sum(part.amounts[f"{name}_{quantity}"] or 0.0 for part in known) for name in PARTS}
    if abs(sum(saved.values()) - (baseline - used)) > SAME_RATIO * abs(baseline):
        return {}
    halves = {name: _baseline_ci(known, quantity, partial(_half_ratio, name=_half_of(name))) for name in PARTS}
    return {
        key: value
        for name in PARTS
        for key, value in zip(_amount_and_half(name, quantity), (saved[name], halves[name]), strict=True)
    }


def _amount_and_half(name: str, quantity: str) -> tuple[str, str]:
    """Return the fields of an amount and of half its interval: `saved`, `carbon_g`: `saved_carbon_ci90_g`."""
    stem, _, unit = quantity.partition("_")
    unit = f"_{unit}" if unit else ""
    return f"{name}_{stem}{unit}", f"{name}_{stem}_ci90{unit}"


def _half_of(name: str) -> str:
    return f"saved_{name}_ci90_ratio"


def _half_ratio(record: RunEnergy, *, name: str) -> float:
    return float(getattr(record, name))


def sum_of_gpus(name: str, gpus: Sequence[Entry]) -> Entry:
    """Return what GPUs used together."""
    total: Amounts = {}
    for gpu in gpus:
        total = added(total, {quantity: getattr(gpu, quantity) for quantity in GPU_AMOUNTS})
    cost, currency = _in_one_currency(total.get("cost"), (gpu.currency for gpu in gpus if gpu.cost is not None))
    return msgspec.structs.replace(Entry(name=name, currency=currency), **total | {"cost": cost})


def _in_one_currency(cost: float | None, currencies: Iterable[str | None]) -> tuple[float | None, str | None]:
    """Return a sum of costs and its currency; of several there is no sum, and without prices a record names none."""
    known = {one for currency in currencies if currency for one in currency.split(CURRENCY_SEPARATOR)}
    return (None, None) if len(known) > 1 else (cost, next(iter(known), None))


def _is_measured(part: Part) -> bool:
    """Return whether it is known what was saved; what a training uses while it waits has a baseline of nothing."""
    is_compared = any(part.amounts.get(name) for name in (*COMPARED, *BASELINE))
    return is_compared and part.record.saved_energy_ci90_ratio is not None


def _saved(parts: Sequence[Part], quantity: str) -> Amounts:
    """Return what runs have saved together of a quantity, with the half-width of its interval, and as a share."""
    known = _known_of(parts, quantity)
    if not known:
        return {}
    used, baseline = _sums(known, quantity)
    ci90 = _baseline_ci(known, quantity, partial(_half_ratio, name=_interval_of(quantity)))
    amount, half = _amount_and_half("saved", quantity)
    return {
        f"baseline_{quantity}": baseline,
        amount: baseline - used,
        half: ci90,
        f"saved_{quantity.partition('_')[0]}_ratio": 1 - used / baseline if baseline > 0 else None,
    }


def _known_of(parts: Sequence[Part], quantity: str) -> list[Part]:
    """Return the runs of which it is known what they saved of a quantity."""
    name = _interval_of(quantity)
    return [
        part
        for part in parts
        if part.amounts.get(f"baseline_{quantity}") is not None and getattr(part.record, name) is not None
    ]


def _interval_of(quantity: str) -> str:
    return "saved_energy_ci90_ratio" if quantity == "energy_j" else "saved_ci90_ratio"


def _slowdown(parts: Sequence[Part]) -> Amounts:
    """Return how many times as long runs have taken together, with the half-width of its interval."""
    known = [part for part in parts if part.record.slowdown_ratio and part.record.slowdown_ci90_ratio is not None]
    compared_s, baseline_s = _sums(known, "duration_s")
    if compared_s <= 0 or baseline_s <= 0:
        return {}
    ratio = compared_s / baseline_s
    ci90_s = _baseline_ci(known, "duration_s", lambda it: (it.slowdown_ci90_ratio or 0.0) / (it.slowdown_ratio or 1.0))
    return {
        "baseline_duration_s": baseline_s,
        "slowdown_ratio": ratio,
        "slowdown_ci90_ratio": ratio * ci90_s / baseline_s,
    }


def _sums(parts: Sequence[Part], quantity: str) -> tuple[float, float]:
    """Return what was used, as far as it is compared, and the baseline."""
    return (
        sum(part.amounts[f"compared_{quantity}"] or 0.0 for part in parts),
        sum(part.amounts[f"baseline_{quantity}"] or 0.0 for part in parts),
    )


def _baseline_ci(parts: Sequence[Part], quantity: str, ci90_ratio_of: Callable[[RunEnergy], float]) -> float:
    """Return the half-width of the 90 % interval of the sum of baselines, from that of each as a share of it.

    Errors add up within a job, and their squares do between jobs.
    """
    by_job: dict[tuple[str, str], float] = {}
    for part in parts:
        half = abs(part.amounts[f"baseline_{quantity}"] or 0.0) * ci90_ratio_of(part.record)
        by_job[part[:2]] = by_job.get(part[:2], 0.0) + half
    return math.hypot(*by_job.values())
