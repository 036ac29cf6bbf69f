"""All GPUs: what each draws, its limit and why, by node; and how one is shown wherever it is."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Final
from urllib.parse import quote

from controller.runtime.markup import NO_BREAK, Markup, element, escaped, joined
from controller.runtime.natural_order import natural_key
from controller.web.charts.document import render_cells
from controller.web.live.element_ids import (
    SITE_BAR,
    SITE_LIMITS,
    SITE_POWER,
    SITE_POWER_UNIT,
    GpuPart,
    gpu_element_id,
)
from controller.web.live.event_stream import LiveValues
from controller.web.live.site_state import GpuKey, GpuState, SiteState
from controller.web.pages.layout import (
    State,
    moment_text,
    render_bar,
    render_card,
    render_order_links,
    render_page,
    render_state,
    render_time,
)
from controller.web.pages.words import NOT_KNOWN_YET, PINNED, decision_text, typeset
from publishers.messages.reasons import short_reason
from publishers.messages.reports import GpuDescription
from publishers.training.reporting.amounts import power_text

MAX_ROWS: Final = 256
"""Of GPUs on one page."""
NOBODY: Final = (
    "No controller has been heard yet. On each node with GPUs, start gridchase controller on the same broker."
)
_ORDERS: Final = {"pin": "pin", "exempt": "exempt", "release": "release"}
MEASURING: Final = frozenset({"profiling", "refining"})
_WRONG: Final = frozenset(
    {"another_writer", "gpu_suspect", "journal_failed", "no_permission", "write_ignored", "clamped"}
)
_WRONG_ENDS: Final = ("_failed", "_untouched")
"""Of reasons: the prior limit was not restored, or not ours to restore."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuView:
    """A GPU as pages show it; what does not hold any more is None.

    Attributes:
        key: which it is.
        name: its node and number there.
        model: of the board.
        mark: its state.
        power_w: what it draws.
        limit_w: its power limit.
        prior_w: the one from before.
        job: that computes on it.
        why: why it has its limit, or what is wrong.
        since_s: since when [Unix s]; None: not known.
        is_wrong: whether somebody should look at it.
        state: all that is known.
    """

    key: GpuKey
    name: str
    model: str
    mark: State
    power_w: float | None
    limit_w: float | None
    prior_w: float | None
    job: str | None
    why: str
    since_s: float | None
    is_wrong: bool
    state: GpuState

    @property
    def numbers(self) -> tuple[str, str]:
        """Return draw and limit as they stand beside each other: ("189", "/ 215 W")."""
        limit = f"/{NO_BREAK}{_watts(self.limit_w)}{NO_BREAK}W" if self.limit_w is not None else "W"
        return _watts(self.power_w), limit


def gpu_views(state: SiteState, now_s: float) -> list[GpuView]:
    """Return all GPUs that were heard of, by node and number."""
    described = {GpuKey(name, gpu.uuid): gpu for name, node in state.nodes.items() for gpu in node.status.gpus}
    views = [
        _view(state, key, state.gpus.get(key) or GpuState(), described.get(key), now_s)
        for key in {*described, *state.gpus}
    ]
    return sorted(
        views, key=lambda view: (natural_key(view.key.node), _index(view.state, described.get(view.key)), view.key)
    )


def _view(state: SiteState, key: GpuKey, gpu: GpuState, description: GpuDescription | None, now_s: float) -> GpuView:
    is_online = state.is_online(key.node)
    energy, limit = gpu.energy, gpu.limit
    is_fresh = is_online and energy is not None and gpu.is_heard(now_s)
    power_w = energy.power_w if energy is not None and is_fresh else None
    limit_w = limit.power_limit_w if limit is not None else None
    if limit_w is None and energy is not None:
        limit_w = energy.power_limit_w
    reason = limit.reason if limit is not None else ""
    is_wrong = reason in _WRONG or reason.endswith(_WRONG_ENDS)
    job = energy.job if energy is not None and is_fresh else None
    why = decision_text(limit) if limit is not None else NOT_KNOWN_YET
    since_s = limit.time_s if limit is not None else None
    mark: State = "pinned" if reason == PINNED else "measuring" if reason in MEASURING else "ok" if job else "idle"
    if is_wrong:
        mark, why = "warning", short_reason(reason)
    elif not is_online:
        mark, why = "error", "its node is offline"
    elif power_w is None:
        mark, why, is_wrong = "error", "does not answer", True
        since_s = energy.time_s if energy is not None else None
    index = _index(gpu, description)
    return GpuView(
        key=key,
        name=f"{key.node} {index if index < _NO_INDEX else key.gpu_uuid}",
        model=description.model if description is not None else "",
        mark=mark,
        power_w=power_w,
        limit_w=limit_w if is_online else None,
        prior_w=description.prior_power_limit_w if description is not None else None,
        job=job,
        why=why,
        since_s=since_s,
        is_wrong=is_wrong,
        state=gpu,
    )


_NO_INDEX: Final = 1 << 53


def _index(gpu: GpuState, description: GpuDescription | None) -> int:
    """Return the number of a GPU on its node; one that is not known comes last."""
    if description is not None:
        return description.index
    said = (message.gpu_index for message in (gpu.energy, gpu.limit) if message is not None)
    return next((index for index in said if index is not None), _NO_INDEX)


def render_tiles(views: Iterable[GpuView]) -> Markup:
    """Return GPUs as tiles: name, draw and limit, a bar of both, and the job."""
    return element("ul", *map(_tile, views), class_="gpus")


def _tile(view: GpuView) -> Markup:
    drawn, limit = view.numbers
    line = element(
        "div",
        element("b", render_state(view.mark, view.name)),
        element(
            "span", _live(view, "drawn", drawn, name="b"), escaped(" "), _live(view, "limit", limit, class_="second")
        ),
        class_="line",
    )
    below = view.why if view.mark in {"error", "warning"} else view.job or "idle"
    mark = escaped(" · pinned" if view.mark == "pinned" else "")
    return element(
        "li",
        line,
        render_gauge(view, f"prior limit {_power(view.prior_w)}"),
        element("div", element("bdi", escaped(below)), mark, class_="job second"),
        class_="gpu",
    )


def render_gauge(view: GpuView, label: str = "") -> Markup:
    """Return the bar of a GPU: filled as far as it draws, a mark at its limit; the whole is its prior limit."""
    drawn_ratio, mark_ratio = _shares(view)
    return render_bar(label, drawn_ratio=drawn_ratio, mark_ratio=mark_ratio, id_=gpu_element_id(view.key, "bar"))


def live_values(views: Sequence[GpuView], now_s: float) -> LiveValues:
    """Return what pages show now of all GPUs together, and of the first ones, by the ids of elements."""
    texts: dict[str, str] = {}
    bars: dict[str, tuple[float, float | None]] = {}
    answering = [view for view in views if view.power_w is not None]
    if answering:
        power_w = sum(view.power_w or 0.0 for view in answering)
        texts[SITE_POWER], _, texts[SITE_POWER_UNIT] = typeset(power_text(power_w)).partition(NO_BREAK)
        sums_w = limit_sums_w(answering)
        if sums_w is not None:
            bars[SITE_BAR] = power_w / sums_w[1], sums_w[0] / sums_w[1]
            texts[SITE_LIMITS] = limits_text(*sums_w)
    for view in views[:MAX_ROWS]:
        drawn, limit = view.numbers
        power, power_limit = _power(view.power_w), _power(view.limit_w)
        shown: dict[GpuPart, str] = {
            "drawn": drawn,
            "limit": limit,
            "power": power,
            "power-limit": power_limit,
            "why": view.why,
        }
        texts |= {gpu_element_id(view.key, part): text for part, text in shown.items()}
        bars[gpu_element_id(view.key, "bar")] = _shares(view)
    return LiveValues(time_s=now_s, texts=texts, bars=bars)


def limit_sums_w(views: Sequence[GpuView]) -> tuple[float, float] | None:
    """Return the sums of all limits and of all prior limits [W]; None: not all are known."""
    known = [(view.limit_w, view.prior_w) for view in views if view.limit_w is not None and view.prior_w]
    if not known or len(known) < len(views):
        return None
    limits_w, priors_w = zip(*known, strict=True)
    return sum(limits_w), sum(priors_w)


def limits_text(limits_w: float, priors_w: float) -> str:
    """Return these sums as text."""
    limits, priors = (typeset(power_text(power_w)) for power_w in (limits_w, priors_w))
    return f"limits {limits} in all, prior limits {priors}"


def _live(view: GpuView, part: GpuPart, text: str, *, name: str = "span", class_: str | None = None) -> Markup:
    """Return an element whose text follows the event stream."""
    return element(name, escaped(text), class_=class_, id=gpu_element_id(view.key, part))


def _shares(view: GpuView) -> tuple[float, float | None]:
    """Return draw and limit as shares of the bar's width, which is the prior limit where that is known."""
    whole_w = view.prior_w or view.limit_w or view.power_w or 1.0
    return (view.power_w or 0.0) / whole_w, None if view.limit_w is None else view.limit_w / whole_w


def _watts(power_w: float | None) -> str:
    return "?" if power_w is None else f"{power_w:.0f}"


def render_gpus(
    state: SiteState, *, node: str | None = None, now_s: float, zone: tzinfo, takes_orders: bool = False
) -> str:
    """Return the page of all GPUs, or of one node's, HTML; of a large site first the page of its nodes.

    Args:
        state: what is known of the site.
        node: whose GPUs; None: all.
        now_s: the time [Unix s].
        zone: that times are shown in.
        takes_orders: whether people can give orders about GPUs here.
    """
    nodes: dict[str, list[GpuView]] = {}
    views = gpu_views(state, now_s)
    for view in views:
        nodes.setdefault(view.key.node, []).append(view)
    if node is not None:
        cards = [_node(state, node, nodes.get(node, []), now_s, zone, takes_orders=takes_orders)]
    elif len(views) > MAX_ROWS:
        cards = [_nodes(state, nodes)]
    else:
        cards = [_node(state, name, each, now_s, zone, takes_orders=takes_orders) for name, each in nodes.items()]
    nothing = render_card("No GPU", element("p", escaped(NOBODY), class_="second"))
    return render_page("GPUs", current="/gpus", parts=cards or [nothing], now_s=now_s, zone=zone)


def _nodes(state: SiteState, nodes: dict[str, list[GpuView]]) -> Markup:
    rows = []
    for name, views in nodes.items():
        answering = [view.power_w for view in views if view.power_w is not None]
        n_wrong = sum(view.is_wrong for view in views)
        mark: State = "error" if not state.is_online(name) else "warning" if n_wrong else "ok"
        link = element("a", element("bdi", escaped(name)), href=f"/gpus?node={quote(name, safe='')}")
        texts = (f"{len(answering)} of {len(views)}", str(n_wrong), _power(sum(answering) if answering else None))
        rows.append((joined([render_state(mark, ""), link]), *map(escaped, texts)))
    table = render_cells(
        ("node", "GPUs that answer", "to look at", "drawn"), rows, are_names=(True, False, False, False)
    )
    return render_card("Nodes", table)


def _node(
    state: SiteState, node: str, views: Sequence[GpuView], now_s: float, zone: tzinfo, *, takes_orders: bool
) -> Markup:
    headings = ["GPU", "model", "job", "drawn", "limit", "prior limit", "temperature", "busy", "why", "since"]
    rows = [list(_cells(view, now_s, zone)) for view in views]
    if takes_orders and state.is_online(node):
        headings.append("orders")
        for view, row in zip(views, rows, strict=True):
            links = render_order_links(view.key, _ORDERS, name=view.name)
            row.append(element("span", links, class_="orders"))
    are_names = [heading in {"GPU", "model", "job", "why", "orders"} for heading in headings]
    table = render_cells(headings, rows, are_names=are_names)
    return render_card(node, table, note=_node_text(state, node, now_s, zone))


def _node_text(state: SiteState, node: str, now_s: float, zone: tzinfo) -> str:
    known = state.nodes.get(node)
    if known is None:
        return "its controller has not been heard"
    status = known.status
    is_since = status.state == "online" and status.time_s is not None  # a last will is as old as its connection
    since = f" since {moment_text(status.time_s or 0.0, now_s, zone)}" if is_since else ""
    return " · ".join(filter(None, (f"{status.state}{since}", status.host, f"controller {status.version}")))


def _cells(view: GpuView, now_s: float, zone: tzinfo) -> Iterator[Markup]:
    energy = view.state.energy if view.power_w is not None else None
    temperature_c = energy.temperature_c if energy is not None else None
    busy_ratio = energy.utilization_ratio if energy is not None else None
    yield element("b", render_state(view.mark, view.name.removeprefix(f"{view.key.node} ")))
    yield escaped(view.model)
    yield element("bdi", escaped(view.job or "")) if view.job else escaped("")
    yield element("span", _live(view, "power", _power(view.power_w)), render_gauge(view))
    yield _live(view, "power-limit", _power(view.limit_w))
    yield escaped(_power(view.prior_w))
    yield escaped("" if temperature_c is None else typeset(f"{temperature_c:.0f} °C"))
    yield escaped("" if busy_ratio is None else typeset(f"{100 * busy_ratio:.0f} %"))
    yield _live(view, "why", view.why, class_="why")
    yield render_time(view.since_s, now_s, zone) if view.since_s is not None else escaped("")


def _power(power_w: float | None) -> str:
    return "not known" if power_w is None else typeset(power_text(power_w))
