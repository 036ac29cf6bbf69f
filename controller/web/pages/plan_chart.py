"""The grid's signal and the power of the runs, drawn and planned, on one axis of time."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import tzinfo
from itertools import pairwise
from statistics import median
from typing import Final

import msgspec

from controller.history.energy_history.reading import MeanPower
from controller.web.charts.marks import Band, Chart, Line, Mark, NumberAxis, Panel, Rule, TimeAxis
from controller.web.charts.ticks import number_text
from controller.web.pages.layout import moment_text
from controller.web.pages.words import typeset
from policies.vocabulary.units import HOUR_S
from publishers.messages.reports import GridSignal, RunEnergy, RunSchedule, SignalValue

BACK_S: Final = 12 * HOUR_S
AHEAD_S: Final = 24 * HOUR_S
STEP_S: Final = 900.0
"""Of the power that is planned for all runs together [s]."""
_UNITS: Final = {"g/kWh": "g CO₂e per kWh"}


def plan_chart(
    signal: GridSignal | None,
    schedules: Sequence[RunSchedule],
    *,
    drawn: Sequence[MeanPower],
    n_running: int,
    now_s: float,
    zone: tzinfo,
) -> Chart:
    """Return the chart of 12 hours back and 24 ahead.

    Args:
        signal: of the grid; None: none is known.
        schedules: of the runs that have a plan, without overhead.
        drawn: what all runs drew together, by quarter-hours.
        n_running: how many runs go on.
        now_s: the time [Unix s].
        zone: of its axis.
    """
    panels = (
        [] if signal is None else [signal_panel(signal, since_s=now_s - BACK_S, until_s=now_s + AHEAD_S, now_s=now_s)]
    )
    words = ["No signal of the grid is known."] if signal is None else [signal_sentence(signal, now_s=now_s, zone=zone)]
    starts_s, powers_w = planned_power(schedules, now_s=now_s, until_s=now_s + AHEAD_S)
    if powers_w or drawn:
        panels.append(power_panel(drawn, starts_s, powers_w, whose="the runs", now_s=now_s, is_named=not panels))
    words.append(_plan_sentence(len(schedules), n_running))
    return Chart(
        title="The grid and the plan, 12 h back and 24 h ahead",
        words=" ".join(words),
        x_axis=TimeAxis(zone=zone),
        panels=panels,
        has_table=bool(panels),
    )


def _plan_sentence(n_planned: int, n_running: int) -> str:
    if not n_running:
        return "No run goes on."
    if n_planned == n_running:
        return f"All {n_running} runs have a plan." if n_running > 1 else "The run has a plan."
    return f"{n_planned} of {n_running} runs have a plan."


def signal_panel(signal: GridSignal, *, since_s: float, until_s: float, now_s: float, height_em: float = 10.0) -> Panel:
    """Return the signal between two times: what is known as steps, the forecast through the middle of its hours."""
    marks: list[Mark] = [_now(now_s)]
    known, expected = _known(signal, since_s, until_s), _expected(signal, since_s, until_s)
    if any(value.lower is not None and value.upper is not None for _, value in expected):
        marks.append(
            Band(
                name="90 % band",
                xs=[x for x, _ in expected],
                lowers=[math.nan if value.lower is None else value.lower for _, value in expected],
                uppers=[math.nan if value.upper is None else value.upper for _, value in expected],
                colour="grid",
            )
        )
    if known:
        xs, ys = zip(*known, strict=True)
        name = "known" if signal.kind == "price" else "measured"
        marks.append(Line(name=name, xs=xs, ys=ys, colour="grid", is_stepped=True))
    if expected:
        xs, ys = zip(*((x, value.value) for x, value in expected), strict=True)
        marks.append(Line(name="forecast", xs=xs, ys=ys, colour="grid", dash="dashed"))
    label = _UNITS.get(signal.unit, signal.unit.replace("/kWh", " per kWh"))
    return Panel(axis=NumberAxis(label=label), marks=marks, height_em=height_em)


def _known(signal: GridSignal, since_s: float, until_s: float) -> list[tuple[float, float]]:
    """Return the steps of what is known: each from its beginning on, and a gap where its time ends without another."""
    steps: list[tuple[float, float]] = []
    last_end_s = math.inf
    for value, end_s in _within(signal, since_s, until_s):
        if not is_expected(signal, value):
            starts_s = max(value.starts_s, since_s)
            if starts_s > last_end_s:
                steps.append((last_end_s, math.nan))
            last_end_s = min(end_s, until_s)
            steps.append((starts_s, value.value))
    return [*steps, (last_end_s, math.nan)] if steps else []


def _expected(signal: GridSignal, since_s: float, until_s: float) -> list[tuple[float, SignalValue]]:
    """Return the values of the forecast at the middle of their time; the first of a row from its beginning on."""
    places: list[tuple[float, SignalValue]] = []
    last_end_s = math.inf
    for value, end_s in _within(signal, since_s, until_s):
        if is_expected(signal, value):
            starts_s = max(value.starts_s, since_s)
            if starts_s > last_end_s:
                places.append((last_end_s, _GAP))
            if starts_s != last_end_s:
                places.append((starts_s, value))
            last_end_s = end_s
            places.append((min(0.5 * (value.starts_s + end_s), until_s), value))
    return places


_GAP: Final = SignalValue(starts_s=0.0, value=math.nan)


def is_expected(signal: GridSignal, value: SignalValue) -> bool:
    """Return whether a value is a forecast; prices that are fixed for tomorrow are none."""
    is_ahead = signal.forecast_from_s is not None and value.starts_s >= signal.forecast_from_s
    return value.estimated or (is_ahead and signal.kind != "price")


def _within(signal: GridSignal, since_s: float, until_s: float) -> Iterator[tuple[SignalValue, float]]:
    return ((value, end_s) for value, end_s in _with_ends(signal) if end_s > since_s and value.starts_s < until_s)


def _with_ends(signal: GridSignal) -> Iterator[tuple[SignalValue, float]]:
    """Yield each value and when it ceases to hold [Unix s]: with the next, after an hour or a usual step at most."""
    values = sorted(signal.values, key=lambda value: value.starts_s)
    steps_s = [later.starts_s - value.starts_s for value, later in pairwise(values)]
    most_s = max(HOUR_S, median(steps_s)) if steps_s else HOUR_S
    for value, step_s in zip(values, [*steps_s, *(steps_s[-1:] or [HOUR_S])], strict=False):
        yield value, value.starts_s + min(step_s, most_s)


def signal_sentence(signal: GridSignal, *, now_s: float, zone: tzinfo) -> str:
    """Return the signal now, and the highest and lowest hours ahead, as a sentence."""
    worst, best = ("Dearest", "cheapest") if signal.kind == "price" else ("Dirtiest", "cleanest")
    ahead = [value for value, end_s in _with_ends(signal) if end_s > now_s and value.starts_s < now_s + AHEAD_S]
    now = "Not known now." if signal.value is None else f"Now {value_text(signal.value, signal.unit)}."
    if len(ahead) < 2:  # noqa: PLR2004 — one is no choice
        return f"{now} What comes is not known."
    highest, lowest = (pick(ahead, key=lambda value: value.value) for pick in (max, min))
    if highest.value == lowest.value:
        return f"{now} The same for as long as is known."
    ends = (
        f"about {value_text(it.value, signal.unit)} at {moment_text(max(it.starts_s, now_s), now_s, zone)}"
        for it in (highest, lowest)
    )
    return f"{now} {worst} {next(ends)}, {best} {next(ends)}."


def value_text(value: float, unit: str) -> str:
    """Return a value of the grid with its unit."""
    return typeset(f"{number_text(value)} {unit}")


def planned_power(schedules: Iterable[RunSchedule], *, now_s: float, until_s: float) -> tuple[list[float], list[float]]:
    """Return the power planned for all runs together, by quarter-hours, as far as all plans reach.

    A run that ends within its plan needs nothing from then on. The first list is when the power changes and, after
    that, when the last one ends [Unix s]; the second the powers [W].
    """
    plans = [plan for plan in schedules if plan.entries and plan.until_s > now_s]
    if not plans:
        return [], []
    end_s = min((until_s, *(plan.until_s for plan in plans if not _ends_there(plan))))
    first = now_s // STEP_S + 1
    starts_s = [now_s, *(STEP_S * number for number in range(int(first), math.ceil(end_s / STEP_S)))]
    powers_w = [0.0] * len(starts_s)
    for plan in plans:
        for place, power_w in enumerate(_powers_at(plan, starts_s)):
            powers_w[place] += power_w
    changes = [place for place, power_w in enumerate(powers_w) if not place or power_w != powers_w[place - 1]]
    return [*(starts_s[place] for place in changes), end_s], [powers_w[place] for place in changes]


def _ends_there(plan: RunSchedule) -> bool:
    return plan.expected_end_s is not None and plan.expected_end_s <= plan.until_s + 1.0


def _powers_at(plan: RunSchedule, starts_s: Iterable[float]) -> Iterator[float]:
    place = 0
    for at_s in starts_s:
        while place + 1 < len(plan.entries) and plan.entries[place + 1].starts_s <= at_s:
            place += 1
        yield plan.entries[place].power_w if at_s < plan.until_s else 0.0


def without_overhead(schedule: RunSchedule, record: RunEnergy | None) -> RunSchedule:
    """Return a plan with the power of its GPUs alone: it weighs the rest of the machine and the building, too."""
    host_power_w, pue = (record.host_power_w or 0.0, record.pue or 1.0) if record is not None else (0.0, 1.0)
    if not host_power_w and pue == 1:
        return schedule
    entries = [
        msgspec.structs.replace(entry, power_w=max(entry.power_w / pue - host_power_w, 0.0))
        for entry in schedule.entries
    ]
    return msgspec.structs.replace(schedule, entries=entries)


def power_panel(
    drawn: Sequence[MeanPower],
    starts_s: Sequence[float],
    powers_w: Sequence[float],
    *,
    whose: str,
    now_s: float,
    is_named: bool,
) -> Panel:
    """Return the power that was drawn, by quarter-hours, and the one that is planned.

    Args:
        drawn: in the order of their times; none: none is known.
        starts_s: when the planned power changes and, after that, when the plan ends [Unix s].
        powers_w: the planned powers [W]; none: there is no plan.
        whose: of what: "its GPUs".
        now_s: the time [Unix s].
        is_named: whether the line at now has its name.
    """
    is_large = max((*powers_w, *(power.power_w for power in drawn))) >= 1e3  # noqa: PLR2004 — a kilowatt
    size, unit = (1e3, "kW") if is_large else (1.0, "W")
    marks: list[Mark] = [_now(now_s, is_named=is_named)]
    if drawn:
        steps = list(_drawn_steps(drawn, now_s))
        xs, ys = [at_s for at_s, _ in steps], [power_w / size for _, power_w in steps]
        marks.append(Line(name="drawn", xs=xs, ys=ys, colour="power", is_stepped=True))
    if powers_w:
        ys = [power_w / size for power_w in powers_w]
        planned = Line(name="planned", xs=starts_s, ys=ys, colour="power", dash="dashed", is_stepped=True)
        marks.append(replace(planned, is_filled=True))
    return Panel(axis=NumberAxis(label=f"{unit} of {whose}", has_zero=True), marks=marks, height_em=7.0)


def _drawn_steps(drawn: Sequence[MeanPower], now_s: float) -> Iterator[tuple[float, float]]:
    """Yield when the power changes, and to which; NaN where it is not known for a while."""
    end_s = drawn[0].starts_s
    for starts_s, power_w, _ in drawn:
        if starts_s > end_s:
            yield end_s, math.nan
        yield starts_s, power_w
        end_s = min(starts_s + STEP_S, now_s)
    yield end_s, math.nan


def _now(now_s: float, *, is_named: bool = True) -> Rule:
    return Rule(name="now" if is_named else "", value=now_s, axis="x", colour="now")
