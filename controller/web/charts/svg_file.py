"""A chart as an SVG file of its own, for where no page is around it."""

from typing import Final

from controller.runtime.markup import Markup, element, escaped, joined
from controller.web.charts.drawing import LABEL_EM, LETTER_EM, draw_panel
from controller.web.charts.marks import Chart
from controller.web.charts.scales import x_scale
from controller.web.charts.style import CHARTS, COLOURS

FONT_PX: Final = 15.0
_LEFT: Final = 56.0
_ABOVE: Final = 44.0
_BELOW: Final = 34.0
_TITLE: Final = 34.0
_STYLE: Final = (
    f"svg{{font:{FONT_PX:g}px system-ui,sans-serif}}.card{{fill:var(--card);stroke:var(--edge)}}"
    ".title{font-weight:600;fill:var(--text)}.unit{font-size:.8em;fill:var(--second)}"
)


def render_svg(chart: Chart, *, width: int = 800, beside: int = 110) -> str:
    """Return a chart as an SVG file, `width` pixels wide, of which `beside` on the right are for the names of lines."""
    scale = x_scale(chart)
    parts, top = [], _TITLE
    beside_letters = int(beside / (FONT_PX * LABEL_EM * LETTER_EM)) - 1
    for place, panel in enumerate(chart.panels):
        height = panel.height_em * FONT_PX
        parts.append(element("text", escaped(panel.axis.label), class_="unit", x="14", y=f"{top + 14:g}"))
        is_last = place == len(chart.panels) - 1
        drawn = draw_panel(panel, chart.x_axis, scale, has_x_ticks=is_last, beside_letters=beside_letters)
        parts.append(
            element(
                "svg",
                drawn,
                class_="plot",
                x=f"{_LEFT:g}",
                y=f"{top + _ABOVE:g}",
                width=f"{width - _LEFT - beside:g}",
                height=f"{height:g}",
                overflow="visible",
            )
        )
        top += _ABOVE + height
    height = top + _BELOW
    return element(
        "svg",
        element("title", escaped(chart.title)),
        element("desc", escaped(chart.words)),
        element("style", Markup(COLOURS + CHARTS + _STYLE)),
        element("rect", class_="card", width=str(width), height=f"{height:g}", rx="8"),
        element("text", escaped(chart.title), class_="title", x="14", y="26"),
        joined(parts),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height:g}",
        role="img",
    )
