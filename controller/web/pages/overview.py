"""The first page: what is wrong, what was saved today, power now, GPUs, the grid and the plan, decisions, runs."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import tzinfo
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from controller.history.energy_history.reading import MeanPower
from controller.history.energy_history.report import Entry
from controller.runtime.markup import NO_BREAK, NOTHING, Markup, element, escaped, joined
from controller.runtime.natural_order import natural_key
from controller.web.charts.document import render_cells
from controller.web.charts.figure import render_chart
from controller.web.live.element_ids import SITE_BAR, SITE_LIMITS, SITE_POWER, SITE_POWER_UNIT
from controller.web.live.event_stream import LiveValues
from controller.web.live.saved_sums import Sums
from controller.web.live.site_state import GpuKey, RunState, SiteState, Subject
from controller.web.pages.gpus import (
    MEASURING,
    NOBODY,
    GpuView,
    gpu_views,
    limit_sums_w,
    limits_text,
    live_values,
    render_tiles,
)
from controller.web.pages.layout import (
    moment_text,
    render_bar,
    render_card,
    render_facts,
    render_order_links,
    render_page,
    render_state,
    render_time,
)
from controller.web.pages.log import Line, line_limits, line_reason, log_lines
from controller.web.pages.plan_chart import plan_chart, without_overhead
from controller.web.pages.savings import run_entry, savings_of, slower_text, split_of, told_saving
from controller.web.pages.words import (
    NOT_KNOWN_YET,
    PINNED,
    is_pinned,
    percent_text,
    pin_cost_text,
    range_text,
    release_words,
    run_path,
    run_words,
    typeset,
    without_number_text,
)
from policies.vocabulary.units import duration_text
from publishers.messages.reasons import short_reason
from publishers.messages.reports import GridSignal, LimitChange, RunEnergy
from publishers.messages.topics import RunKey
from publishers.training.reporting.amounts import power_text

MAX_TILES: Final = 64
MAX_DECISIONS: Final = 8
MAX_RUNS: Final = 20
MAX_ALERTS: Final = 10
_SAME_W: Final = 1.0


class Overview(NamedTuple):
    """What the page is about.

    Attributes:
        state: what is known of the site.
        sums: what was saved; None: not known.
        sums_fault: why not, a sentence; "": not yet.
        troubles: what keeps this process from its work, a sentence each.
        powers: what all runs drew together in the last hours, by quarter-hours.
        takes_orders: whether pins can be ended here.
    """

    state: SiteState
    sums: Sums | None
    sums_fault: str = ""
    troubles: Sequence[str] = ()
    powers: Sequence[MeanPower] = ()
    takes_orders: bool = False


def render_overview(overview: Overview, *, now_s: float, zone: tzinfo) -> str:
    """Return the page, HTML."""
    views = gpu_views(overview.state, now_s)
    running = running_runs(overview.state, now_s)
    parts = [
        *_alerts(overview, views, running, now_s, zone),
        _saved_today(overview, n_running=len(running)),
        _power_now(overview.state, views, running),
        _gpus(views),
        _grid_and_plan(overview, running, now_s, zone),
        _decisions(overview.state, now_s, zone),
        _runs(running, now_s, zone),
    ]
    return render_page("Overview", current="/", parts=parts, now_s=now_s, zone=zone, shows_title=False)


def running_runs(state: SiteState, now_s: float) -> dict[RunKey, RunState]:
    """Return the runs that go on, by user, job and run."""
    return {
        key: run
        for key, run in sorted(state.runs.items(), key=lambda item: [natural_key(name) for name in item[0]])
        if run.energy is not None and run.energy.state == "running" and not run.energy.final and run.is_heard(now_s)
    }


def _alerts(
    overview: Overview, views: Sequence[GpuView], running: dict[RunKey, RunState], now_s: float, zone: tzinfo
) -> Iterator[Markup]:
    """Yield a strip of what somebody should look at, if there is anything: what is wrong, then what is pinned."""
    wrong = [
        render_state("warning", text) for text in (*overview.troubles, *_wrong(overview.state, views, now_s, zone))
    ]
    found = [*wrong, *_pins(overview, running, now_s, zone)]
    if not found:
        return
    shown = [element("li", thing) for thing in found[:MAX_ALERTS]]
    if len(found) > MAX_ALERTS:
        shown.append(element("li", escaped(f"and {len(found) - MAX_ALERTS} more")))
    things = "1 thing" if len(found) == 1 else f"{len(found)} things"
    heading = element("h2", escaped(f"{things} to look at"))
    yield element(
        "section", heading, element("ul", *shown, class_="lines"), class_=f"card alert{'' if wrong else ' c-pinned'}"
    )


def _pins(overview: Overview, running: dict[RunKey, RunState], now_s: float, zone: tzinfo) -> Iterator[Markup]:
    """Yield each pin: at which limit, until when, by whom and why; how its run stands, and how the pin is ended."""
    for key, run in running.items():
        energy = run.energy
        if energy is None or not is_pinned(energy, now_s):
            continue
        is_in_force = energy.reason == PINNED and energy.power_limit_w is not None
        limit = f" at {typeset(power_text(energy.power_limit_w or 0.0))}" if is_in_force else ""
        who = (element("bdi", escaped(key.job)), escaped(" of "), element("bdi", escaped(key.user)))
        pin = element(
            "span",
            element("a", *who, href=run_path(key)),
            escaped(f" is pinned{limit}{' with one of its GPUs' if energy.pinned_gpu_uuid else ''} "),
            render_pin(energy, now_s, zone),
            class_="state pinned",
        )
        unmet = f"Not in force: {short_reason(energy.reason or '')}." if not is_in_force and energy.reason else ""
        end = "To end it:" if overview.takes_orders else "To end it, on its node:"
        cost = pin_cost_text(energy)
        taken = f"Its pins so far: {cost}." if cost else ""
        words = " ".join(filter(None, (unmet, _so_far(key, energy), taken, end)))
        release = render_release(key, energy)
        if overview.takes_orders:
            release = render_order_links(pinned_subject(overview.state, key, energy), {"release": "release it"})
        yield joined([pin, element("div", escaped(f"{words} "), release, class_="note")])


def render_pin(energy: RunEnergy, now_s: float, zone: tzinfo) -> Markup:
    """Return until when a limit is pinned, by whom and why, as far as that is said."""
    until = [escaped("until "), render_time(energy.pinned_until_s or 0.0, now_s, zone)]
    return joined([*until, escaped(" " if energy.pinned_by else ""), render_pinned_by(energy)])


def render_pinned_by(energy: RunEnergy) -> Markup:
    """Return by whom a limit is pinned and why, as far as that is said."""
    parts = [
        joined([escaped(before), element("bdi", escaped(text))])
        for before, text in (("by ", energy.pinned_by), (": ", energy.pinned_why))
        if text
    ]
    return joined(parts)


def render_release(key: RunKey, energy: RunEnergy) -> Markup:
    """Return the command that ends a pin."""
    words = release_words(key, energy.pinned_gpu_uuid)
    return element("code", joined([element("span", escaped(each)) for each in words], " "))


def pinned_subject(state: SiteState, key: RunKey, energy: RunEnergy) -> Subject:
    """Return what is to be released: the GPU that is pinned, with the run, or the run."""
    gpus = (gpu for gpu in state.gpus if energy.pinned_gpu_uuid is not None and gpu.gpu_uuid == energy.pinned_gpu_uuid)
    return next(gpus, key)


def _so_far(key: RunKey, energy: RunEnergy) -> str:
    """Return what a run has saved so far, and how much slower it is; "" without evidence."""
    entry = run_entry(key, energy)
    told, slower = told_saving(entry), slower_text(entry)
    return f"Its run so far: {told.saved_text} saved, {slower} slower." if told is not None and slower else ""


def _wrong(state: SiteState, views: Sequence[GpuView], now_s: float, zone: tzinfo) -> Iterator[str]:
    for name, node in sorted(state.nodes.items(), key=lambda item: natural_key(item[0])):
        if node.status.state != "online":
            n_gpus = len(node.status.gpus)
            gpus = f": {n_gpus} GPUs are not known" if n_gpus > 1 else ": its GPU is not known" if n_gpus else ""
            yield f"The controller of {name} is offline{gpus}."
    for view in views:
        if view.is_wrong:
            is_since = view.power_w is None and view.mark == "error" and view.since_s is not None
            since = f" since {moment_text(view.since_s or 0.0, now_s, zone)}" if is_since else ""
            yield f"GPU {view.name}: {view.why}{since}."
    for (zone_name, _), signal in sorted(state.grid.items()):
        if signal.state == "stale":
            yield (
                f"The signal of {zone_name} ({signal.source}) ended {duration_text(signal.age_s)} ago:"
                " plans do without it."
            )


def _saved_today(overview: Overview, *, n_running: int) -> Markup:
    sums = overview.sums
    if sums is None:
        text = f"Not known: {overview.sums_fault}" if overview.sums_fault else f"{NOT_KNOWN_YET.capitalize()}."
        content = [element("p", escaped(text), class_="second")]
    else:
        is_told = told_saving(sums.today) is not None
        content = [render_figures(sums.today) if is_told else _no_saving(sums.today, n_running)]
        longer = " · ".join(
            f"{name} {told.saved_text}"
            for name, entry in (("In 7 days", sums.week), ("this month", sums.month))
            if (told := told_saving(entry)) is not None
        )
        parts = split_of(sums.today)
        if parts:
            content.append(render_facts((name, escaped(part.saved_text)) for name, part in parts))
        content += [element("p", escaped(longer), class_="small")] if longer else []
    note = "since midnight, against the same work at the prior limits"
    return render_card("Saved today", *content, width="wide", note=note, link=("/history", "History"))


def _no_saving(today: Entry, n_running: int) -> Markup:
    text = f"{NOT_KNOWN_YET.capitalize()}." if n_running else "No run has used anything today yet."
    if today.runs:
        runs = "1 run" if today.runs == 1 else f"{today.runs} runs"
        text = f"Not known yet: {runs} today, and no evidence yet of what was saved. It takes half an hour of a run."
    return element("p", escaped(text), class_="second")


def render_figures(today: Entry) -> Markup:
    """Return what was saved of each quantity, with its interval, and the time that it took."""
    figures = []
    for saving in savings_of(today):
        if saving.saved is None:
            continue
        number, _, unit = saving.amount.partition(NO_BREAK)
        kind = "big c-saved" if saving.saved >= 0 else "big"
        of = ""
        if saving.saved_ratio is not None and saving.baseline is not None:
            share, baseline = percent_text(saving.saved_ratio), saving.text_of(saving.baseline)
            of = f"{typeset(share)} of {typeset(baseline)}"
        figures.append(
            element(
                "div",
                element("p", escaped(number), escaped(" "), element("small", escaped(unit)), class_=kind),
                element("p", escaped(of)),
                element("p", escaped(f"between {saving.interval.replace(' to ', ' and ')}"), class_="note"),
            )
        )
    slower = slower_text(today)
    taken = f"Price paid: {slower} more time." if slower else ""
    known = ""
    if today.runs != today.measured_runs:
        known = f"Known of {today.measured_runs} of {today.runs} runs."
    note = " ".join(filter(None, (taken, known)))
    return joined([element("div", *figures, class_="figures"), element("p", escaped(note))])


def _power_now(state: SiteState, views: Sequence[GpuView], running: dict[RunKey, RunState]) -> Markup:
    answering = [view for view in views if view.power_w is not None]
    nothing = "No GPU answers." if views else "No GPU has been heard yet."
    content = list(_power_of(answering, running)) if answering else [element("p", escaped(nothing))]
    health = element("ul", *(element("li", line) for line in _health(state, views)), class_="lines")
    return render_card("Power now", *content, health, width="narrow")


def _power_of(answering: Sequence[GpuView], running: dict[RunKey, RunState]) -> Iterator[Markup]:
    """Yield what GPUs draw, what that would be at their prior limits, and both sums of limits where each is known."""
    power_w = sum(view.power_w or 0.0 for view in answering)
    number, _, unit = typeset(power_text(power_w)).partition(NO_BREAK)
    shown = element("span", escaped(number), id=SITE_POWER)
    yield element("p", shown, escaped(" "), element("small", escaped(unit), id=SITE_POWER_UNIT), class_="big c-power")
    ends_w = full_power_w(answering, running)
    if ends_w is not None:
        between = range_text(*map(power_text, ends_w)).replace(" to ", " and ")
        yield element("p", escaped(f"would be between {between} at the prior limits"))
    sums_w = limit_sums_w(answering)
    if sums_w is not None:
        limits_w, priors_w = sums_w
        yield render_bar("", drawn_ratio=power_w / priors_w, mark_ratio=limits_w / priors_w, id_=SITE_BAR)
        yield element("p", escaped(limits_text(*sums_w)), class_="note", id=SITE_LIMITS)


def live_overview(state: SiteState, now_s: float) -> LiveValues:
    """Return what pages show now of GPUs; the shape is another one with each job, state, reason and plan."""
    views = gpu_views(state, now_s)
    values = live_values(views, now_s)
    plans = [
        (key, run.schedule.time_s if run.schedule else None, _pin_of(run, now_s))
        for key, run in running_runs(state, now_s).items()
    ]
    shown = [(view.key, view.mark, view.job, view.why, view.prior_w) for view in views]
    return msgspec.structs.replace(values, shape=f"{crc32(repr((shown, plans)).encode()):08x}")


def _pin_of(run: RunState, now_s: float) -> tuple[object, ...] | None:
    energy = run.energy
    if energy is None or not is_pinned(energy, now_s):
        return None
    return energy.pinned_until_s, energy.pinned_by, energy.pinned_why, energy.reason, energy.power_limit_w


def full_power_w(answering: Sequence[GpuView], running: dict[RunKey, RunState]) -> tuple[float, float] | None:
    """Return between which powers all GPUs would draw at their prior limits, by the curves of their runs [W].

    None: not known. What is unknown of each curve is added up.
    """
    without_run_w = sum(view.power_w or 0.0 for view in answering if view.job is None)
    of_runs = [(run.energy.n_gpus, _full_power_w(run)) for run in running.values() if run.energy and run.energy.n_gpus]
    known = [ends_w for _, ends_w in of_runs if ends_w is not None]
    n_busy = sum(view.job is not None for view in answering)
    if not known or len(known) < len(of_runs) or sum(n_gpus for n_gpus, _ in of_runs) != n_busy:
        return None
    lowers_w, uppers_w = zip(*known, strict=True)
    return without_run_w + sum(lowers_w), without_run_w + sum(uppers_w)


def _full_power_w(run: RunState) -> tuple[float, float] | None:
    """Return the ends of the interval of a run's power at its highest limit, if that is the prior one [W]."""
    if run.profile is None or run.energy is None or not run.profile.points or not run.energy.max_power_w:
        return None
    top = max(run.profile.points, key=lambda point: point.power_limit_w)
    prior_w = run.energy.max_power_w / run.energy.n_gpus
    if abs(top.power_limit_w - prior_w) > _SAME_W or top.power_ci_w is None:
        return None
    return max(top.power_w - top.power_ci_w, 0.0), top.power_w + top.power_ci_w


def _health(state: SiteState, views: Sequence[GpuView]) -> Iterator[Markup]:
    n_answering = sum(view.power_w is not None for view in views)
    n_online = sum(node.status.state == "online" for node in state.nodes.values())
    is_all = n_answering == len(views) and n_online == len(state.nodes)
    if views or state.nodes:
        yield render_state(
            "ok" if is_all else "error",
            f"{n_answering} of {len(views)} GPUs answer, {n_online} of {len(state.nodes)} nodes",
        )
    signal = first_signal(state)
    if signal is None:
        yield render_state("idle", "No signal of the grid")
    else:
        age = "" if signal.state == "fresh" else f", ended {duration_text(signal.age_s)} ago"
        text = {"fresh": "Signal fresh", "held": "Signal held", "forecast": "Signal forecast"}.get(
            signal.state, "Signal too old"
        )
        yield render_state(
            "ok" if signal.state == "fresh" else "warning", f"{text}: {signal.zone}, {signal.source}{age}"
        )
    n_pinned = sum(view.mark == "pinned" for view in views)
    if n_pinned:
        yield render_state("pinned", f"{n_pinned} GPUs pinned" if n_pinned > 1 else "1 GPU pinned")
    n_wrong = sum(view.mark == "warning" for view in views)
    if n_wrong:
        yield render_state("warning", f"{n_wrong} GPU limits to look at" if n_wrong > 1 else "1 GPU limit to look at")
    elif views:
        limit = "limit" if is_all else "limit that is known"
        yield render_state("ok", f"No {limit} is stranded or set by others")


def first_signal(state: SiteState) -> GridSignal | None:
    """Return the signal that is shown first: carbon before price, by the names of zones."""
    by_kind = sorted(state.grid.items(), key=lambda item: (item[0][1] != "carbon", item[0][0]))
    return next((signal for _, signal in by_kind), None)


def _gpus(views: Sequence[GpuView]) -> Markup:
    if not views:
        return render_card("GPUs", element("p", escaped(NOBODY), class_="second"))
    note = "bar: drawn · mark: limit · whole width: prior limit"
    left_out = len(views) - MAX_TILES
    more = element("p", escaped(f"and {left_out} more"), class_="note") if left_out > 0 else NOTHING
    return render_card("GPUs", render_tiles(views[:MAX_TILES]), more, note=note, link=("/gpus", "all GPUs"))


def _grid_and_plan(overview: Overview, running: dict[RunKey, RunState], now_s: float, zone: tzinfo) -> Markup:
    chart = plan_chart(
        first_signal(overview.state),
        [without_overhead(run.schedule, run.energy) for run in running.values() if run.schedule is not None],
        drawn=overview.powers,
        n_running=len(running),
        now_s=now_s,
        zone=zone,
    )
    return element("section", render_chart(chart, has_readout=True), class_="card wide")


def _decisions(state: SiteState, now_s: float, zone: tzinfo) -> Markup:
    lines = decision_lines(state.decisions)[:MAX_DECISIONS]
    found = [element("li", *_decision(line, now_s, zone)) for line in lines]
    if not found:
        found = [element("li", escaped("There are none."), class_="second")]
    return render_card(
        "Last decisions", element("ul", *found, class_="decisions"), width="narrow", link=("/log", "all")
    )


def decision_lines(decisions: Iterable[LimitChange]) -> list[Line]:
    """Return the lines of the log about changes of limits, newest first, without what is only measured.

    A series of measurements is told once; of a look what comes of it, if the plan is another one then.
    """
    return log_lines(_told(decisions)[::-1])


def _told(decisions: Iterable[LimitChange]) -> list[LimitChange]:
    """Return the changes without looks and without repeated measurements, in the order of their times."""
    told: list[LimitChange] = []
    newest: dict[GpuKey, LimitChange] = {}
    measuring: dict[GpuKey, LimitChange] = {}
    for change in decisions:
        key = GpuKey(change.node or "", change.gpu_uuid or "")
        before = newest.get(key)
        if change.reason in MEASURING:
            measuring.setdefault(key, change)
            continue
        measured = measuring.pop(key, None)
        if before is not None and _plan_of(before) == _plan_of(change):
            continue
        if measured is not None and (before is None or measured.reason == "profiling"):
            told.append(measured)
        was_look = measured is not None and before is not None
        from_w = before.power_limit_w if before is not None and was_look else change.previous_power_limit_w
        newest[key] = msgspec.structs.replace(change, previous_power_limit_w=from_w)
        told.append(newest[key])
    return sorted([*told, *measuring.values()], key=lambda change: change.time_s)


def _plan_of(change: LimitChange) -> tuple[object, ...]:
    return change.job, change.reason, change.power_limit_w


def _decision(line: Line, now_s: float, zone: tzinfo) -> Iterator[Markup]:
    change = line.newest
    yield element("b", render_time(change.time_s, now_s, zone))
    yield joined([escaped(" "), element("bdi", escaped(change.job or "no run")), escaped(" ")])
    yield element("span", escaped(f"{change.node} {'+'.join(line.gpus)}"), class_="note")
    why = element("span", escaped(f" · {line_reason(line, now_s, zone)}"), class_="second")
    yield element("div", escaped(line_limits(line)), why)


def _runs(running: dict[RunKey, RunState], now_s: float, zone: tzinfo) -> Markup:
    if not running:
        return render_card(
            "Runs", element("p", escaped("No run goes on."), class_="second"), link=("/runs", "all runs")
        )
    headings = ("run", "done", f"slower so far (90{NO_BREAK}%)", f"saved so far (90{NO_BREAK}%)")
    rows = [tuple(run_cells(key, run, now_s, zone)) for key, run in list(running.items())[:MAX_RUNS]]
    left_out = len(running) - MAX_RUNS
    more = element("p", escaped(f"and {left_out} more"), class_="note") if left_out > 0 else NOTHING
    table = render_cells(headings, rows, are_names=(True, True, False, False))
    return render_card("Runs", table, more, link=("/runs", "all runs"))


def run_cells(key: RunKey, run: RunState, now_s: float, zone: tzinfo) -> Iterator[Markup]:
    """Yield the cells of a run that goes on: name, done, slower so far, saved so far."""
    energy = run.energy
    if energy is None:
        return
    link = element("a", element("bdi", escaped(key.job)), href=run_path(key))
    user, words = element("bdi", escaped(key.user)), escaped(f" · {run_words(key, energy)}")
    who = element("span", escaped(" "), user, words, class_="note")
    yield element("span", link, who)
    yield render_done(run, energy, now_s, zone)
    entry = run_entry(key, energy)
    slower = slower_text(entry)
    yield _number(*(slower.partition(" (") if slower else (without_number_text(energy),)), _budget(run))
    told = told_saving(entry)
    yield _number(*(told.saved_text.partition(" (") if told is not None else (without_number_text(energy),)))


def _number(number: str, *interval: str) -> Markup:
    """Return a number, and smaller what belongs to it."""
    return element("span", escaped(number), element("span", escaped("".join(interval)), class_="note"))


def _budget(run: RunState) -> str:
    ratio = run.schedule.max_slowdown_ratio if run.schedule is not None else None
    return "" if ratio is None else f" of{NO_BREAK}{typeset(percent_text(ratio - 1))}"


def _is_measured(run: RunState) -> bool:
    return run.profile is not None and run.profile.state in {"waiting", "profiling"}


def shown_end_s(run: RunState, energy: RunEnergy, now_s: float) -> float | None:
    """Return when a run is expected to end [Unix s]; None: that is not shown, but how long it has run."""
    if _is_measured(run) or is_pinned(energy, now_s) or run.schedule is None:
        return None
    return run.schedule.expected_end_s


def render_done(run: RunState, energy: RunEnergy, now_s: float, zone: tzinfo) -> Markup:
    """Return how much of its time a run has done, and when it is expected to end."""
    if _is_measured(run):
        return render_state("measuring", f"measuring, {duration_text(energy.duration_s)} old")
    if is_pinned(energy, now_s):
        until = f"pinned until {moment_text(energy.pinned_until_s or 0.0, now_s, zone)}"
        so_far = escaped(f"{duration_text(energy.duration_s)} so far ")
        return element("span", so_far, render_state("pinned", until))
    end_s = shown_end_s(run, energy, now_s)
    if end_s is None:
        return escaped(f"{duration_text(energy.duration_s)} so far, end not known")
    done_ratio = energy.duration_s / max(energy.duration_s + end_s - now_s, energy.duration_s, 1.0)
    percent = f"{100 * done_ratio:.0f}{NO_BREAK}%"
    bar = render_bar(f"{percent} of its time", drawn_ratio=done_ratio, kind="thin")
    return element("span", bar, escaped(f"{percent} · ends "), render_time(end_s, now_s, zone))
