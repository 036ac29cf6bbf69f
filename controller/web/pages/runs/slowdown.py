"""How much slower than at full power a run has been since its start, and is expected to be, as a chart."""

import math
from collections.abc import Iterator, Sequence
from datetime import tzinfo
from itertools import pairwise
from typing import Final, NamedTuple

from controller.history.energy_history.reading import RunQuarter
from controller.history.energy_history.report import Entry
from controller.web.charts.marks import Band, Chart, Line, Mark, NumberAxis, Panel, Rule, TimeAxis
from controller.web.pages.plan_chart import STEP_S
from publishers.messages.reports import RunSchedule

_SAME_END_S: Final = 1.0


class Slowdown(NamedTuple):
    """How many times as long as at full power a run has taken until a time [Unix s]."""

    time_s: float
    ratio: float


def slowdown_chart(
    quarters: Sequence[RunQuarter],
    entry: Entry,
    schedule: RunSchedule | None,
    *,
    heard_s: float,
    now_s: float | None,
    zone: tzinfo,
) -> Chart | None:
    """Return the chart; None: it is not known how much slower the run has been, or only of one moment.

    Args:
        quarters: what the run took by quarter-hours, and how long the same work takes at full power.
        entry: the same until it was heard last, with evidence.
        schedule: its plan; None: it has none.
        heard_s: when it was heard last [Unix s].
        now_s: the time [Unix s]; None: the run has ended.
        zone: of the axis.
    """
    if entry.slowdown_ratio is None or entry.slowdown_ci90_ratio is None:
        return None
    known = [*(it for it in slowdowns(quarters) if it.time_s < heard_s), Slowdown(heard_s, entry.slowdown_ratio)]
    ahead = [] if schedule is None or now_s is None else list(_expected(schedule, entry, heard_s))
    if len(known) + len(ahead) < 2:  # noqa: PLR2004 — one is no course
        return None
    return Chart(
        title="Slower since the start",
        words=f"How much longer than at full power its work has taken{', dashed: will have taken' if ahead else ''}.",
        x_axis=TimeAxis(zone=zone),
        panels=[
            Panel(
                axis=NumberAxis(label="% slower", has_zero=True),
                marks=list(_marks(known, ahead, entry, schedule, now_s)),
                height_em=9.0,
            )
        ],
    )


def slowdowns(quarters: Sequence[RunQuarter]) -> Iterator[Slowdown]:
    """Yield the slowdown of all until the end of each quarter-hour, from when on there is evidence of it."""
    compared_s = baseline_s = 0.0
    for quarter in quarters:
        compared_s += quarter.compared_duration_s or 0.0
        baseline_s += quarter.baseline_duration_s or 0.0
        if compared_s > 0 and baseline_s > 0:
            yield Slowdown(quarter.starts_s + quarter.length_s, compared_s / baseline_s)


def _expected(schedule: RunSchedule, entry: Entry, heard_s: float) -> Iterator[Slowdown]:
    """Yield the slowdown that a plan leads to; at the end of the run it is the one that the plan says."""
    active_s, baseline_s = entry.baseline_duration_s or 0.0, entry.baseline_duration_s or 0.0
    active_s *= entry.slowdown_ratio or 1.0
    ahead: list[Slowdown] = []
    starts_s = [max(each.starts_s, heard_s) for each in schedule.entries]
    for (begin_s, end_s), each in zip(pairwise([*starts_s, schedule.until_s]), schedule.entries, strict=True):
        n_steps = max(math.ceil((end_s - begin_s) / STEP_S), 0)
        for step in range(n_steps):
            step_s = (end_s - begin_s) / n_steps
            active_s, baseline_s = active_s + step_s, baseline_s + each.speed_ratio * step_s
            ahead.append(Slowdown(begin_s + (step + 1) * step_s, active_s / baseline_s))
    is_to_the_end = abs((schedule.expected_end_s or 0.0) - schedule.until_s) <= _SAME_END_S
    if ahead and is_to_the_end and schedule.expected_slowdown_ratio is not None:
        # The plan leaves the run's own pauses out: without that, its end would be told as two numbers.
        off_ratio = schedule.expected_slowdown_ratio - ahead[-1].ratio
        lasts_s = ahead[-1].time_s - heard_s
        ahead = [Slowdown(at_s, ratio + off_ratio * (at_s - heard_s) / lasts_s) for at_s, ratio in ahead]
    yield from ahead


def _marks(
    known: Sequence[Slowdown],
    ahead: Sequence[Slowdown],
    entry: Entry,
    schedule: RunSchedule | None,
    now_s: float | None,
) -> Iterator[Mark]:
    if now_s is not None:
        yield Rule(name="now", value=now_s, axis="x", colour="now")
    xs, ratios = zip(*known, strict=True)
    half_ratio = (entry.slowdown_ci90_ratio or 0.0) / (entry.slowdown_ratio or 1.0)  # errors add up, as in reports
    yield Line(name="so far", xs=xs, ys=[100 * (ratio - 1) for ratio in ratios], colour="power")
    yield Band(
        name="90 % interval",
        xs=xs,
        lowers=[100 * (ratio * (1 - half_ratio) - 1) for ratio in ratios],
        uppers=[100 * (ratio * (1 + half_ratio) - 1) for ratio in ratios],
        colour="power",
    )
    if ahead:
        xs, ratios = zip(known[-1], *ahead, strict=True)
        yield Line(name="expected", xs=xs, ys=[100 * (ratio - 1) for ratio in ratios], colour="power", dash="dashed")
    if schedule is not None and schedule.max_slowdown_ratio is not None:
        allowed = 100 * (schedule.max_slowdown_ratio - 1)
        yield Rule(name="allowed", value=allowed, axis="y", colour="prior", dash="dashed")
