"""A panel as the content of an SVG element of any size: places are percentages, so letters and strokes never scale.

Only paths need a drawing of their own with a viewBox, which is stretched to the whole panel. Letters beside the panel
(ticks, names of lines) lie outside of the element, which must not clip them.
"""

import math
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from controller.runtime.markup import Markup, element, escaped, joined
from controller.web.charts.marks import Axis, Band, Bars, Line, Mark, Panel, Points, Rule
from controller.web.charts.paths import SIZE, Place, area_path, line_path, stepped
from controller.web.charts.scales import WIDTH_EM, Scale, is_drawable, is_time, ticks_of, y_scale

LABEL_EM: Final = 0.8
"""Size of the letters in a chart, in the page's font (as in the style sheet)."""
NARROW_EM: Final = 26.0
"""The width of a panel on a phone, in the letters of its ticks: what has no room there is of class `wide`."""
LETTER_EM: Final = 0.55
"""The usual width of a letter, in their size."""
_LINE_EM: Final = 1.15
_END_RATIO: Final = 0.97
"""A line that goes on so far has its name at its end."""
_BESIDE_EM: Final = 0.6
_ABOVE_EM: Final = 0.85
"""How far the label of a point is from it, sideways and up or down."""
_CORNERS: Final = ((1, 1), (1, -1), (-1, -1), (-1, 1))
_N_BETWEEN: Final = 80
"""Places of a line that labels keep clear of, on the way through a whole panel."""
_BAR_RATIO: Final = 0.7
_DASHES: Final = {"solid": None, "dashed": "6 4", "dotted": "2 3"}
_SHAPES: Final = {
    "dot": element("circle", r="4"),
    "ring": element("circle", r="5", class_="ring"),
    "cross": element("path", d="M-4-4L4 4M-4 4L4-4", class_="stroke"),
    "square": element("path", d="M-4-4H4V4H-4Z", class_="stroke"),
}


class EndLabel(NamedTuple):
    """The name of a line at its right end: how high, 0 to 1, and its colour."""

    y_ratio: float
    text: str
    colour: str


class Frame:
    """Where things are in a panel of a height [em]."""

    def __init__(self, x_scale: Scale, y_scale: Scale, height_em: float) -> None:
        self._x, self._y, self._height_em = x_scale, y_scale, height_em

    def _places(self, xs: Sequence[float], ys: Sequence[float]) -> list[Place]:
        return [(self._x.place_ratio(x), self._y.place_ratio(y)) for x, y in zip(xs, ys, strict=False)]

    def below(self, mark: Mark) -> Iterator[Markup]:
        """Yield what lies below all lines: bands, filled areas, bars."""
        match mark:
            case Band():
                lowers, uppers = (self._places(mark.xs, ends) for ends in (mark.lowers, mark.uppers))
                yield _stretched(area_path(lowers, uppers), f"band c-{mark.colour}")
            case Line(is_filled=True) if not self._y.is_log:
                places = self._line_places(mark)
                floor = [(x_ratio, self._y.place_ratio(0.0)) for x_ratio, _ in places]
                yield _stretched(area_path(floor, places), f"tint c-{mark.colour}")
            case Bars():
                yield from self._bars(mark)
            case _:
                return

    def above(self, mark: Mark) -> Iterator[Markup]:
        """Yield lines, points and rules."""
        match mark:
            case Line():
                path = line_path(self._line_places(mark))
                yield _stretched(path, f"line c-{mark.colour}", stroke_dasharray=_DASHES[mark.dash])
            case Points():
                yield from self._points(mark)
            case Rule(axis="x"):
                yield from self._vertical(mark)
            case Rule() if 0 <= (y_ratio := self._y.place_ratio(mark.value)) <= 1:
                y = _percent(1 - y_ratio)
                yield _straight(("0", y), ("100%", y), f"rule c-{mark.colour}", _DASHES[mark.dash])
            case _:
                return

    def _line_places(self, line: Line) -> list[Place]:
        places = self._places(line.xs, line.ys)
        if not line.is_stepped:
            return places
        end_ratio = self._x.place_ratio(line.xs[len(line.ys)]) if len(line.xs) > len(line.ys) else None
        return list(stepped(places, end_ratio))

    def _bars(self, bars: Bars) -> Iterator[Markup]:
        ratios = sorted(self._x.place_ratio(x) for x in bars.xs if is_drawable(x))
        apart_ratio = min((b - a for a, b in pairwise(ratios) if b > a), default=0.2)
        if self._x.has_names:
            apart_ratio = min(apart_ratio, self._x.place_ratio(self._x.lower + 1))
        width_ratio = _BAR_RATIO * apart_ratio
        bottoms = bars.bottoms or [0.0] * len(bars.ys)
        kind = f"bar c-{bars.colour}{' tinted' if bars.is_tinted else ''}"
        drawn = [
            element(
                "rect",
                *_title(bars.texts, place),
                x=_percent(x_ratio - width_ratio / 2),
                y=_percent(1 - max(top_ratio, floor_ratio)),
                width=_percent(width_ratio),
                height=_percent(abs(top_ratio - floor_ratio)),
            )
            for place, ((x_ratio, top_ratio), (_, floor_ratio)) in enumerate(
                zip(self._places(bars.xs, bars.ys), self._places(bars.xs, bottoms), strict=False)
            )
            if not math.isnan(x_ratio + top_ratio + floor_ratio)
        ]
        yield element("g", *drawn, class_=kind)
        yield from self._whiskers(bars.xs, bars.lowers, bars.uppers, "text")

    def _points(self, points: Points) -> Iterator[Markup]:
        yield from self._whiskers(points.xs, points.lowers, points.uppers, points.colour)
        for y, left, right in zip(points.ys, points.lefts, points.rights, strict=False):
            (begin, end) = self._places((left, right), (y, y))
            if not math.isnan(begin[0] + end[0] + begin[1]):
                height = _percent(1 - begin[1])
                ends = (_percent(begin[0]), height), (_percent(end[0]), height)
                yield _straight(*ends, f"whisker c-{points.colour}")
        for place, (x_ratio, y_ratio) in enumerate(self._places(points.xs, points.ys)):
            if not math.isnan(x_ratio + y_ratio):
                yield _at(x_ratio, y_ratio, f"c-{points.colour}", *_title(points.texts, place), _SHAPES[points.shape])

    def _whiskers(
        self, xs: Sequence[float], lowers: Sequence[float], uppers: Sequence[float], colour: str
    ) -> Iterator[Markup]:
        drawn = [
            _straight((_percent(low[0]), _percent(1 - low[1])), (_percent(low[0]), _percent(1 - high[1])))
            for low, high in zip(self._places(xs, lowers), self._places(xs, uppers), strict=False)
            if not math.isnan(low[0] + low[1] + high[1])
        ]
        if drawn:
            yield element("g", *drawn, class_=f"whisker c-{colour}")

    def _vertical(self, rule: Rule) -> Iterator[Markup]:
        x_ratio = self._x.place_ratio(rule.value)
        if not 0 <= x_ratio <= 1:
            return
        x = _percent(x_ratio)
        yield _straight((x, "0"), (x, "100%"), f"rule c-{rule.colour}", _DASHES[rule.dash])
        anchor = "start" if x_ratio < 1 - _END_RATIO + 0.1 else "end" if x_ratio > _END_RATIO - 0.1 else "middle"
        if rule.name:
            yield _text(rule.name, x_ratio, 1.0, f"c-{rule.colour} strong {anchor}", dy_em=-0.45)

    def end_labels(self, panel: Panel) -> list[EndLabel]:
        """Return the names at the ends of lines and of horizontal rules, far enough from each other."""
        wanted = [label for mark in panel.marks for label in self._end_of(mark)]
        return apart(wanted, _LINE_EM * LABEL_EM / self._height_em)

    def _end_of(self, mark: Mark) -> Iterator[EndLabel]:
        match mark:
            case Line():
                places = self._places(mark.xs[: len(mark.ys)][-1:], mark.ys[: len(mark.xs)][-1:])
                until = mark.xs[-1:] if mark.is_stepped else mark.xs[len(mark.ys) - 1 : len(mark.ys)]
                is_long = any(self._x.place_ratio(x) >= _END_RATIO for x in until)
                yield from (
                    EndLabel(y_ratio, mark.name, mark.colour)
                    for _, y_ratio in places
                    if is_long and not math.isnan(y_ratio)
                )
            case Rule(axis="y") if 0 <= (y_ratio := self._y.place_ratio(mark.value)) <= 1:
                yield EndLabel(y_ratio, mark.name, mark.colour)
            case _:
                return

    def point_labels(self, marks: Sequence[Mark]) -> Iterator[Markup]:
        """Yield the labels of points: class `wide` is without room on a phone; what has none at all is left out."""
        labels = [
            (place, text, mark.colour)
            for mark in marks
            if isinstance(mark, Points)
            for place, text in zip(self._places(mark.xs, mark.ys), mark.labels, strict=False)
            if text and not math.isnan(place[0] + place[1])
        ]
        if not labels:
            return
        taken = [place for mark in marks for place in self._drawn(mark)]
        rooms = [_Room(width_em, self._height_em / LABEL_EM, taken) for width_em in (NARROW_EM, WIDTH_EM)]
        for place, text, colour in labels:
            corners = [room.take(place, text) for room in rooms]
            corner, size = (corners[0], "") if corners[0] is not None else (corners[1], " wide")
            if corner is not None:
                kind = f"c-{colour} {'start' if corner[0] > 0 else 'end'}{size}"
                yield _text(text, *place, kind, dx_em=_BESIDE_EM * corner[0], dy_em=0.35 + _ABOVE_EM * corner[1])

    def _drawn(self, mark: Mark) -> Iterator[Place]:
        """Yield places that a mark covers, so many that no label has room between them."""
        match mark:
            case Line():
                for begin, end in pairwise(self._line_places(mark)):
                    yield from _between(begin, end)
            case Points():
                yield from self._places(mark.xs, mark.ys)
                for xs, ys in (
                    (mark.xs, mark.lowers),
                    (mark.xs, mark.uppers),
                    (mark.lefts, mark.ys),
                    (mark.rights, mark.ys),
                ):
                    for begin, end in zip(self._places(mark.xs, mark.ys), self._places(xs, ys), strict=False):
                        yield from _between(begin, end)
            case Rule(axis="x"):
                x_ratio = self._x.place_ratio(mark.value)
                yield from _between((x_ratio, 0.0), (x_ratio, 1.0))
            case _:
                return


class _Room:
    """What is taken of a panel, in its letters."""

    def __init__(self, width_em: float, height_em: float, taken: Sequence[Place]) -> None:
        self._width_em, self._height_em = width_em, height_em
        self._dots = [(x_ratio * width_em, (1 - y_ratio) * height_em) for x_ratio, y_ratio in taken]
        self._labels: list[tuple[float, float, float]] = []

    def take(self, place: Place, text: str) -> tuple[int, int] | None:
        """Take the first free corner beside a point: 1 is right or below, -1 left or above; None: none is free."""
        for to_right, to_below in _CORNERS:
            length_em = LETTER_EM * len(text)
            left_em = place[0] * self._width_em + (_BESIDE_EM if to_right > 0 else -_BESIDE_EM - length_em)
            right_em, middle_em = left_em + length_em, (1 - place[1]) * self._height_em + _ABOVE_EM * to_below
            if left_em >= 0 and right_em <= self._width_em and self._is_free(left_em, right_em, middle_em):
                self._labels.append((left_em, right_em, middle_em))
                return to_right, to_below
        return None

    def _is_free(self, left_em: float, right_em: float, middle_em: float) -> bool:
        return not any(
            left_em - 0.2 < x_em < right_em + 0.2 and abs(y_em - middle_em) < _LINE_EM / 2 for x_em, y_em in self._dots
        ) and not any(
            left_em < right and left < right_em and abs(middle_em - middle) < _LINE_EM
            for left, right, middle in self._labels
        )


def _between(begin: Place, end: Place) -> Iterator[Place]:
    """Yield places on the way between two, both included, close to each other; none where one of them is unknown."""
    span = max(abs(end[0] - begin[0]), abs(end[1] - begin[1]))
    n_steps = math.ceil(min(span, 2.0) * _N_BETWEEN) if math.isfinite(span) else -1
    for step in range(n_steps + 1):
        share = step / max(n_steps, 1)
        yield begin[0] + share * (end[0] - begin[0]), begin[1] + share * (end[1] - begin[1])


def letters_of(text: str) -> int:
    """Return how many letters of the usual width are as long as a text."""
    wide = sum(2 if unicodedata.east_asian_width(letter) in "FW" else 1 for letter in text)
    return wide + math.ceil(0.6 * sum(letter in "MWmw@" for letter in text))


def cut(text: str, max_letters: int) -> str:
    """Return a text, or as much of it as is no longer than so many letters."""
    if letters_of(text) <= max_letters:
        return text
    n_kept = max(n for n in range(len(text)) if n == 0 or letters_of(text[:n]) <= max_letters - 1)
    return f"{text[:n_kept].rstrip()}…"


def draw_panel(panel: Panel, x_axis: Axis, x_scale: Scale, *, has_x_ticks: bool, beside_letters: int) -> Markup:
    """Return the content of a panel's SVG element; `beside_letters` have room on its right."""
    if why := _why_empty(panel, x_scale):
        return _text(why, 0.5, 0.5, "middle")
    scale = y_scale(panel.axis, panel.marks)
    frame = Frame(x_scale, scale, panel.height_em)
    ends = (
        _text(cut(label.text, beside_letters), 1.0, label.y_ratio, f"beside c-{label.colour}", dx_em=0.5)
        for label in frame.end_labels(panel)
    )
    return joined([
        *_y_ticks(panel, scale),
        *_x_ticks(x_axis, x_scale, has_text=has_x_ticks),
        *(part for mark in panel.marks for part in frame.below(mark)),
        *(part for mark in panel.marks for part in frame.above(mark)),
        *frame.point_labels(panel.marks),
        *ends,
    ])  # fmt: skip


def draw_swatch(mark: Mark) -> Markup:
    """Return a mark as a key shows it."""
    match mark:
        case Line() | Rule():
            kind = "line" if isinstance(mark, Line) else "rule"
            drawn = _straight(("0", "50%"), ("100%", "50%"), f"{kind} c-{mark.colour}", _DASHES[mark.dash])
        case Points():
            drawn = _at(0.5, 0.5, f"c-{mark.colour}", _SHAPES[mark.shape])
        case _:
            kind = "band" if isinstance(mark, Band) else "bar tinted" if mark.is_tinted else "bar"
            drawn = element("rect", width="100%", height="100%", class_=f"{kind} c-{mark.colour}")
    return element("svg", drawn, class_="swatch", aria_hidden="true")


def _why_empty(panel: Panel, x_scale: Scale) -> str:
    """Return why a panel has nothing to draw beside its rules; "" where it has."""
    drawn = (
        zip(mark.xs, mark.uppers if isinstance(mark, Band) else mark.ys, strict=False)
        for mark in panel.marks
        if not isinstance(mark, Rule)
    )
    is_log = panel.axis.is_log
    xs = [x for places in drawn for x, y in places if is_drawable(x) and is_drawable(y, is_log=is_log)]
    if not xs:
        return "no data yet"
    return "all times are before 1900 or after 2200" if x_scale.is_time and not any(map(is_time, xs)) else ""


def apart(labels: Sequence[EndLabel], gap_ratio: float) -> list[EndLabel]:
    """Return labels in their order from below, each moved as little up or down as keeps them apart and inside."""
    ordered = sorted(labels)
    heights = [label.y_ratio for label in ordered]
    for place in range(1, len(heights)):
        heights[place] = max(heights[place], heights[place - 1] + gap_ratio)
    ceiling = 1.0
    for place in reversed(range(len(heights))):
        heights[place] = min(heights[place], ceiling)
        ceiling = heights[place] - gap_ratio
    return [label._replace(y_ratio=y_ratio) for label, y_ratio in zip(ordered, heights, strict=True)]


def _y_ticks(panel: Panel, scale: Scale) -> Iterator[Markup]:
    for tick in ticks_of(panel.axis, scale, n_wanted=max(round(panel.height_em / 2.3), 2)):
        y_ratio = scale.place_ratio(tick.value)
        if 0 <= y_ratio <= 1:
            y = _percent(1 - y_ratio)
            zero = " zero" if tick.value == 0 else ""
            yield _straight(("0", y), ("100%", y), f"gridline{zero}")
            yield _text(tick.text, 0.0, y_ratio, "tick end", dx_em=-0.5)


def _x_ticks(axis: Axis, scale: Scale, *, has_text: bool) -> Iterator[Markup]:
    ticks = [tick for tick in ticks_of(axis, scale, n_wanted=8) if 0 <= scale.place_ratio(tick.value) <= 1]
    kept = next((place for place, tick in enumerate(ticks) if ":" not in tick.text), 0)  # a day, beside hours
    for place, tick in enumerate(ticks):
        x = _percent(scale.place_ratio(tick.value))
        yield _straight((x, "0"), (x, "100%"), "gridline")
        if has_text:
            size = " wide" if (place - kept) % 2 else ""
            yield _text(tick.text, scale.place_ratio(tick.value), 0.0, f"tick middle{size}", dy_em=1.2)


def _title(texts: Sequence[str], place: int) -> list[Markup]:
    """Return what a browser shows of a mark that is pointed at."""
    return [element("title", escaped(texts[place]))] if place < len(texts) else []


def _text(text: str, x_ratio: float, y_ratio: float, kind: str, *, dx_em: float = 0.0, dy_em: float = 0.0) -> Markup:
    return element(
        "text",
        escaped(text),
        x=_percent(x_ratio),
        y=_percent(1 - y_ratio),
        dx=f"{dx_em:g}em" if dx_em else None,
        dy=f"{dy_em or 0.35:g}em",
        class_=kind,
    )


def _straight(
    begin: tuple[str, str], end: tuple[str, str], kind: str | None = None, dashes: str | None = None
) -> Markup:
    (x1, y1), (x2, y2) = begin, end
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind, stroke_dasharray=dashes)


def _at(x_ratio: float, y_ratio: float, kind: str, *content: Markup) -> Markup:
    """Return a drawing in pixels around a place."""
    return element("svg", *content, x=_percent(x_ratio), y=_percent(1 - y_ratio), class_=kind, overflow="visible")


def _stretched(path: str, kind: str, **attributes: str | None) -> Markup:
    """Return a path on its own drawing, which fills the panel; what is outside is cut off."""
    if not path:
        return escaped("")
    drawn = element("path", d=path, class_=kind, vector_effect="non-scaling-stroke", **attributes)
    return element("svg", drawn, viewBox=f"0 0 {SIZE} {SIZE}", preserveAspectRatio="none", width="100%", height="100%")


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.2f}".rstrip("0").rstrip(".") + "%"
