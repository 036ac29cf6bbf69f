"""A run: how far it is, what was saved, how much slower it is of how much is allowed, its plan, its curve."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Final

from controller.history.energy_history.reading import PastRun, RunQuarter
from controller.history.energy_history.report import Part
from controller.history.energy_history.sentence import PART_NAMES, how_counted, worked_text
from controller.runtime.markup import NO_BREAK, Markup, element, escaped, joined
from controller.web.charts.figure import render_chart
from controller.web.live.site_state import SILENT_S, RunState, SiteState
from controller.web.pages.gpus import gpu_views
from controller.web.pages.layout import (
    moment_text,
    render_card,
    render_facts,
    render_order_links,
    render_page,
    render_state,
    render_time,
)
from controller.web.pages.log import Asked, log_lines, render_lines
from controller.web.pages.overview import (
    first_signal,
    pinned_subject,
    render_done,
    render_figures,
    render_pin,
    render_pinned_by,
    render_release,
    shown_end_s,
)
from controller.web.pages.runs.curve import curve_chart
from controller.web.pages.runs.plan import plan_chart_of_run
from controller.web.pages.runs.runs_page import render_run_state, used_text, who
from controller.web.pages.runs.slowdown import slowdown_chart
from controller.web.pages.savings import run_entry, slower_text, told_saving
from controller.web.pages.words import (
    NOT_KNOWN_YET,
    PINNED,
    is_pinned,
    percent_text,
    pin_cost_text,
    range_text,
    signed_duration_text,
    typeset,
    without_number_text,
)
from policies.vocabulary.units import duration_text
from publishers.messages.reasons import short_reason
from publishers.messages.reports import RunEnergy, RunSchedule
from publishers.messages.topics import RunKey
from publishers.training.reporting.amounts import power_text

N_LINES: Final = 30
"""Of the log, on this page."""
_ORDERS: Final = {
    "exempt": "exempt it",
    "pause": "pause it",
    "resume": "resume it",
    "budget": "change its time budget",
    "deadline": "set a deadline",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run as its page shows it.

    Attributes:
        key: its names.
        run: what was heard; nothing of a run that only the history knows.
        record: the newest.
        past: what the history has; None: nothing, or it could not be asked.
        goes_on: whether it runs now, and is heard.
        quarters: what it took and used, by quarter-hours; None: the history could not be asked.
        takes_orders: whether people can order here what it does.
    """

    key: RunKey
    run: RunState
    record: RunEnergy | None
    past: PastRun | None
    goes_on: bool
    quarters: Sequence[RunQuarter] | None = ()
    takes_orders: bool = False


def run_view(
    state: SiteState,
    key: RunKey,
    past: PastRun | None,
    now_s: float,
    *,
    quarters: Sequence[RunQuarter] | None = (),
    takes_orders: bool = False,
) -> RunView | None:
    """Return a run, by what was heard or else by the history; None: neither knows it."""
    run = state.runs.get(key)
    if run is None and past is None:
        return None
    record = run.energy if run is not None else None
    goes_on = run is not None and record is not None and record.state == "running" and run.is_heard(now_s)
    if record is None and past is not None:
        record = past.record
    return RunView(
        key=key,
        run=run or RunState(),
        record=record,
        past=past,
        goes_on=goes_on,
        quarters=quarters,
        takes_orders=takes_orders,
    )


def render_run(view: RunView, state: SiteState, *, now_s: float, zone: tzinfo) -> str:
    """Return the page, HTML."""
    parts = [
        _progress(view, state, now_s, zone),
        _saved(view, now_s),
        _slower(view),
        *([_plan(view, state, now_s, zone), _now(view, state, now_s)] if view.goes_on else []),
        _curve(view),
        *_slowdown(view, now_s, zone),
        _decisions(view, state, now_s, zone),
        *_how_counted(view),
    ]
    return render_page(f"Run {view.key.job}", current="/runs", parts=parts, now_s=now_s, zone=zone)


def _progress(view: RunView, state: SiteState, now_s: float, zone: tzinfo) -> Markup:
    return render_card(f"{view.key.job} / {view.key.run}", render_facts(_progress_facts(view, state, now_s, zone)))


def _progress_facts(view: RunView, state: SiteState, now_s: float, zone: tzinfo) -> Iterator[tuple[str, Markup]]:
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
    yield from _known_facts(view.key, record)
    yield from _goal_facts(view.run.schedule, now_s, zone)
    yield from _pin_facts(view, state, record, now_s, zone)


def _known_facts(key: RunKey, record: RunEnergy) -> Iterator[tuple[str, Markup]]:
    """Yield what is said of some runs alone: their work, and for how long they waited."""
    if worked := worked_text(run_entry(key, record), total_work=record.total_work):
        yield "work", escaped(worked)
    if record.paused_s:
        yield "paused", escaped(typeset(duration_text(record.paused_s)))


def _pin_facts(
    view: RunView, state: SiteState, record: RunEnergy, now_s: float, zone: tzinfo
) -> Iterator[tuple[str, Markup]]:
    """Yield who has pinned its limit, until when and why, for how long so far, and how that is ended."""
    if view.goes_on and is_pinned(record, now_s):
        so_far = f" · {typeset(duration_text(record.pinned_s))} so far" if record.pinned_s else ""
        yield "pinned", joined([render_pin(record, now_s, zone), escaped(so_far)])
        if not view.takes_orders:
            yield "to end it", joined([escaped("on its node: "), render_release(view.key, record)])
    if view.goes_on and view.takes_orders:
        is_held, orders = is_pinned(record, now_s), list[Markup]()
        if is_held:
            orders.append(render_order_links(pinned_subject(state, view.key, record), {"release": "release its limit"}))
        orders.append(render_order_links(view.key, dict(_orders(view, is_held=is_held))))
        yield "orders", joined(orders, " · ")


def _goal_facts(schedule: RunSchedule | None, now_s: float, zone: tzinfo) -> Iterator[tuple[str, Markup]]:
    """Yield the goal that a person has set, who, until when and why."""
    if schedule is None or schedule.goal_by is None:
        return
    goal = "another goal"
    if schedule.deadline_s is not None:
        goal = f"a deadline at {moment_text(schedule.deadline_s, now_s, zone)}"
    elif schedule.max_slowdown_ratio is not None:
        goal = f"a time budget of {typeset(percent_text(schedule.max_slowdown_ratio - 1))}"
        if schedule.budget_since_s is not None:
            goal += f", counted since {moment_text(schedule.budget_since_s, now_s, zone)},"
    until = "" if schedule.goal_until_s is None else f" until {moment_text(schedule.goal_until_s, now_s, zone)}"
    by, why = element("bdi", escaped(schedule.goal_by)), element("bdi", escaped(schedule.goal_why or ""))
    yield "goal", joined([escaped(f"{goal}{until}, set by "), by, escaped(": "), why])


def _orders(view: RunView, *, is_held: bool) -> Iterator[tuple[str, str]]:
    """Yield what can be ordered, and the words for it."""
    yield "pin", "pin another limit" if is_held else "pin its limit"
    yield from _ORDERS.items()
    if view.run.schedule is not None and view.run.schedule.goal_by is not None:
        yield "reset", "give its own goal back"


def later_text(record: RunEnergy, schedule: RunSchedule | None, now_s: float) -> str:
    """Return how much later a run is expected to end than at full power, with its interval; "": not known."""
    if schedule is None or schedule.expected_end_s is None:
        return ""
    ratio, half = schedule.expected_slowdown_ratio, schedule.expected_slowdown_ci90_ratio
    if ratio is None or half is None or ratio - half <= 0:
        return ""
    active_s = record.duration_s - (record.paused_s or 0.0) + max(schedule.expected_end_s - now_s, 0.0)
    later_s, lower_s, upper_s = (active_s * (1 - 1 / end) for end in (ratio, ratio - half, ratio + half))
    between = " to ".join(typeset(signed_duration_text(end_s)) for end_s in (lower_s, upper_s))
    what = "earlier" if later_s < 0 else "later"
    return f"{typeset(duration_text(abs(later_s)))} {what} than at full power ({between})"


def _saved(view: RunView, now_s: float) -> Markup:
    record = view.record
    entry = run_entry(view.key, record) if record is not None else None
    if record is None or entry is None or told_saving(entry) is None:
        content = [element("p", escaped(_capital(without_number_text(record))), class_="second")]
    else:
        content = [render_figures(entry), *_split(record)]
    expected = expected_text(view.run.schedule, record, now_s) if view.goes_on else ""
    content += [element("p", escaped(expected), class_="small")] if expected else []
    title = "Saved so far" if view.goes_on else "Saved"
    return render_card(title, *content, width="wide", note="against the same work at the prior limits")


def expected_text(schedule: RunSchedule | None, record: RunEnergy | None, now_s: float) -> str:
    """Return what a plan expects to save of the time that it tells, with its intervals; "": not known."""
    if schedule is None or record is None or schedule.until_s <= now_s:
        return ""
    of_signal = schedule.expected_saved_ratio, schedule.expected_saved_ci90_ratio
    of_energy = schedule.expected_saved_energy_ratio, schedule.expected_saved_energy_ci90_ratio
    signal = "CO₂e" if record.carbon_g is not None else "cost" if record.cost is not None else ""
    told = {signal: of_signal, "energy": of_energy}
    shares = [
        f"{_share_text(ratio, half)} of {name}"
        for name, (ratio, half) in told.items()
        if name and ratio is not None and half is not None
    ]
    if not shares:
        return ""
    lasts, saved = typeset(duration_text(schedule.until_s - now_s)), " and ".join(shares)
    return f"The plan for the coming {lasts} is expected to save {saved}."


def _split(record: RunEnergy) -> Iterator[Markup]:
    """Yield what the saving is made of, where each part is known to a point."""
    parts = [
        (name, getattr(record, f"saved_{part}_ratio"), getattr(record, f"saved_{part}_ci90_ratio"))
        for part, name in PART_NAMES.items()
    ]
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
        cost = pin_cost_text(record)
        facts += [("so it took", escaped(cost))] if cost else []
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
    chart = plan_chart_of_run(
        view.run.schedule,
        view.record,
        first_signal(state),
        quarters=view.quarters or (),
        now_s=now_s,
        zone=zone,
    )
    return element("section", render_chart(chart, has_readout=True), class_="card")


def _slowdown(view: RunView, now_s: float, zone: tzinfo) -> Iterator[Markup]:
    """Yield the course of the slowdown, where it is known how slow the run has been."""
    if view.record is None:
        return
    entry = run_entry(view.key, view.record)
    if view.quarters is None and entry.slowdown_ci90_ratio is not None:
        text = element("p", escaped("Not known: the history cannot be read now."), class_="second")
        yield render_card("Slower since the start", text)
        return
    chart = slowdown_chart(
        view.quarters or (),
        entry,
        view.run.schedule if view.goes_on else None,
        heard_s=view.record.time_s or now_s,
        now_s=now_s if view.goes_on else None,
        zone=zone,
    )
    if chart is not None:
        yield element("section", render_chart(chart, has_readout=True), class_="card")


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
