"""The pages on which people sign in, order what a run does, and see what has become of it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Final

from controller.ports.orders import MAX_WHY, sentence_of_pin
from controller.runtime.markup import NOTHING, Markup, element, escaped, joined
from controller.web.charts.document import render_cells
from controller.web.hands.order_form import FIELDS, MAY_BE_EMPTY, TERMS, Action, OrderForm
from controller.web.hands.preview import expected_ends, known_curve, preview_pin, prior_power_limit_w, speed_ratio
from controller.web.hands.sent_orders import SentOrder
from controller.web.live.site_state import GpuKey, RunState, Subject
from controller.web.pages.gpus import GpuView
from controller.web.pages.layout import State, moment_text, render_card, render_facts, render_page, render_state
from controller.web.pages.overview import render_pin
from controller.web.pages.words import is_pinned, order_path, percent_text, subject_path, typeset
from publishers.messages.reasons import short_reason
from publishers.messages.reports import RunEnergy
from publishers.training.reporting.amounts import power_text

SIGN_IN: Final = "/sign-in"
SIGN_OUT: Final = "/sign-out"
ORDER_ID: Final = "order"
"""Of the element that a script shows in a dialog."""
_TITLES: Final[Mapping[str, str]] = {
    "pin": "Pin the limit of",
    "exempt": "Exempt",
    "release": "Release the limit of",
    "pause": "Pause",
    "resume": "Resume",
    "budget": "Change the time budget of",
    "deadline": "Set a deadline for",
    "reset": "Give its own goal back to",
}
_VERBS: Final[Mapping[Action, str]] = {
    "pin": "Pin it",
    "exempt": "Exempt it",
    "release": "Release it",
    "pause": "Pause it",
    "resume": "Resume it",
    "budget": "Change it",
    "deadline": "Set it",
    "reset": "Give it back",
}
_PAUSE: Final = (
    ": it waits after an iteration, as soon as all its ranks are there, keeps its memory and its place on the GPUs,"
    " which draw little meanwhile, and ends that much later. It goes on by itself then, or sooner if its own bound is"
    " lower. A training that cannot be paused refuses."
)
_TIMES: Final = "18:00, +2h30m, or 2026-11-29T18:00"
_EXEMPT: Final = (
    "All its GPUs have their prior limits until {until}, whatever its plan says: nothing is saved until then."
)
_GPU_EFFECTS: Final[Mapping[str, str]] = {
    "pin": (
        "Each run that has this GPU is held at {limit} until {until} with all of its GPUs, since they wait for each"
        " other, whatever its plan says, and whatever limit its user pins. No GPU gets more than its prior limit, which"
        " it has without a run."
    ),
    "exempt": (
        "Each run that has this GPU has its prior limits until {until}, on all of its GPUs, whatever its plan says, and"
        " whatever limit its user pins: nothing is saved until then."
    ),
    "release": "If this GPU is pinned or exempt, that ends: the plan of the run that has it decides again, or its pin.",
}
_DEADLINE: Final = (
    "Its plan has it end by {at}, and costs as little as it can until then. A training that does not tell its length"
    " keeps the highest limit."
)
_BUDGET: Final = "From now on its plan may make it {slower} slower than at full speed{until}."
_RESET: Final = "Its plan follows its configured objective again, which begins anew."
_RESUME: Final = "If it is paused, it goes on at once, and its plan does not pause it again."


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderPage:
    """What a page about an order shows.

    Attributes:
        key: which run or GPU it is about.
        run: what was heard of it; of a GPU, of the one run that has it, None: none, or it is not certain which.
        gpu: the GPU; None: it is about a run.
        action: what is to be done.
        name: as whom.
        fields: what the form says so far.
        faults: what is wrong with it, a sentence each.
        form: the order, once nothing is wrong.
        hidden: what the form that sends it carries beside: its code, and what the order is known by.
        min_power_limit_w: the lowest limit that its GPUs may have [W].
    """

    key: Subject
    run: RunState | None
    gpu: GpuView | None
    action: Action
    name: str
    fields: Mapping[str, str]
    faults: Sequence[str]
    form: OrderForm | None
    hidden: Mapping[str, str]
    min_power_limit_w: float


def sent_path(correlation: str) -> str:
    """Return where it is said what has become of an order."""
    return f"/order/{correlation}"


def render_sign_in(*, code: str, then: str, fault: str, now_s: float, zone: tzinfo) -> str:
    """Return the page on which somebody shows a token, HTML.

    Args:
        code: that proves that the form is ours.
        then: where to go afterwards.
        fault: why it did not succeed; "": it was not tried.
        now_s: the time [Unix s].
        zone: that times are shown in.
    """
    said = element("p", render_state("error", fault), role="alert") if fault else NOTHING
    form = element(
        "form",
        _hidden({"code": code, "then": then}),
        *_field("token", "Token", "one of web.token_file: ask who runs this page", type="password", required=""),
        *_field("name", "Your name", "for the log and for who looks; with a token of a user, not needed"),
        element("button", escaped("Sign in"), type="submit"),
        method="post",
        action=SIGN_IN,
        class_="fields",
    )
    return _page("Sign in", [render_card("With a token", said, form)], now_s, zone, current=SIGN_IN)


def render_signed_in(name: str, *, code: str, now_s: float, zone: tzinfo) -> str:
    """Return the page of somebody who is signed in, and may sign out, HTML."""
    words = element("p", escaped("You are signed in as "), element("bdi", escaped(name)), escaped("."))
    card = render_card("Signed in", words, _button_form(SIGN_OUT, {"code": code}, "Sign out"))
    return _page("Signed in", [card], now_s, zone, current=SIGN_IN)


def render_refusal(title: str, detail: str, *, link: tuple[str, str] | None, now_s: float, zone: tzinfo) -> str:
    """Return a page that says why something is not done, and perhaps where to go, HTML."""
    further = element("p", element("a", escaped(link[1]), href=link[0])) if link else NOTHING
    said = element("p", render_state("error", detail), role="alert")
    return _page(title, [render_card("Not done", said, further, id_=ORDER_ID)], now_s, zone)


def render_order(page: OrderPage, *, now_s: float, zone: tzinfo) -> str:
    """Return the page on which an action is ordered: a form, and below it what the order will do, HTML."""
    ask = element(
        "form",
        _hidden({"action": page.action}),
        *_fields(page),
        element("button", escaped("Show what this does"), type="submit"),
        method="get",
        action=order_path(page.key),
        class_="fields",
        data_ask="",
    )
    will = element("div", *_will(page, now_s, zone), id="will", aria_live="polite")
    title = f"{_TITLES[page.action]} {page.gpu.name if page.gpu is not None else _name_of(page.key)}"
    facts = render_facts(_facts(page, now_s, zone))
    card = render_card(title, facts, ask, will, *_choices(page), id_=ORDER_ID)
    return _page(title, [card], now_s, zone, shows_title=False, current=_shown_under(page.key))


def render_sent(sent: SentOrder, record: RunEnergy | None, *, is_overdue: bool, now_s: float, zone: tzinfo) -> str:
    """Return the page that says what has become of an order, HTML."""
    mark, words = _outcome(sent, is_overdue=is_overdue)
    is_open = sent.result is None and not is_overdue
    facts = [("asked for", _asked(sent, now_s, zone)), ("as", element("bdi", escaped(sent.order.by)))]
    facts.append(("state", element("span", render_state(mark, words), role="status")))
    if record is not None and is_pinned(record, now_s):
        facts.append(("on the bus", joined([escaped("pinned "), render_pin(record, now_s, zone)])))
    again = (
        element("a", escaped("Look again"), href=sent_path(sent.order.correlation), data_again="")
        if is_open
        else NOTHING
    )
    back_to = "Back to the GPUs" if isinstance(sent.key, GpuKey) else "Back to the run"
    back = element("a", escaped(back_to), href=subject_path(sent.key))
    links = element("p", joined([again, back] if is_open else [back], " · "))
    title = f"{_TITLES[sent.order.action]} {_name_of(sent.key)}"
    pending = element("span", data_pending=sent_path(sent.order.correlation)) if is_open else NOTHING
    card = render_card(title, render_facts(facts), links, pending, id_=ORDER_ID)
    return _page(title, [card], now_s, zone, shows_title=False, current=_shown_under(sent.key))


def _page(
    title: str,
    parts: Sequence[Markup],
    now_s: float,
    zone: tzinfo,
    *,
    shows_title: bool = True,
    current: str = "/runs",
) -> str:
    return render_page(
        title, current=current, parts=parts, now_s=now_s, zone=zone, shows_title=shows_title, follows=False
    )


def _name_of(subject: Subject) -> str:
    return str(subject) if isinstance(subject, GpuKey) else subject.job


def _shown_under(subject: Subject) -> str:
    return "/gpus" if isinstance(subject, GpuKey) else "/runs"


def _facts(page: OrderPage, now_s: float, zone: tzinfo) -> Iterator[tuple[str, Markup]]:
    record = page.run.energy if page.run is not None else None
    if isinstance(page.key, GpuKey):
        yield "GPU", element("a", element("bdi", escaped(str(page.key))), href=subject_path(page.key))
        if page.gpu is not None and page.gpu.limit_w is not None:
            yield "limit now", escaped(f"{typeset(power_text(page.gpu.limit_w))}: {page.gpu.why}")
        job = page.gpu.job if page.gpu is not None else None
        yield "job", element("bdi", escaped(job)) if job else escaped("none now")
    else:
        names = element("bdi", escaped(f"{page.key.job} / {page.key.run} of {page.key.user}"))
        yield "run", element("a", names, href=subject_path(page.key))
    if page.gpu is None and record is not None and record.power_limit_w is not None:
        why = f": {short_reason(record.reason)}" if record.reason else ""
        yield "limit now", escaped(f"{typeset(power_text(record.power_limit_w))}{why}")
    if record is not None and is_pinned(record, now_s):
        yield "pinned", render_pin(record, now_s, zone)
    yield "as", joined([element("bdi", escaped(page.name)), escaped(" ("), _account(), escaped(")")])


def _account() -> Markup:
    return element("a", escaped("sign out"), href=SIGN_IN)


def _fields(page: OrderPage) -> Iterator[Markup]:
    for term in TERMS[page.action]:
        name, is_needed = FIELDS[term], (page.action, term) not in MAY_BE_EMPTY
        label, hint, mode = _said_of(page, name)
        required = "" if is_needed else None
        yield from _field(name, label, hint, inputmode=mode, required=required, value=page.fields.get(name, ""))
    hint = f"for everybody who looks, and the log; {MAX_WHY} characters at most"
    yield from _field("why", "Why", hint, required="", maxlength=f"{MAX_WHY}", value=page.fields.get("why", ""))


def _said_of(page: OrderPage, name: str) -> tuple[str, str, str | None]:
    """Return the label of a field, what helps to fill it, and the keys that a phone shows for it."""
    match name:
        case "limit":
            prior_w = page.gpu.prior_w if page.gpu is not None else _prior_w(page.run)
            hint = "" if prior_w is None else f"{typeset(power_text(prior_w))} at most, the prior limit"
            return "Limit of each GPU, in W", hint, "decimal"
        case "slower":
            schedule = page.run.schedule if page.run is not None else None
            ratio = schedule.max_slowdown_ratio if schedule is not None else None
            hint = "" if ratio is None else f"{typeset(percent_text(ratio - 1))} as planned now"
            return "Slower than at full speed, in % at most", hint, "decimal"
        case "at":
            return "By when it is to end", _TIMES, None
    end = {"budget": "; empty: until the run ends", "pause": ""}.get(page.action, "; seven days ahead at most")
    return "Until", f"{_TIMES}{end}", None


def _will(page: OrderPage, now_s: float, zone: tzinfo) -> Iterator[Markup]:
    """Yield what is wrong with an order, or what it will do and the button that sends it."""
    for fault in page.faults:
        yield element("p", render_state("error", fault))
    if page.form is None:
        return
    yield element("h3", escaped("What will happen"))
    yield element("p", *_effect(page, page.form, now_s, zone))
    yield _button_form(order_path(page.key), {**page.form.fields(), **page.hidden}, _VERBS[page.action])


def _effect(page: OrderPage, form: OrderForm, now_s: float, zone: tzinfo) -> Iterator[Markup]:
    until = moment_text(form.until_s, now_s, zone) if form.until_s is not None else ""
    if page.gpu is not None:
        yield escaped(_gpu_effect(page, page.gpu, form, until, now_s))
    elif page.run is not None:
        yield _run_effect(page, page.run, form, until, now_s, zone)


def _gpu_effect(page: OrderPage, gpu: GpuView, form: OrderForm, until: str, now_s: float) -> str:
    """Return what an order does to each run that has a GPU, and a pin to the one that has it now."""
    limit = "" if form.power_limit_w is None else typeset(power_text(form.power_limit_w))
    words = _GPU_EFFECTS[form.action].format(limit=limit, until=until)
    if form.action != "pin" or page.run is None:
        return words
    return f"{words} Of {gpu.job} now: {_pin_effect(page, page.run, form, now_s)}."


def _run_effect(page: OrderPage, run: RunState, form: OrderForm, until: str, now_s: float, zone: tzinfo) -> Markup:
    match form.action:
        case "pin":
            told = _pin_effect(page, run, form, now_s)
            return escaped(f"{told[:1].upper()}{told[1:]}. It is held there until {until}, whatever its plan says.")
        case "release":
            return _release_effect(run.energy, now_s, zone)
        case "pause":
            return escaped(f"The training is paused until {until} at the latest{_PAUSE}")
        case "budget" | "deadline":
            return escaped(_goal_effect(run, form, now_s, zone))
        case "exempt":
            return escaped(_EXEMPT.format(until=until))
        case "resume" | "reset":
            return escaped(_RESUME if form.action == "resume" else _RESET)


def _pin_effect(page: OrderPage, run: RunState, form: OrderForm, now_s: float) -> str:
    held = preview_pin(
        run,
        power_limit_w=form.power_limit_w or 0.0,
        duration_s=(form.until_s or 0.0) - now_s,
        min_power_limit_w=page.min_power_limit_w,
    )
    return sentence_of_pin(held)


def _prior_w(run: RunState | None) -> float | None:
    return prior_power_limit_w(run.energy) if run is not None and run.energy is not None else None


def _release_effect(record: RunEnergy | None, now_s: float, zone: tzinfo) -> Markup:
    if record is None or not is_pinned(record, now_s):
        return escaped("Its limit is not pinned, as far as is known here: nothing changes.")
    pin = render_pin(record, now_s, zone)
    if record.pinned_gpu_uuid is not None:
        pinned, ends = f"It is held with its GPU {record.pinned_gpu_uuid}, which is pinned ", ": that stays."
        return joined([escaped(pinned), pin, escaped(f"{ends} A pin of its own, if it has one, ends.")])
    return joined([escaped("The pin "), pin, escaped(" ends. Its plan decides again.")])


def _goal_effect(run: RunState, form: OrderForm, now_s: float, zone: tzinfo) -> str:
    """Return what another goal does, and when the run ends as planned now and at full speed, where that is known."""
    if form.max_slowdown_ratio is not None:
        slower = typeset(percent_text(form.max_slowdown_ratio - 1))
        until = f", until {moment_text(form.until_s, now_s, zone)}" if form.until_s is not None else ""
        words = _BUDGET.format(slower=slower, until=until)
    else:
        words = _DEADLINE.format(at=moment_text(form.deadline_s or 0.0, now_s, zone))
    if run.energy is not None and is_pinned(run.energy, now_s):
        words += " Its pin wins for as long as it is in force."
    ends = expected_ends(run, now_s)
    if ends is None:
        return f"{words} When it will end is not known."
    planned, fastest = (moment_text(end_s, now_s, zone) for end_s in ends)
    words += f" As planned now it ends at about {planned}; at full speed from now on, at about {fastest}"
    if form.max_slowdown_ratio is None:
        return f"{words}{': later than that' if ends[1] > (form.deadline_s or 0.0) else ''}."
    if form.until_s is not None:
        return f"{words}."
    latest_s = now_s + (ends[1] - now_s) * form.max_slowdown_ratio
    return f"{words}; with this budget, at about {moment_text(latest_s, now_s, zone)} at the latest."


def _choices(page: OrderPage) -> Iterator[Markup]:
    """Yield the limits that were measured, and what each does."""
    curve = known_curve(page.run) if page.run is not None else []
    if page.action != "pin" or not curve:
        return
    rows = [
        (
            escaped(typeset(power_text(point.power_limit_w))),
            escaped(typeset(percent_text(speed_ratio(point, curve[-1])))),
            escaped(typeset(power_text(point.power_w))),
        )
        for point in curve
    ]
    headings = ("limit", "of full speed", "its GPUs draw")
    summary = element("summary", escaped("Limits that were measured"))
    yield element("details", summary, render_cells(headings, rows, are_names=(True, False, False)))


def _outcome(sent: SentOrder, *, is_overdue: bool) -> tuple[State, str]:
    if sent.result is not None:
        detail = sent.result.detail
        match sent.result.state:
            case "done":
                return "ok", f"done: {detail}"
            case "refused":
                return "warning", f"refused: {detail}"
            case "failed":
                return "error", f"not in force: {detail}"
    if is_overdue:
        return "warning", (
            "no answer in time: its controller hears no orders over the bus"
            " (orders.over_bus), or the broker's rules do not let the user of this page send them"
        )
    return "measuring", "asked for; the node has not read it back yet"


def _asked(sent: SentOrder, now_s: float, zone: tzinfo) -> Markup:
    order = sent.order
    limit = f" at {typeset(power_text(order.power_limit_w))}" if order.power_limit_w is not None else ""
    if order.max_slowdown_ratio is not None:
        limit = f", {typeset(percent_text(order.max_slowdown_ratio - 1))} slower at most,"
    if order.deadline_s is not None:
        limit = f" at {moment_text(order.deadline_s, now_s, zone)}"
    until = f" until {moment_text(order.until_s, now_s, zone)}" if order.until_s is not None else ""
    return joined([escaped(f"{order.action}{limit}{until}: "), element("bdi", escaped(order.why))])


def _field(name: str, label: str, hint: str = "", **attributes: str | None) -> Iterator[Markup]:
    """Yield a field with its label, and what helps to fill it."""
    attributes = {"type": "text", "autocomplete": "off", **attributes}
    yield element("label", escaped(label), for_=name)
    described = f"{name}-hint" if hint else None
    yield element("input", id=name, name=name, aria_describedby=described, **attributes)
    if hint:
        yield element("span", escaped(hint), id=f"{name}-hint", class_="note")


def _hidden(fields: Mapping[str, str]) -> Markup:
    return joined(element("input", type="hidden", name=name, value=value) for name, value in fields.items())


def _button_form(path: str, hidden: Mapping[str, str], words: str) -> Markup:
    button = element("button", escaped(words), type="submit", class_="main")
    return element("form", _hidden(hidden), button, method="post", action=path)
