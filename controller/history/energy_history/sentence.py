"""What was used and saved, in words and units that people read."""

from collections.abc import Callable
from datetime import datetime, tzinfo
from functools import partial
from typing import Final, NamedTuple

from controller.history.energy_history.reading import Period
from controller.history.energy_history.report import TOO_EARLY, Entry
from publishers.training.reporting.amounts import carbon_text, energy_text, interval_texts, money_text

_HARDWARE: Final = {"gpu": "GPU", "node": "node"}


def headline(total: Entry, period: Period, *, hardware: str = "", n_rows: int = 0, zone: tzinfo | None = None) -> str:
    """Return what runs, or so many GPUs or nodes, used and saved, as a sentence; without a zone in this machine's."""
    begin, end = (f"{datetime.fromtimestamp(at_s, zone):%Y-%m-%d %H:%M}" for at_s in period)
    if hardware:
        what = _number(n_rows, _HARDWARE[hardware])
        return f"From {begin} to {end}, {what} used {used_text(total)}, with runs and without."
    if not total.runs:
        return f"From {begin} to {end} there was no run."
    used = f"From {begin} to {end}, {_number(total.runs, 'run')} used {used_text(total)}"
    if not total.measured_runs:
        return f"{used}; it is {TOO_EARLY} what was saved."
    known = "" if total.measured_runs == total.runs else f" (known of {total.measured_runs} of them)"
    slower = f", for {slower_text(total)} more time" if slower_text(total) else ""
    same = f"the same work at the prior limits{slower}{known}"
    told = _told(total)
    if told is not None and told.amount < 0:
        return f"{used}, and that is {_with_interval(told.negated())} more than {same}."
    return f"{used}, and saved {saved_text(total)} against {same}."


def used_text(entry: Entry) -> str:
    """Return what was used: energy, carbon, money."""
    texts = [energy_text(entry.energy_j or 0.0)]
    if entry.carbon_g is not None:
        texts.append(carbon_text(entry.carbon_g))
    if entry.cost is not None:
        texts.append(money_text(entry.cost, entry.currency))
    return ", ".join(texts)


def saved_text(entry: Entry) -> str:
    """Return what was saved first of all: carbon, else money, else energy; with its interval."""
    told = _told(entry)
    return TOO_EARLY if told is None else _with_interval(told)


class _Saving(NamedTuple):
    """What was saved of a quantity, half its interval, its share, and how it is written."""

    amount: float
    half: float | None
    ratio: float | None
    text_of: Callable[[float], str]

    def negated(self) -> "_Saving":
        """Return what was used more."""
        return self._replace(amount=-self.amount, ratio=None if self.ratio is None else -self.ratio)


def _told(entry: Entry) -> _Saving | None:
    if entry.saved_carbon_g is not None:
        return _Saving(entry.saved_carbon_g, entry.saved_carbon_ci90_g, entry.saved_carbon_ratio, carbon_text)
    if entry.saved_cost is not None:
        text_of = partial(money_text, currency=entry.currency)
        return _Saving(entry.saved_cost, entry.saved_cost_ci90, entry.saved_cost_ratio, text_of)
    if entry.saved_energy_j is not None:
        return _Saving(entry.saved_energy_j, entry.saved_energy_ci90_j, entry.saved_energy_ratio, energy_text)
    return None


def _with_interval(told: _Saving) -> str:
    share = "" if told.ratio is None else f", {100 * told.ratio:.1f} %"
    lower, amount, upper = interval_texts(told.amount, told.half or 0.0, told.text_of)
    return f"{amount}{share} (90 %: {lower} to {upper})"


def slower_text(entry: Entry) -> str:
    """Return how much longer it took, with its interval; "" where that is not known."""
    if entry.slowdown_ratio is None or entry.slowdown_ci90_ratio is None:
        return ""
    ratio, half = entry.slowdown_ratio - 1, entry.slowdown_ci90_ratio
    return f"{100 * ratio:.1f} % (90 %: {100 * (ratio - half):.1f} to {100 * (ratio + half):.1f} %)"


def _number(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
