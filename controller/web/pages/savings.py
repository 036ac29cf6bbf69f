"""What was saved, as people read it: amounts with their intervals, or nothing where there is no evidence."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from controller.history.energy_history.growth import run_amounts
from controller.history.energy_history.report import Entry, Part, entry_of, saving_parts
from controller.history.energy_history.sentence import PART_NAMES
from controller.web.pages.words import percent_text, range_text, typeset
from publishers.messages.reports import RunEnergy
from publishers.messages.topics import RunKey
from publishers.training.reporting.amounts import carbon_text, energy_text, interval_texts, money_text


class Saving(NamedTuple):
    """What was used and saved of a quantity: with the baseline, the half-width of the interval, the share, the text."""

    name: str
    used: float | None
    baseline: float | None
    saved: float | None
    ci90: float | None
    saved_ratio: float | None
    text_of: Callable[[float], str]

    @property
    def amount(self) -> str:
        """Return what was saved."""
        return typeset(self._texts()[1])

    @property
    def interval(self) -> str:
        """Return the 90 % interval of what was saved."""
        lower, _, upper = self._texts()
        return range_text(lower, upper)

    @property
    def saved_text(self) -> str:
        """Return what was saved, its share and its interval."""
        share = "" if self.saved_ratio is None else f", {typeset(percent_text(self.saved_ratio))}"
        return f"{self.amount}{share} ({self.interval})"

    def _texts(self) -> list[str]:
        return interval_texts(self.saved or 0.0, self.ci90 or 0.0, self.text_of)


def savings_of(entry: Entry) -> list[Saving]:
    """Return the quantities of a line that are known to have been used, the one that is told first at the beginning.

    What was saved is too early to tell without its interval.
    """
    text_of = partial(money_text, currency=entry.currency)
    carbon, cost, energy = (
        Saving(
            "CO₂e", entry.carbon_g, entry.baseline_carbon_g, entry.saved_carbon_g, entry.saved_carbon_ci90_g,
            entry.saved_carbon_ratio, carbon_text,
        ),
        Saving(
            "Cost", entry.cost, entry.baseline_cost, entry.saved_cost, entry.saved_cost_ci90,
            entry.saved_cost_ratio, text_of,
        ),
        Saving(
            "Energy", entry.energy_j, entry.baseline_energy_j, entry.saved_energy_j, entry.saved_energy_ci90_j,
            entry.saved_energy_ratio, energy_text,
        ),
    )  # fmt: skip
    return [
        quantity if quantity.ci90 is not None else quantity._replace(saved=None)
        for quantity in (carbon, cost, energy)
        if quantity.used is not None
    ]


def told_saving(entry: Entry) -> Saving | None:
    """Return the quantity whose saving is told: carbon, else money, else energy; None: too early to tell."""
    return next((quantity for quantity in savings_of(entry) if quantity.saved is not None), None)


def split_of(entry: Entry) -> list[tuple[str, Saving]]:
    """Return what the saving that is told is made of, by the names of its parts; none: that is not known."""
    told = told_saving(entry)
    if told is None:
        return []
    return [
        (PART_NAMES[part.name], told._replace(saved=part.saved, ci90=part.ci90, saved_ratio=None))
        for part in saving_parts(entry)
    ]


def slower_text(entry: Entry) -> str:
    """Return how much more time was taken, with its interval; "" where that is not known."""
    if entry.slowdown_ratio is None or entry.slowdown_ci90_ratio is None:
        return ""
    ends = (percent_text(entry.slowdown_ratio - 1 + sign * entry.slowdown_ci90_ratio) for sign in (-1, 1))
    return f"{typeset(percent_text(entry.slowdown_ratio - 1))} ({range_text(*ends)})"


def run_entry(key: RunKey, record: RunEnergy) -> Entry:
    """Return what a run has used and saved so far, as a line of a report."""
    return entry_of(str(key), [Part(*key, record, run_amounts(record))])
