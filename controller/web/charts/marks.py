"""What a chart is made of: axes, marks, panels. Places are in the units of the axes; NaN is a gap."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import Literal, TypeAlias

Colour: TypeAlias = Literal[
    "text", "second", "saved", "power", "grid", "prior", "now", "warning", "error", "pinned"
]  # fmt: skip
"""A colour by what it stands for, the same in each chart."""
Dash: TypeAlias = Literal["solid", "dashed", "dotted"]
"""Past and measured is solid, expected dashed, a bound dotted."""
Shape: TypeAlias = Literal["dot", "ring", "cross", "square"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberAxis:
    """An axis of numbers.

    Attributes:
        label: what it shows, with its unit; said once, above a y axis or below an x axis.
        is_log: whether it is logarithmic; what is not above 0 is a gap there.
        has_zero: whether 0 is on it, as always where an area is filled.
        ticks: where its ticks are; none: round numbers.
    """

    label: str = ""
    is_log: bool = False
    has_zero: bool = False
    ticks: Sequence[float] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAxis:
    """An axis of times [Unix s], with the hours and days of a time zone."""

    zone: tzinfo = UTC
    label: str = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class NameAxis:
    """An axis of names: the first is at 0, the next at 1."""

    names: Sequence[str]
    label: str = ""


Axis: TypeAlias = NumberAxis | TimeAxis | NameAxis


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line. Stepped, each value holds until the next x; an x more than values ends the last one.

    Filled, it has an area down to 0, but none on a logarithmic axis, which has no 0.
    """

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    colour: Colour
    dash: Dash = "solid"
    is_stepped: bool = False
    is_filled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """What lies between two lines, as an interval."""

    name: str
    xs: Sequence[float]
    lowers: Sequence[float]
    uppers: Sequence[float]
    colour: Colour


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """A bar at each x, from its bottom (0 where none are given) to its top, perhaps with a whisker.

    Attributes:
        is_tinted: filled with a tint, within an outline.
        lowers, uppers: the ends of the whiskers; none: no whiskers.
        texts: what each is, for people who point at it.
    """

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    colour: Colour
    bottoms: Sequence[float] = ()
    lowers: Sequence[float] = ()
    uppers: Sequence[float] = ()
    is_tinted: bool = False
    texts: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Points, perhaps with error bars along y (`lowers`, `uppers`) and along x (`lefts`, `rights`).

    Attributes:
        labels: what stands beside each; a label without room is left out.
        texts: what each is, for people who point at it.
    """

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    colour: Colour
    shape: Shape = "dot"
    lowers: Sequence[float] = ()
    uppers: Sequence[float] = ()
    lefts: Sequence[float] = ()
    rights: Sequence[float] = ()
    labels: Sequence[str] = ()
    texts: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A straight line through a whole panel at a value of an axis, with its name: "now", a budget, the prior limit."""

    name: str
    value: float
    axis: Literal["x", "y"]
    colour: Colour
    dash: Dash = "solid"


Mark: TypeAlias = Line | Band | Bars | Points | Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Marks on one y axis. Two units are two panels on one x axis, never two axes of one panel."""

    axis: NumberAxis
    marks: Sequence[Mark]
    height_em: float = 14.0  # of the page's font


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Panels on one x axis, one above the other.

    Attributes:
        title: its heading.
        words: what it shows, as a sentence: for those who do not see it, and below the heading.
        has_table: whether its data follow as a table, folded; not where the page has them anyway.
    """

    title: str
    words: str
    x_axis: Axis
    panels: Sequence[Panel] = field(default_factory=tuple)
    has_table: bool = True
