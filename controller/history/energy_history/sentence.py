"""What was used and saved, in words and units that people read."""

from datetime import datetime
from typing import Final

from controller.history.energy_history.reading import Period
from controller.history.energy_history.report import TOO_EARLY, Entry
from policies.vocabulary.units import JOULES_PER_KWH

_HARDWARE: Final = {"gpu": "GPU", "node": "node"}


def headline(total: Entry, period: Period, *, hardware: str = "", n_rows: int = 0) -> str:
    """Return what runs, or so many GPUs or nodes, used and saved, as a sentence."""
    begin, end = (f"{datetime.fromtimestamp(at_s).astimezone():%Y-%m-%d %H:%M}" for at_s in period)
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
    return f"{used}, and saved {saved_text(total)} against the same work at the prior limits{slower}{known}."


def used_text(entry: Entry) -> str:
    """Return what was used: energy, carbon, money."""
    texts = [_energy(entry.energy_j or 0.0)]
    if entry.carbon_g is not None:
        texts.append(f"{_mass(entry.carbon_g)} CO2e")
    if entry.cost is not None:
        texts.append(_money(entry.cost, entry.currency))
    return ", ".join(texts)


def saved_text(entry: Entry) -> str:
    """Return what was saved first of all: carbon, else money, else energy; with its interval."""
    if entry.saved_carbon_g is not None:
        amount, half, ratio = entry.saved_carbon_g, entry.saved_carbon_ci90_g or 0.0, entry.saved_carbon_ratio
        text, ends = f"{_mass(amount)} CO2e", (_mass(amount - half), _mass(amount + half))
    elif entry.saved_cost is not None:
        amount, half, ratio = entry.saved_cost, entry.saved_cost_ci90 or 0.0, entry.saved_cost_ratio
        text = _money(amount, entry.currency)
        ends = _money(amount - half, entry.currency), _money(amount + half, entry.currency)
    elif entry.saved_energy_j is not None:
        amount, half, ratio = entry.saved_energy_j, entry.saved_energy_ci90_j or 0.0, entry.saved_energy_ratio
        text, ends = _energy(amount), (_energy(amount - half), _energy(amount + half))
    else:
        return TOO_EARLY
    share = "" if ratio is None else f", {100 * ratio:.1f} %"
    return f"{text}{share} (90 %: {ends[0]} to {ends[1]})"


def slower_text(entry: Entry) -> str:
    """Return how much longer it took, with its interval; "" where that is not known."""
    if entry.slowdown_ratio is None or entry.slowdown_ci90_ratio is None:
        return ""
    ratio, half = entry.slowdown_ratio - 1, entry.slowdown_ci90_ratio
    return f"{100 * ratio:.1f} % (90 %: {100 * (ratio - half):.1f} to {100 * (ratio + half):.1f} %)"


def _number(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _energy(energy_j: float) -> str:
    energy_kwh = energy_j / JOULES_PER_KWH
    return f"{energy_kwh:.2f} kWh" if abs(energy_kwh) >= 0.1 else f"{1e3 * energy_kwh:.0f} Wh"  # noqa: PLR2004 — as on a bill


def _mass(mass_g: float) -> str:
    return f"{mass_g / 1e3:.2f} kg" if abs(mass_g) >= 1e3 else f"{mass_g:.0f} g"  # noqa: PLR2004 — a kilogram


def _money(cost: float, currency: str | None) -> str:
    return f"{cost:.2f} {currency or ''}".rstrip()
