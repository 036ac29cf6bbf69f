"""What each measured limit of a run costs in time and saves in energy, as a chart."""

import math
from collections.abc import Sequence
from itertools import pairwise

from controller.web.charts.marks import Chart, Mark, NumberAxis, Panel, Points, Rule
from controller.web.pages.words import typeset
from publishers.messages.reports import ProfileEntry, ProfileReport, RunEnergy, RunSchedule
from publishers.training.reporting.amounts import power_text


def curve_chart(profile: ProfileReport | None, schedule: RunSchedule | None, record: RunEnergy | None) -> Chart | None:
    """Return what each measured limit costs in time and saves in energy; None: fewer than two are measured."""
    points = [
        point for point in (profile.points if profile else ()) if point.power_w > 0 and point.iterations_per_s > 0
    ]
    points.sort(key=lambda point: point.power_limit_w)
    if len(points) < 2:  # noqa: PLR2004 — one is no curve
        return None
    top = points[-1]
    xs, ys = ([100 * ratio_of(point, top) for point in points] for ratio_of in (_slower_ratio, _saved_ratio))
    x_halves, y_halves = zip(*(_halves(point, top) for point in points), strict=True)
    marks: list[Mark] = [
        Points(
            name="measured, with its 95 % interval",
            xs=xs,
            ys=ys,
            colour="power",
            lefts=[x - 100 * half for x, half in zip(xs, x_halves, strict=True)],
            rights=[x + 100 * half for x, half in zip(xs, x_halves, strict=True)],
            lowers=[y - 100 * half for y, half in zip(ys, y_halves, strict=True)],
            uppers=[y + 100 * half for y, half in zip(ys, y_halves, strict=True)],
            labels=[typeset(power_text(point.power_limit_w)) for point in points],
        )
    ]
    limits_w = [point.power_limit_w for point in points]
    present = _present(list(zip(limits_w, xs, ys, strict=True)), record.power_limit_w if record is not None else None)
    if present is not None:
        marks.append(Points(name="now", xs=[present[0]], ys=[present[1]], colour="now", shape="ring"))
    if schedule is not None and schedule.max_slowdown_ratio is not None:
        budget = 100 * (schedule.max_slowdown_ratio - 1)
        marks.append(Rule(name="allowed", value=budget, axis="x", colour="prior", dash="dashed"))
    top_text = typeset(power_text(top.power_limit_w))
    return Chart(
        title="The curve",
        words=f"For each limit, how much longer an iteration takes than at {top_text}, and how much less energy.",
        x_axis=NumberAxis(label="% slower"),
        panels=[Panel(axis=NumberAxis(label="% less energy for an iteration"), marks=marks)],
    )


def _slower_ratio(point: ProfileEntry, top: ProfileEntry) -> float:
    return top.iterations_per_s / point.iterations_per_s - 1


def _saved_ratio(point: ProfileEntry, top: ProfileEntry) -> float:
    return 1 - point.power_w / top.power_w * top.iterations_per_s / point.iterations_per_s


def _halves(point: ProfileEntry, top: ProfileEntry) -> tuple[float, float]:
    """Return the half-widths of both intervals, from relative errors, which are independent; NaN: not known."""
    if point is top:
        return 0.0, 0.0
    of_speed = math.hypot(*(_error_ratio(it.iterations_per_s_ci, it.iterations_per_s) for it in (point, top)))
    of_energy = math.hypot(of_speed, *(_error_ratio(it.power_ci_w, it.power_w) for it in (point, top)))
    return (1 + _slower_ratio(point, top)) * of_speed, (1 - _saved_ratio(point, top)) * of_energy


def _error_ratio(half: float | None, value: float) -> float:
    return math.nan if half is None else half / value


def _present(places: Sequence[tuple[float, float, float]], limit_w: float | None) -> tuple[float, float] | None:
    """Return where the present limit is, between its neighbours; None: beyond what is measured.

    `places` are limits [W], in their order, and where each is.
    """
    if limit_w is None:
        return None
    for (lower_w, *before), (upper_w, *after) in pairwise(places):
        if lower_w <= limit_w <= upper_w:
            share = (limit_w - lower_w) / (upper_w - lower_w) if upper_w > lower_w else 1.0
            x, y = (low + share * (high - low) for low, high in zip(before, after, strict=True))
            return x, y
    return None
