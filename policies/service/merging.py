"""What is told of a run: whether it can be, and what comes of it beside what is known already."""

from typing import Final

import msgspec
from msgspec.structs import FieldInfo, fields, replace

from policies.service.errors import RequestError
from policies.service.records import Result

_CUMULATIVE: Final = ("epochs", "energy_j", "duration_s", "carbon_g")
"""They only grow while a run goes on, so that the greatest told is the newest."""
_ACCOUNT: Final = (*_CUMULATIVE, "max_power_w", "gpu_model", "n_gpus", "money", "currency")
"""What says together what was used, and where."""
_FIELDS: Final[tuple[FieldInfo, ...]] = fields(Result)


def check(result: Result, *, is_news: bool = True) -> None:
    """Check that a result is one.

    Args:
        result: what was told, or (`is_news` false) what has become of all that was told: there, `epochs` may be fewer
            than those to the target, where they were counted late.
        is_news: whether it was told all at once.

    Raises:
        RequestError: it is not; with every fault.
    """
    faults = [fault for field in _FIELDS if (fault := _fault(field, getattr(result, field.name)))]
    if is_news and result.epochs is not None and (result.reached_epochs or 0) > result.epochs:
        faults.append(f"reached_epochs = {result.reached_epochs}: must be at most epochs = {result.epochs}")
    if result.reached_epochs == 0:
        faults.append("reached_epochs = 0: must be at least 1, or left out where the target was not reached")
    if faults:
        raise RequestError(faults)


def filled(known: Result, news: Result) -> Result:
    """Return what is known of a run whose end was told, with what was not known before.

    What a run has used grows on, where it is not told as part of its end once more: its last account may come after.
    """
    gaps = {field.name: getattr(news, field.name) for field in _FIELDS if getattr(known, field.name) is None}
    full = replace(known, **gaps)
    counts_elsewhere = known.outcome == "reached" and full.reached_epochs is not None
    if _is_first_account(known, news) and (counts_elsewhere or (news.epochs or 0) > (known.epochs or 0)):
        full = replace(full, epochs=news.epochs)  # energy and time are those of its `epochs`
    if news.outcome is not None:
        return full
    used = grown(full, replace(Result(), **{name: getattr(news, name) for name in _CUMULATIVE}))
    if news.money is not None and news.energy_j is not None and news.energy_j >= (known.energy_j or 0.0):
        used = replace(used, money=news.money)
    return used


def grown(known: Result, news: Result) -> Result:
    """Return what is known and what is told of a run whose end was not told before."""
    merged = {field.name: value for field in _FIELDS if (value := getattr(news, field.name)) is not None}
    if _is_account(known) and _is_account(news):
        larger = known if _size(known) > _size(news) else news
        whole = {name: value for name in _ACCOUNT if (value := getattr(larger, name)) is not None}
        return replace(known, **(merged | whole))
    for name in _CUMULATIVE:
        if name in merged and getattr(known, name) is not None:
            merged[name] = max(merged[name], getattr(known, name))
    return replace(known, **merged)


def _is_account(result: Result) -> bool:
    """Return whether it says what was used, and for how many epochs."""
    return result.epochs is not None and (result.energy_j is not None or result.duration_s is not None)


def _size(account: Result) -> tuple[int, float, float]:
    """Return what grows while a run goes on, so that the larger of two accounts is the newer.

    Where a run's process was replaced there may be an account of each: then this is the one that holds more, and is
    taken as a whole, since the energy of one belongs to its own epochs.
    """
    return account.epochs or 0, account.duration_s or 0.0, account.energy_j or 0.0


def _fault(field: FieldInfo, value: object) -> str | None:
    try:
        msgspec.convert(value, field.type)
    except msgspec.ValidationError as error:
        return f"{field.name} = {value!r}: {str(error)[:1].lower()}{str(error)[1:]}"
    if isinstance(value, str) and "\0" in value:  # PostgreSQL takes every character but this one
        return f"{field.name} = {value!r}: must not hold the character NUL"
    return None


def _is_first_account(known: Result, news: Result) -> bool:
    """Return whether the news are the first to say what a run has used, and of how many epochs that is."""
    is_new = known.energy_j is None and known.duration_s is None
    return is_new and news.epochs is not None and (news.energy_j is not None or news.duration_s is not None)
