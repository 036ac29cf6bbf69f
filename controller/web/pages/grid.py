"""The grid: the signal of each zone, measured and forecast, and how far both can be trusted."""

from collections.abc import Iterator
from datetime import tzinfo
from typing import Final

from controller.runtime.markup import Markup, element, escaped
from controller.web.charts.figure import render_chart
from controller.web.charts.marks import Chart, TimeAxis
from controller.web.live.site_state import SiteState
from controller.web.pages.layout import State, render_card, render_facts, render_page, render_state, render_time
from controller.web.pages.plan_chart import is_expected, signal_panel, signal_sentence
from policies.vocabulary.units import DAY_S, duration_text
from publishers.messages.reports import GridSignal

BACK_S: Final = DAY_S
AHEAD_S: Final = 2 * DAY_S
_STATES: Final[dict[str, tuple[State, str]]] = {
    "fresh": ("ok", "fresh"),
    "held": ("warning", "the last known value is held"),
    "forecast": ("warning", "the source is silent: our own forecast"),
    "stale": ("error", "too old: plans do without it"),
}
_KINDS: Final = {
    "average": "average: the mix of all power plants",
    "marginal": "marginal: the plants that answer to a change of demand",
    "price": "price",
}


def render_grid(state: SiteState, *, now_s: float, zone: tzinfo) -> str:
    """Return the page, HTML."""
    signals = [signal for _, signal in sorted(state.grid.items())]
    parts = [element("section", *_signal(signal, now_s, zone), class_="card") for signal in signals]
    nothing = render_card(
        "No signal",
        element(
            "p", escaped("No controller has published a signal of the grid: plans do without one."), class_="second"
        ),
    )
    return render_page("Grid", current="/grid", parts=parts or [nothing], now_s=now_s, zone=zone)


def _signal(signal: GridSignal, now_s: float, zone: tzinfo) -> Iterator[Markup]:
    name = "price" if signal.kind == "price" else "carbon intensity"
    panel = signal_panel(signal, since_s=now_s - BACK_S, until_s=now_s + AHEAD_S, now_s=now_s, height_em=16.0)
    words = signal_sentence(signal, now_s=now_s, zone=zone)
    yield render_chart(
        Chart(title=f"{signal.zone}: {name}", words=words, x_axis=TimeAxis(zone=zone), panels=[panel]), has_readout=True
    )
    yield render_facts(_facts(signal, now_s, zone))


def _facts(signal: GridSignal, now_s: float, zone: tzinfo) -> Iterator[tuple[str, Markup]]:
    mark, text = _STATES[signal.state]
    age = f", ended {duration_text(signal.age_s)} ago" if signal.age_s else ""
    yield "state", render_state(mark, f"{text}{age}")
    yield "source", element("bdi", escaped(signal.source))
    yield "kind", escaped(_KINDS[signal.kind])
    yield "issued", render_time(signal.issued_at_s, now_s, zone)
    if signal.known_until_s is not None:
        yield "the source's own values end", render_time(signal.known_until_s, now_s, zone)
    n_estimated = sum(is_expected(signal, value) for value in signal.values)
    n_known = len(signal.values) - n_estimated
    yield "values", escaped(f"{n_known} known, {n_estimated} forecast or estimated")
    if signal.detail:
        yield "more", escaped(signal.detail)
