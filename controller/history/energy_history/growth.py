"""The growth of cumulative values, so that quarter-hours add up to days, months and the run, exactly.

What a quarter-hour has used, or saved, is what a cumulative value has grown by since the one before it. The sum of all
growth is the last value, whenever values were read and whatever the clock did (a telescoping sum).
"""

from datetime import datetime, timedelta, tzinfo
from typing import Final, NamedTuple

from publishers.messages.reports import KNOWN_EVIDENCE, GpuEnergy, RunEnergy

QUARTER_S: Final = 900
"""Time zones differ by multiples of it: each day of each of them is a number of quarter-hours."""
NEW_ACCOUNT_S: Final = 60.0
"""A new account is heard of within this time of its beginning, whatever the clock does meanwhile [s]."""
OLDER_CHECKPOINT_S: Final = 120.0
"""A checkpoint is older than the newest record by some periods of it at most [s]."""
LATE_S: Final = 86_400.0
"""A record this much older than the newest is no late one: the clock was far ahead [s]."""

USED: Final = ("duration_s", "energy_j", "carbon_g", "cost")
ONLY_GROWING: Final = ("duration_s", "energy_j", "carbon_g", "work", "worked_energy_j")
"""With a negative price, a cost may fall."""
COMPARED: Final = tuple(f"compared_{name}" for name in USED)
"""What was used, as far as there is evidence of what the same work would have used at the prior limit."""
BASELINE: Final = tuple(f"baseline_{name}" for name in USED)
"""What that is. The difference to what is compared is saved (of the duration: lost)."""
SPLIT: Final = {
    f"{part}_{quantity}": (part, quantity)
    for quantity in ("carbon_g", "cost")
    for part in ("better_limit", "following", "measuring")
}
"""What that difference is made of, of the quantity that the run was planned by: the part, and the quantity."""
WORKED: Final = ("work", "worked_energy_j")
"""How much work was done, and what was used until it was known."""
RUN_AMOUNTS: Final = (*USED, *COMPARED, *BASELINE, *SPLIT, *WORKED)
GPU_AMOUNTS: Final = ("energy_j", "carbon_g", "cost")
SAME_RATIO: Final = 0.001
"""By so much of the baseline the parts of a saving may be off it: records round them."""
CURRENCY_SEPARATOR: Final = ", "
"""Between the currencies of a run or GPU that was priced in several."""

Amounts = dict[str, float | None]
"""By the name of the quantity; None where it is not known."""


class RunAccount(NamedTuple):
    """What was counted of a run until its newest record.

    Attributes:
        time_s: of that record [Unix s].
        counted: the sum of all growth.
        current: what that record says: of the controller's present account of the run.
        earlier: what was counted of accounts before, which were lost.
    """

    time_s: float
    counted: Amounts
    current: Amounts
    earlier: Amounts


def quarter_of(time_s: float) -> int:
    """Return when the quarter-hour of a moment began [Unix s]."""
    return int(time_s // QUARTER_S) * QUARTER_S


def day_of(time_s: float, zone: tzinfo | None) -> tuple[int, int]:
    """Return when the day of a moment begins and ends [Unix s]; None is the zone of this machine."""
    date = datetime.fromtimestamp(time_s, zone).date()
    # Not by astimezone(): of a midnight that the clock skips, it makes 23:00 of the day before.
    begin_s, end_s = (
        int(datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()) for day in (date, date + timedelta(days=1))
    )
    return begin_s, end_s


def run_amounts(record: RunEnergy) -> Amounts:
    """Return the cumulative values of a record of a run.

    Without evidence nothing is known to compare; only the final record says that there is none at all: a zero.
    """
    used: Amounts = {name: getattr(record, name) for name in USED}
    worked: Amounts = {"work": record.work, "worked_energy_j": None if record.work is None else record.energy_j}
    if record.evidence not in KNOWN_EVIDENCE:
        nothing = 0.0 if record.final else None
        owed = {name: _bare(name) for name in (*COMPARED, *BASELINE)}
        owed |= {name: quantity for name, (_, quantity) in SPLIT.items()}
        return used | worked | {name: None if used[quantity] is None else nothing for name, quantity in owed.items()}
    compared: Amounts = {f"compared_{name}": value for name, value in used.items()}
    baseline = _baseline(record)
    has_baseline = {_bare(name) for name, value in baseline.items() if value is not None}
    shares = {name: value if _bare(name) in has_baseline else None for name, value in (compared | baseline).items()}
    return used | worked | shares | _split(record, shares)


def run_growth(
    account: RunAccount | None, record: RunEnergy, *, is_foreign: bool = False
) -> tuple[RunAccount, Amounts]:
    """Return the account of a run with a new record, and by how much it has grown.

    A record below what was counted, such as one without the other nodes just after a restart of the leader, adds
    nothing until it has caught up; the final one counts as it is. Values that began anew add to what there was. A
    record older than the newest was counted already and adds nothing either, unless it has used more: the clock was set
    back. Where values began anew that cannot be told, and such records wait until the clock has caught up.

    Args:
        account: what was counted of it; None: nothing.
        record: the record.
        is_foreign: it comes from a broker, which repeats what it has retained: final records, too, however old.
    """
    current = run_amounts(record)
    time_s = record.time_s or 0.0
    if account is None:
        account = RunAccount(time_s, {}, {}, {})
    has_used_more = not account.earlier and (current["energy_j"] or 0.0) > (account.counted.get("energy_j") or 0.0)
    older_s = account.time_s - time_s
    is_repeated = older_s > 0 and (is_foreign or (not record.final and older_s < LATE_S))
    if is_repeated and not has_used_more:
        return account, {}
    earlier = account.counted if _is_new_account(account, current, time_s) else account.earlier
    total: Amounts = {
        name: account.counted.get(name) if value is None else (earlier.get(name) or 0.0) + value
        for name, value in current.items()
    }
    if not record.final and (total["energy_j"] or 0.0) < (account.counted.get("energy_j") or 0.0):
        return RunAccount(time_s, account.counted, current, earlier), {}
    return RunAccount(time_s, total, current, earlier), growth(account.counted, total)


def growth(before: Amounts, after: Amounts) -> Amounts:
    """Return by how much values have grown; one that was not known before has grown from nothing."""
    return {name: None if value is None else value - (before.get(name) or 0.0) for name, value in after.items()}


def gpu_growth(before: Amounts, after: Amounts, *, is_same_controller: bool) -> Amounts | None:
    """Return by how much the counters of a GPU have grown, which begin anew with each controller.

    Those of one controller never fall: such a message is older than what was counted, and None is returned.
    """
    known_j, now_j = before.get("energy_j"), after["energy_j"]
    has_fallen = known_j is not None and now_j is not None and now_j < known_j
    if is_same_controller and has_fallen:
        return None
    return growth(before if is_same_controller else {}, after)


def begin_anew(before: Amounts, heard_s: float, started_at_s: float | None, counters: GpuEnergy) -> bool:
    """Return whether counters of a GPU are a new controller's: they have fallen, or began after the last message.

    One that has begun by a clock that was ahead is not new once the clock has caught up with that.

    Args:
        before: the counters of that message.
        heard_s: its time [Unix s].
        started_at_s: when its controller had started [Unix s]; None: not known.
        counters: those now.
    """
    has_fallen = (counters.energy_j or 0.0) < (before.get("energy_j") or 0.0)
    is_of_another = counters.started_at_s is not None and counters.started_at_s != started_at_s
    return has_fallen or (is_of_another and heard_s < (counters.started_at_s or 0.0) <= counters.time_s)


def added(amounts: Amounts, more: Amounts) -> Amounts:
    """Return the sum of two; what neither knows is not known."""
    total = dict(amounts)
    for name, value in more.items():
        total[name] = total.get(name) if value is None else (total.get(name) or 0.0) + value
    return total


def _is_new_account(account: RunAccount, current: Amounts, time_s: float) -> bool:
    """Return whether a record is of an account that began after the record before it.

    Its energy has fallen, and it covers no more time than has passed since, and clearly less than the account before.
    An older checkpoint covers all of the run but the last periods, however long there was no controller.
    """
    has_fallen = (current["energy_j"] or 0.0) < (account.current.get("energy_j") or 0.0)
    lost_s = (account.current.get("duration_s") or 0.0) - OLDER_CHECKPOINT_S
    return has_fallen and (current["duration_s"] or 0.0) <= min(lost_s, max(time_s - account.time_s, NEW_ACCOUNT_S))


def _baseline(record: RunEnergy) -> Amounts:
    """Return what the same work would have used.

    Where a record does not say at which cost, that follows from the share that was saved, where that is of the cost.
    """
    amounts: Amounts = {name: getattr(record, name) for name in BASELINE}
    saved_ratio = 1.0 if record.saved_ratio is None else record.saved_ratio
    is_of_cost = record.carbon_g is None and saved_ratio < 1
    if record.baseline_cost is None and record.cost is not None and is_of_cost:
        amounts["baseline_cost"] = record.cost / (1 - saved_ratio)
    return amounts


def _split(record: RunEnergy, shares: Amounts) -> Amounts:
    """Return what the saving is made of; None where one of the parts is not known, or not with its interval.

    The better limit has what the others leave, so that parts add up to the saving on each day of a long run, too:
    records round ratios to 0.0001 of all that the run would have used.
    """
    ratios = {part: getattr(record, f"saved_{part}_ratio") for part, _ in SPLIT.values()}
    halves = [getattr(record, f"saved_{part}_ci90_ratio") for part in ratios]
    if None in (*ratios.values(), *halves):
        return dict.fromkeys(SPLIT)
    amounts: Amounts = {}
    for quantity in dict.fromkeys(quantity for _, quantity in SPLIT.values()):
        used, baseline = shares[f"compared_{quantity}"], shares[f"baseline_{quantity}"]
        if used is None or baseline is None:
            amounts |= {f"{part}_{quantity}": None for part in ratios}
            continue
        parts = {part: ratio * baseline for part, ratio in ratios.items()}
        rest = baseline - used - sum(parts.values())
        is_rounding = abs(rest) <= SAME_RATIO * abs(baseline)
        parts["better_limit"] += rest
        amounts |= {f"{part}_{quantity}": amount if is_rounding else None for part, amount in parts.items()}
    return amounts


def _bare(name: str) -> str:
    return name.partition("_")[2]
