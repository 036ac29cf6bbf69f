"""What was used and saved, in words and units that people read."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, tzinfo
from functools import partial
from typing import Final, NamedTuple

from controller.history.energy_history.reading import Period, RunFilter
from controller.history.energy_history.report import TOO_EARLY, Entry, Part, saving_parts
from policies.vocabulary.units import duration_text
from publishers.training.reporting.amounts import (
    carbon_text,
    energy_per_work_text,
    energy_text,
    interval_texts,
    money_text,
    power_text,
    work_text,
)

MAX_NAMED: Final = 4
"""Sources, or jobs, that a sentence names: those with most runs."""
MIN_UNMEASURED_S: Final = 60.0
"""Less is not told [s]."""
PART_NAMES: Final = {
    "better_limit": "better limit",
    "following": "following the grid",
    "measuring": "measuring",
}
"""What a saving is made of."""
_SIGNALS: Final = {
    "average": "Carbon is location-based, by the average intensity of the grid",
    "marginal": "Carbon is location-based, by the marginal intensity of the grid",
    "price": "Cost is by the price of electricity",
}
_HARDWARE: Final = {"gpu": "GPU", "node": "node"}


def headline(
    total: Entry,
    period: Period,
    *,
    which: RunFilter | None = None,
    hardware: str = "",
    n_rows: int = 0,
    zone: tzinfo | None = None,
) -> str:
    """Return what runs, or so many GPUs or nodes, used and saved, as a sentence; without a zone in this machine's."""
    begin, end = (f"{datetime.fromtimestamp(at_s, zone):%Y-%m-%d %H:%M}" for at_s in period)
    if hardware:
        what = _number(n_rows, _HARDWARE[hardware])
        return f"From {begin} to {end}, {what} used {used_text(total)}, inside and outside runs."
    if not total.runs:
        asked = [f"{name} {value}" for name, value in (which or RunFilter())._asdict().items() if value is not None]
        of = f" of {', '.join(asked)}" if asked else ""
        return f"From {begin} to {end}, no run{of} is recorded."
    used = f"From {begin} to {end}, {_number(total.runs, 'run')} used {used_text(total)}"
    if not total.measured_runs:
        return f"{used}; it is {TOO_EARLY} what was saved."
    known = "" if total.measured_runs == total.runs else f" (known for {total.measured_runs} of them)"
    slower = f", taking {_time_text(total)}" if slower_text(total) else ""
    same = f"the same work at the prior limits{known}{slower}"
    told = _told(total)
    if told is not None and told.amount < 0:
        return f"{used}: {_with_interval(told.negated())} more than {same}."
    return f"{used}, and saved {saved_text(total)} against {same}."


def how_counted(parts: Sequence[Part]) -> list[str]:
    """Return by which signals runs are counted, what is counted, and what runs held out say, a sentence each."""
    return [*_signals(parts), *_overheads(parts), *_held_out(parts)]


def _signals(parts: Sequence[Part]) -> Iterator[str]:
    """Yield the sources of each kind of signal; records of an earlier version do not know theirs."""
    for kind, words in _SIGNALS.items():
        of_kind = [part.record for part in parts if part.record.signal_kind == kind]
        if of_kind:
            zones = (f" in {record.signal_zone}" if record.signal_zone else "" for record in of_kind)
            names = [
                f"{record.signal_source or 'an unnamed source'}{zone}"
                for record, zone in zip(of_kind, zones, strict=True)
            ]
            yield f"{words}, from {_each(names, len(parts))}."
    known = [part.record for part in parts if part.record.signal_unmeasured_s is not None]
    unmeasured_s = sum(record.signal_unmeasured_s or 0.0 for record in known)
    if unmeasured_s >= MIN_UNMEASURED_S:
        took, lacked = (duration_text(each_s) for each_s in (sum(record.duration_s for record in known), unmeasured_s))
        yield f"For {lacked} of the {took} that these runs took, the source gave an estimate or no value."
    n_unknown = sum(
        part.record.signal_kind is None and (part.record.carbon_g is not None or part.record.cost is not None)
        for part in parts
    )
    if n_unknown:
        yield f"For {_number(n_unknown, 'run')}, the source of carbon or cost was not recorded."


def _overheads(parts: Sequence[Part]) -> Iterator[str]:
    """Yield what is counted: GPUs alone, whatever plans weigh beside them."""
    if not parts:
        return
    told = []
    for record in (part.record for part in parts):
        host = f"{power_text(record.host_power_w)} for the rest of each machine" if record.host_power_w else ""
        told.append(" and ".join(filter(None, (host, f"a PUE of {record.pue:g}" if record.pue else ""))))
    weighed = _each([words for words in told if words], len(parts))
    plans = f" Plans also allow for {weighed}; no number here includes that." if weighed else ""
    yield f"Energy, carbon and cost are of the GPUs alone, without host power or PUE.{plans}"


def _held_out(parts: Sequence[Part]) -> Iterator[str]:
    """Yield how the runs of a job compare with those held out, by its newest record that says so."""
    jobs = {f"{part.user}/{part.job}": part.record for part in parts if part.record.ab_runs}
    for job, record in sorted(jobs.items(), key=lambda item: -(item[1].ab_runs or 0))[:MAX_NAMED]:
        of = f"A/B check of {job}, {record.ab_held_out_runs or 0} of {record.ab_runs} runs held out at the prior limit"
        saved = record.ab_saved_energy_ratio, record.ab_saved_energy_lower_ratio, record.ab_saved_energy_upper_ratio
        if None in saved:
            yield f"{of}: too early to tell."
            continue
        ratio, lower, upper = (100 * (value or 0.0) for value in saved)
        yield f"{of}: the others use {ratio:.1f} % less energy an iteration (90 %: {lower:.1f} to {upper:.1f} %)."


def _each(names: Sequence[str], n_all: int) -> str:
    """Return names, the most frequent first, each with its number of runs unless it is that of all."""
    counted = Counter(names).most_common()
    texts = [name if number == n_all else f"{name} ({_number(number, 'run')})" for name, number in counted[:MAX_NAMED]]
    if len(counted) > MAX_NAMED:
        texts.append(f"{len(counted) - MAX_NAMED} more")
    return ", ".join(texts)


def used_text(entry: Entry) -> str:
    """Return what was used: energy, carbon, money."""
    texts = [energy_text(entry.energy_j or 0.0)]
    if entry.carbon_g is not None:
        texts.append(carbon_text(entry.carbon_g))
    if entry.cost is not None:
        texts.append(money_text(entry.cost, entry.currency))
    return ", ".join(texts)


def worked_text(entry: Entry, *, total_work: float | None = None) -> str:
    """Return how much work was done, of how much, and the energy that it took; "" where no run tells it."""
    if entry.work is None or entry.energy_per_work_j is None:
        return ""
    done = work_text(entry.work, entry.work_unit, total_work=total_work)
    return f"{done} at {energy_per_work_text(entry.energy_per_work_j)}"


def saved_text(entry: Entry) -> str:
    """Return what was saved first of all: carbon, else money, else energy; with its interval."""
    told = _told(entry)
    return TOO_EARLY if told is None else _with_interval(told)


def split_texts(entry: Entry) -> list[str]:
    """Return what the same saving is made of, each part with its interval, as `PART_NAMES`; none: not known."""
    told = _told(entry)
    if told is None:
        return []
    return [
        _with_interval(told._replace(amount=part.saved, half=part.ci90, ratio=None)) for part in saving_parts(entry)
    ]


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
    return _percent_text(entry.slowdown_ratio - 1, entry.slowdown_ci90_ratio)


def _time_text(entry: Entry) -> str:
    """Return how much more or less time it took, with its interval, where that is known."""
    change, half = (entry.slowdown_ratio or 1.0) - 1, entry.slowdown_ci90_ratio or 0.0
    return f"{_percent_text(abs(change), half)} {'less' if change < 0 else 'more'} time"


def _percent_text(ratio: float, half: float) -> str:
    return f"{100 * ratio:.1f} % (90 %: {100 * (ratio - half):.1f} to {100 * (ratio + half):.1f} %)"


def _number(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
