"""The plan of a run below the signal of the grid, on one axis of time, as a chart."""

import math
from collections.abc import Sequence
from datetime import tzinfo

from controller.history.energy_history.reading import RunQuarter, quarter_powers
from controller.web.charts.marks import Chart, Line, Mark, NumberAxis, Panel, Rule, TimeAxis
from controller.web.pages.layout import moment_text
from controller.web.pages.plan_chart import (
    AHEAD_S,
    BACK_S,
    planned_power,
    power_panel,
    signal_panel,
    signal_sentence,
    without_overhead,
)
from controller.web.pages.words import is_pinned
from publishers.messages.reports import GridSignal, RunEnergy, RunSchedule


def plan_chart_of_run(
    schedule: RunSchedule | None,
    record: RunEnergy | None,
    signal: GridSignal | None,
    *,
    quarters: Sequence[RunQuarter],
    now_s: float,
    zone: tzinfo,
) -> Chart:
    """Return the chart of 12 hours back and 24 ahead.

    Args:
        schedule: of the run; None: it has no plan.
        record: the newest of the run.
        signal: of the grid; None: none is known.
        quarters: what the run used, by quarter-hours.
        now_s: the time [Unix s].
        zone: of its axis.
    """
    panels, words = [], []
    if signal is not None:
        panels.append(signal_panel(signal, since_s=now_s - BACK_S, until_s=now_s + AHEAD_S, now_s=now_s))
        words.append(f"{signal.zone}: {signal_sentence(signal, now_s=now_s, zone=zone)}")
    has_plan = schedule is not None and bool(schedule.entries) and schedule.until_s > now_s
    drawn = [power for power in quarter_powers(quarters) if power.starts_s >= now_s - BACK_S]
    plans = [without_overhead(schedule, record)] if schedule is not None and has_plan else []
    starts_s, powers_w = planned_power(plans, now_s=now_s, until_s=now_s + AHEAD_S)
    if drawn or powers_w:
        panels.append(power_panel(drawn, starts_s, powers_w, whose="its GPUs", now_s=now_s, is_named=not panels))
    if schedule is not None and has_plan:
        panels.append(_limit_panel(schedule, _prior_w(record), now_s, is_named=not panels))
    elif record is not None and is_pinned(record, now_s):
        until = moment_text(record.pinned_until_s or 0.0, now_s, zone)
        words.append(f"A person has pinned its limit: it has no plan until {until}.")
    else:
        words.append("The run has no plan.")
    return Chart(
        title="The plan", words=" ".join(words), x_axis=TimeAxis(zone=zone), panels=panels, has_table=bool(panels)
    )


def _limit_panel(schedule: RunSchedule, prior_w: float | None, now_s: float, *, is_named: bool) -> Panel:
    entries = [
        entry
        for place, entry in enumerate(schedule.entries)
        if place + 1 == len(schedule.entries) or schedule.entries[place + 1].starts_s > now_s
    ]
    limits_w = []
    for entry in entries:
        share = entry.second_ratio or 0.0
        limit_w = (1 - share) * entry.power_limit_w + share * (entry.second_power_limit_w or entry.power_limit_w)
        limits_w.append(math.nan if (entry.paused_ratio or 0.0) >= 1 else limit_w)
    starts_s = [max(entry.starts_s, now_s) for entry in entries]
    marks: list[Mark] = [
        Rule(name="now" if is_named else "", value=now_s, axis="x", colour="now"),
        Line(
            name="planned limit",
            xs=[*starts_s, max(schedule.until_s, starts_s[-1])],
            ys=limits_w,
            colour="power",
            dash="dashed",
            is_stepped=True,
        ),
    ]
    if prior_w is not None:
        marks.append(Rule(name="prior limit", value=prior_w, axis="y", colour="prior", dash="dotted"))
    return Panel(axis=NumberAxis(label="W, limit of each GPU"), marks=marks, height_em=8.0)


def _prior_w(record: RunEnergy | None) -> float | None:
    return record.max_power_w / record.n_gpus if record and record.max_power_w and record.n_gpus else None
