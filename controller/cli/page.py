"""HTML pages: one self-contained file each, which loads nothing else."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final

from bokeh.embed import components
from bokeh.layouts import column
from bokeh.plotting import figure
from bokeh.resources import INLINE

WIDTH: Final = 920
HEIGHT: Final = 330
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a202c; background: #fff; margin: 2rem auto; max-width: 940px;
       padding: 0 1rem }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .2rem .7rem; border-bottom: 1px solid #e2e8f0; white-space: nowrap }
"""
FIRST_TWO_LEFT: Final = "td:nth-child(-n+2), th:nth-child(-n+2) { text-align: left }\n"
"""Style of tables whose first two columns are names."""


def render_document(
    title: str, style: str, before: Iterable[str], plots: Sequence[figure], after: Iterable[str]
) -> str:
    """Return a page, HTML.

    Args:
        title: of the page, plain text.
        style: CSS beside that of all pages.
        before: HTML above the plots.
        plots: the plots, one below the other.
        after: HTML below the plots.
    """
    script, drawn = components(column(*plots, sizing_mode="scale_width")) if plots else ("", "")
    return "\n".join(
        [
            f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
            INLINE.render() if plots else "",
            f"<style>{_STYLE}{style}</style></head><body>",
            *before,
            drawn,
            *after,
            script,
            "</body></html>",
        ]
    )


def render_table(
    headings: Iterable[str], rows: Iterable[Iterable[str]], row_classes: Iterable[str] | None = None
) -> str:
    """Return a table, HTML; headings and cells are plain text, `row_classes` the CSS class of each row."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    cells = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    classes = [""] * len(cells) if row_classes is None else list(row_classes)
    body = "".join(f'<tr class="{name}">{row}</tr>\n' for name, row in zip(classes, cells, strict=True))
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"


def new_figure(title: str, x_label: str, y_label: str, *, height: int = HEIGHT, **settings: Any) -> figure:  # noqa: ANN401
    """Return an empty plot; `settings` are Bokeh's own."""
    return figure(title=title, x_axis_label=x_label, y_axis_label=y_label, width=WIDTH, height=height, **settings)
