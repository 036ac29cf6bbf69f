"""A chart in a page: heading, sentence, panels, key, and its data as a table."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from controller.runtime.markup import Markup, element, escaped
from controller.web.charts.document import render_table
from controller.web.charts.drawing import Frame, draw_panel, draw_swatch, letters_of
from controller.web.charts.marks import (
    Axis,
    Band,
    Bars,
    Chart,
    Line,
    NameAxis,
    NumberAxis,
    Panel,
    Points,
    Rule,
    TimeAxis,
)
from controller.web.charts.scales import Scale, is_time, x_scale, y_scale
from controller.web.charts.ticks import interval_text, number_text, time_text

MAX_ROWS: Final = 200
_BESIDE_EM: Final = (5, 8, 12)
"""What is free on the right for the names of lines, where a style says so."""
_LETTERS_PER_EM: Final = 2.1
_MAX_LETTERS: Final = int(_BESIDE_EM[-1] * _LETTERS_PER_EM)
"""A longer name is cut beside its line, and whole in the key."""


def render_chart(chart: Chart, *, has_readout: bool = False) -> Markup:
    """Return a chart as a figure, HTML, which fills whatever width it gets.

    With a readout each row of its table says where it is, for a script that tells what is below the pointer.
    """
    scale = x_scale(chart)
    named = {name for panel in chart.panels for name in _named_beside(panel, scale)}
    length = max(map(letters_of, named), default=0)
    room = next((em for em in _BESIDE_EM if em * _LETTERS_PER_EM >= length), _BESIDE_EM[-1])
    return element(
        "figure",
        element("figcaption", element("h2", escaped(chart.title)), element("p", escaped(chart.words))),
        element(
            "div",
            *(part for place, panel in enumerate(chart.panels) for part in _panel(chart, scale, panel, place)),
            class_="panels",
            role="img",
            aria_label=f"{chart.title}. {chart.words}",
        ),
        *([element("p", escaped(chart.x_axis.label), class_="x-label")] if _has_x_label(chart.x_axis) else []),
        element("ul", *_key(chart, named), class_="key"),
        *([_data(chart, scale if has_readout else None)] if chart.has_table else []),
        class_=f"chart beside-{room}" if named else "chart",
    )


def _has_x_label(axis: Axis) -> bool:
    return not isinstance(axis, TimeAxis) and bool(axis.label)


def _named_beside(panel: Panel, scale: Scale) -> list[str]:
    frame = Frame(scale, y_scale(panel.axis, panel.marks), panel.height_em)
    return [label.text for label in frame.end_labels(panel)]


def _panel(chart: Chart, scale: Scale, panel: Panel, place: int) -> Iterator[Markup]:
    has_rule = any(isinstance(mark, Rule) and mark.axis == "x" and mark.name for mark in panel.marks)
    yield element("p", escaped(panel.axis.label), class_="unit raised" if has_rule else "unit")
    is_last = place == len(chart.panels) - 1
    drawn = draw_panel(panel, chart.x_axis, scale, has_x_ticks=is_last, beside_letters=_MAX_LETTERS)
    yield element("svg", drawn, class_="plot", height=f"{panel.height_em:g}em", aria_hidden="true")


def _key(chart: Chart, named: set[str]) -> Iterator[Markup]:
    """Yield what each mark is; what is named beside its line is said here only where there is no room for that."""
    seen = set()
    for mark in (mark for panel in chart.panels for mark in panel.marks):
        is_named_there = isinstance(mark, Rule) and (mark.axis == "x" or mark.name not in named)
        if is_named_there or (mark.name, mark.colour) in seen:
            continue
        seen.add((mark.name, mark.colour))
        kind = "beside" if mark.name in named and letters_of(mark.name) <= _MAX_LETTERS else None
        yield element("li", draw_swatch(mark), escaped(mark.name), class_=kind)


def _data(chart: Chart, scale: Scale | None) -> Markup:
    """Return the data of a chart as a folded table, a row for each x; of many, rows at even distances."""
    columns = [
        (_heading(mark, panel), mark, _places_of(mark))
        for panel in chart.panels
        for mark in panel.marks
        if not isinstance(mark, Rule)
    ]
    xs = sorted({x for _, _, places in columns for x in places})
    stride = math.ceil(len(xs) / MAX_ROWS) or 1
    rows = [
        (_x_text(x, chart.x_axis), *(_cell(mark, places.get(x, ())) for _, mark, places in columns))
        for x in xs[::stride]
    ]
    said = f" (one in {stride} of {number_text(len(xs))} rows)" if stride > 1 else ""
    headings = (chart.x_axis.label, *(heading for heading, _, _ in columns))
    table = render_table(headings, rows, row_places=[scale.place_ratio(x) for x in xs[::stride]] if scale else ())
    return element("details", element("summary", escaped(f"The data as a table{said}")), table)


def _heading(mark: Line | Band | Bars | Points, panel: Panel) -> str:
    has_own_units = isinstance(mark, Bars) and bool(mark.texts)
    return ", ".join(filter(None, (mark.name, "" if has_own_units else panel.axis.label)))


def _x_text(x: float, axis: Axis) -> str:
    match axis:
        case TimeAxis():
            return time_text(x, axis.zone) if is_time(x) else "not known"
        case NameAxis():
            return axis.names[int(x)] if 0 <= x < len(axis.names) else ""
        case NumberAxis():
            return number_text(x)


def _places_of(mark: Line | Band | Bars | Points) -> dict[float, list[int]]:
    """Return which values a mark has at each x."""
    places: dict[float, list[int]] = {}
    for place, x in enumerate(mark.xs):
        if math.isfinite(x) and place < len(mark.uppers if isinstance(mark, Band) else mark.ys):
            places.setdefault(float(x), []).append(place)
    return places


def _cell(mark: Line | Band | Bars | Points, places: Iterable[int]) -> str:
    return "; ".join(filter(None, (_text(mark, place) for place in places)))


def _text(mark: Line | Band | Bars | Points, place: int) -> str:
    match mark:
        case Bars(texts=texts) | Points(texts=texts) if place < len(texts):
            return texts[place]
        case Band(lowers=lowers, uppers=uppers):
            return _between(lowers, uppers, place)
        case Line(ys=ys):
            return _known(ys, place)
        case Bars(ys=ys, lowers=lowers, uppers=uppers) | Points(ys=ys, lowers=lowers, uppers=uppers):
            interval = _between(lowers, uppers, place)
            return f"{_known(ys, place)} ({interval})" if interval else _known(ys, place)


def _known(values: Sequence[float], place: int) -> str:
    return number_text(values[place]) if place < len(values) and math.isfinite(values[place]) else ""


def _between(lowers: Sequence[float], uppers: Sequence[float], place: int) -> str:
    if not (_known(lowers, place) and _known(uppers, place)):
        return ""
    return interval_text(lowers[place], uppers[place])
