"""A run: how far it is, what was saved, how much slower it is of how much is allowed, its plan, its curve."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from itertools import pairwise
from typing import Final

from controller.history.energy_history.reading import PastRun
from controller.history.energy_history.report import Part
from controller.history.energy_history.sentence import how_counted
from controller.runtime.markup import NO_BREAK, Markup, element, escaped, joined
from controller.web.charts.figure import render_chart
from controller.web.charts.marks import Chart, Line, Mark, NumberAxis, Panel, Points, Rule, TimeAxis
from controller.web.live.site_state import SILENT_S, RunState, SiteState
from controller.web.pages.gpus import gpu_views
from controller.web.pages.layout import moment_text, render_card, render_facts, render_page, render_state, render_time
from controller.web.pages.log import Asked, log_lines, render_lines
from controller.web.pages.overview import (
    first_signal,
    render_done,
    render_figures,
    render_order_links,
    render_pin,
    render_pinned_by,
    render_release,
    shown_end_s,
)
from controller.web.pages.plan_chart import AHEAD_S, BACK_S, signal_panel, signal_sentence
from controller.web.pages.runs import render_run_state, used_text, who
from controller.web.pages.savings import run_entry, slower_text, told_saving
from controller.web.pages.words import (
    NOT_KNOWN_YET,
    PINNED,
    is_pinned,
    percent_text,
    range_text,
    typeset,
    without_number_text,
)
from policies.vocabulary.units import duration_text
from publishers.messages.reasons import short_reason
from publishers.messages.reports import ProfileEntry, ProfileReport, RunEnergy, RunSchedule
from publishers.messages.topics import RunKey
from publishers.training.reporting.amounts import power_text

N_LINES: Final = 30
"""Of the log, on this page."""
_ORDERS: Final = {
    "pin": "pin its limit",
    "exempt": "exempt it",
    "pause": "pause it",
    "resume": "resume it",
    "budget": "change its time budget",
    "deadline": "set a deadline",
    "reset": "its own goal",
}
_PINNED_ORDERS: Final = {"release": "release its limit", **_ORDERS, "pin": "pin another limit"}
_SPLIT: Final = (
    ("better limit", "saved_better_limit_ratio", "saved_better_limit_ci90_ratio"),
    ("following the grid", "saved_following_ratio", "saved_following_ci90_ratio"),
    ("measuring", "saved_measuring_ratio", "saved_measuring_ci90_ratio"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run as its page shows it.

    Attributes:
        key: its names.
        run: what was heard; nothing of a run that only the history knows.
        record: the newest.
        past: what the history has; None: nothing, or it could not be asked.
        goes_on: whether it runs now, and is heard.
        takes_orders: whether people can order here what it does.
    """

    key: RunKey
    run: RunState
    record: RunEnergy | None
    past: PastRun | None
    goes_on: bool
    takes_orders: bool = False


def run_view(
    state: SiteState, key: RunKey, past: PastRun | None, now_s: float, *, takes_orders: bool = False
) -> RunView | None:
    """Return a run, by what was heard or else by the history; None: neither knows it."""
    run = state.runs.get(key)
    if run is None and past is None:
        return None
    record = run.energy if run is not None else None
    goes_on = run is not None and record is not None and record.state == "running" and run.is_heard(now_s)
    if record is None and past is not None:
        record = past.record
    return RunView(key=key, run=run or RunState(), record=record, past=past, goes_on=goes_on, takes_orders=takes_orders)


def render_run(view: RunView, state: SiteState, *, now_s: float, zone: tzinfo) -> str:
    """Return the page, HTML."""
    parts = [
        _progress(view, now_s, zone),
        _saved(view),
        _slower(view),
        *([_plan(view, state, now_s, zone), _now(view, state, now_s)] if view.goes_on else []),
        _curve(view),
        _decisions(view, state, now_s, zone),
        *_how_counted(view),
    ]
    return render_page(f"Run {view.key.job}", current="/runs", parts=parts, now_s=now_s, zone=zone)


def _progress(view: RunView, now_s: float, zone: tzinfo) -> Markup:
    return render_card(f"{view.key.job} / {view.key.run}", render_facts(_progress_facts(view, now_s, zone)))


def _progress_facts(view: RunView, now_s: float, zone: tzinfo) -> Iterator[tuple[str, Markup]]:
    record = view.record
    if record is None:
        yield "state", render_state("idle", NOT_KNOWN_YET)
        return
    is_silent = record.state == "running" and not view.goes_on
    yield "state", render_state("warning", "silent") if is_silent else render_run_state(record)
    yield "whose", who(view.key, record)
    if view.past is not None:
        yield "began", render_time(view.past.began_s, now_s, zone)
    if view.goes_on:
        yield "done", render_done(view.run, record, now_s, zone)
        later = later_text(record, view.run.schedule, now_s)
        if later:
            yield "later", escaped(later)
    elif view.past is not None or record.time_s is not None:
        heard_s = view.past.heard_s if view.past is not None else record.time_s or 0.0
        yield "last heard", render_time(heard_s, now_s, zone)
    is_told = view.goes_on and shown_end_s(view.run, record, now_s) is None  # by what it has done
    if record.n_gpus and not is_told:
        yield "so far" if view.goes_on else "took", escaped(typeset(duration_text(record.duration_s)))
    yield "used", escaped(used_text(view.key, record))
    if record.paused_s:
        yield "paused", escaped(typeset(duration_text(record.paused_s)))
    yield from _pin_facts(view, record, now_s, zone)


def _pin_facts(view: RunView, record: RunEnergy, now_s: float, zone: tzinfo) -> Iterator[tuple[str, Markup]]:
    """Yield who has pinned its limit, until when and why, for how long so far, and how that is ended."""
    if view.goes_on and is_pinned(record, now_s):
        so_far = f" · {typeset(duration_text(record.pinned_s))} so far" if record.pinned_s else ""
        yield "pinned", joined([render_pin(record, now_s, zone), escaped(so_far)])
        if not view.takes_orders:
            yield "to end it", joined([escaped("on its node: "), render_release(view.key)])
    if view.goes_on and view.takes_orders:
        is_held = is_pinned(record, now_s)
        yield "orders", render_order_links(view.key, _PINNED_ORDERS if is_held else _ORDERS)


def later_text(record: RunEnergy, schedule: RunSchedule | None, now_s: float) -> str:
    """Return how much later a run is expected to end than at full power, with its interval; "": not known."""
    if schedule is None or schedule.expected_end_s is None:
        return ""
    ratio, half = schedule.expected_slowdown_ratio, schedule.expected_slowdown_ci90_ratio
    if ratio is None or half is None or ratio - half <= 0:
        return ""
    active_s = record.duration_s - (record.paused_s or 0.0) + max(schedule.expected_end_s - now_s, 0.0)
    later_s, lower_s, upper_s = (active_s * (1 - 1 / end) for end in (ratio, ratio - half, ratio + half))
    between = " to ".join(typeset(_signed_duration(end_s)) for end_s in (lower_s, upper_s))
    what = "earlier" if later_s < 0 else "later"
    return f"{typeset(duration_text(abs(later_s)))} {what} than at full power ({between})"


def _signed_duration(duration_s: float) -> str:
    return f"{'-' if duration_s < 0 else ''}{duration_text(abs(duration_s))}"


def _saved(view: RunView) -> Markup:
    record = view.record
    entry = run_entry(view.key, record) if record is not None else None
    if record is None or entry is None or told_saving(entry) is None:
        content = [element("p", escaped(_capital(without_number_text(record))), class_="second")]
    else:
        content = [render_figures(entry), *_split(record)]
    title = "Saved so far" if view.goes_on else "Saved"
    return render_card(title, *content, width="wide", note="against the same work at the prior limits")


def _split(record: RunEnergy) -> Iterator[Markup]:
    """Yield what the saving is made of, where each part is known to a point."""
    parts = [(name, getattr(record, ratio), getattr(record, half)) for name, ratio, half in _SPLIT]
    if any(ratio is None or half is None for _, ratio, half in parts):
        return
    yield render_facts((name, escaped(_share_text(ratio, half))) for name, ratio, half in parts)


def _share_text(ratio: float, half: float) -> str:
    between = range_text(percent_text(ratio - half), percent_text(ratio + half))
    return f"{typeset(percent_text(ratio))} ({between})"


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _slower(view: RunView) -> Markup:
    record = view.record
    slower = slower_text(run_entry(view.key, record)) if record is not None else ""
    facts = [("so far" if view.goes_on else "in all", escaped(slower or without_number_text(record)))]
    facts += [(name, escaped(text)) for name, text in _course(view)]
    if record is not None and record.pinned_s:
        lasted = typeset(duration_text(record.pinned_s))
        facts.append(("pinned", escaped(f"for {lasted}, at a limit that a person chose, not the plan")))
    return render_card("Slower", render_facts(facts), width="narrow", note="than at full power")


def _course(view: RunView) -> Iterator[tuple[str, str]]:
    """Yield what is allowed and what is expected; over the budget early but on course is no alarm."""
    schedule = view.run.schedule
    if schedule is None or not view.goes_on:
        return
    budget_ratio = schedule.max_slowdown_ratio
    if budget_ratio is not None:
        yield "allowed", typeset(percent_text(budget_ratio - 1))
    ratio, half = schedule.expected_slowdown_ratio, schedule.expected_slowdown_ci90_ratio
    if ratio is None or half is None:
        yield "on course for", NOT_KNOWN_YET
        return
    yield "on course for", _share_text(ratio - 1, half)
    now_ratio = run_entry(view.key, view.record).slowdown_ratio if view.record is not None else None
    if budget_ratio is not None and now_ratio is not None and ratio - half <= budget_ratio < now_ratio:
        yield "so", "more than allowed until now, and expected to be made up for by the end"


def _now(view: RunView, state: SiteState, now_s: float) -> Markup:
    return render_card("Now", render_facts(_now_facts(view, state, now_s)), width="narrow")


def _now_facts(view: RunView, state: SiteState, now_s: float) -> Iterator[tuple[str, Markup]]:
    record = view.record
    if record is None:
        return
    limit_w = record.power_limit_w
    yield "limit", escaped(NOT_KNOWN_YET if limit_w is None else typeset(power_text(limit_w)))
    powers_w = [gpu.power_w for gpu in gpu_views(state, now_s) if gpu.job == view.key.job and gpu.power_w]
    is_whole = bool(powers_w) and len(powers_w) == record.n_gpus
    yield "its GPUs draw", escaped(typeset(power_text(sum(powers_w))) if is_whole else "not known")
    if record.speed_ratio is not None:
        yield "speed", escaped(f"{typeset(percent_text(record.speed_ratio))} of full speed")
    if record.reason == PINNED and (record.pinned_by or record.pinned_why):
        yield "why", joined([escaped("pinned "), render_pinned_by(record)])
        return
    yield "why", escaped(short_reason(record.reason) if record.reason else NOT_KNOWN_YET)
    if record.detail:
        yield "numbers used", element("details", element("summary", escaped("show")), escaped(record.detail))


def _plan(view: RunView, state: SiteState, now_s: float, zone: tzinfo) -> Markup:
    """Return the plan below the signal, on one axis of time."""
    schedule, signal = view.run.schedule, first_signal(state)
    panels, words = [], []
    if signal is not None:
        panels.append(signal_panel(signal, since_s=now_s - BACK_S, until_s=now_s + AHEAD_S, now_s=now_s))
        words.append(f"{signal.zone}: {signal_sentence(signal, now_s=now_s, zone=zone)}")
    if schedule is not None and schedule.entries and schedule.until_s > now_s:
        panels.append(_limit_panel(schedule, _prior_w(view.record), now_s, is_named=not panels))
    elif view.record is not None and is_pinned(view.record, now_s):
        until = moment_text(view.record.pinned_until_s or 0.0, now_s, zone)
        words.append(f"A person has pinned its limit: it has no plan until {until}.")
    else:
        words.append("The run has no plan.")
    chart = Chart(
        title="The plan", words=" ".join(words), x_axis=TimeAxis(zone=zone), panels=panels, has_table=bool(panels)
    )
    return element("section", render_chart(chart, has_readout=True), class_="card")


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


def _curve(view: RunView) -> Markup:
    chart = curve_chart(view.run.profile, view.run.schedule, view.record)
    if chart is not None:
        return element("section", render_chart(chart, has_readout=True), class_="card wide")
    profile = view.run.profile
    text = _capital(NOT_KNOWN_YET if view.goes_on else "none is known: a curve is kept here for a day after its run")
    if profile is not None and profile.reason:
        text = f"Not measured: {short_reason(profile.reason)}."
    elif profile is not None and profile.state == "profiling":
        text = "It is being measured."
    return render_card("The curve", element("p", escaped(text), class_="second"), width="wide")


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


def _how_counted(view: RunView) -> Iterator[Markup]:
    record = view.record
    if record is not None and record.n_gpus:
        sentences = how_counted([Part(*view.key, record, {})])
        items = (element("li", escaped(sentence)) for sentence in sentences)
        yield render_card("How this was counted", element("ul", *items))


def _decisions(view: RunView, state: SiteState, now_s: float, zone: tzinfo) -> Markup:
    job = view.key.job
    since_s = now_s - view.record.duration_s - SILENT_S if view.record is not None else now_s
    changes = [change for change in reversed(state.decisions) if change.job == job and change.time_s >= since_s]
    lines = log_lines(changes)[:N_LINES] if view.goes_on else []
    asked = Asked(job=job)
    content = (
        render_lines(lines, asked, now_s=now_s, zone=zone)
        if lines
        else element("p", escaped("They are in the log." if not view.goes_on else "None yet."), class_="second")
    )
    note = f"about the job {job}{NO_BREAK}" if lines else ""
    return render_card("Decisions", content, note=note.strip(), link=(asked.path(), "in the log"))
