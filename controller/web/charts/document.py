"""Pages of one file that load nothing else, have no script, and print."""

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Final

from controller.runtime.markup import NO_BREAK, Markup, element, escaped, joined
from controller.web.charts.style import CHARTS, COLOURS, DOCUMENT, FIGURES, TABLES

_ONE_LINE: Final = 20
"""A cell with at most so many letters that is no name is on one line."""


def render_document(title: str, parts: Iterable[Markup]) -> str:
    """Return a page, HTML; the title is plain text."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", escaped(title)),
        element("style", Markup(f"{COLOURS}{CHARTS}{FIGURES}{TABLES}{DOCUMENT}")),
    )
    body = element("body", element("main", joined(parts, "\n")))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def render_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    row_classes: Iterable[str] = (),
    row_places: Iterable[float] = (),
    n_names: int = 1,
    last_is_text: bool = False,
) -> Markup:
    """Return a table of texts, HTML.

    Args:
        headings: plain text, as the cells.
        rows: the cells of each.
        row_classes: the class of each row; none: no classes.
        row_places: where each row is in a chart, from the left, 0 to 1; none: in no chart.
        n_names: how many columns, from the left, are names: text, not numbers.
        last_is_text: whether the last column is text, too.
    """
    are_names = [place < n_names or (last_is_text and place == len(headings) - 1) for place in range(len(headings))]
    cells = (
        [escaped(cell if is_name else _unbroken(cell)) for cell, is_name in zip(row, are_names, strict=True)]
        for row in rows
    )
    return render_cells(headings, cells, are_names=are_names, row_classes=row_classes, row_places=row_places)


def render_cells(
    headings: Sequence[str],
    rows: Iterable[Sequence[Markup]],
    *,
    are_names: Sequence[bool],
    row_classes: Iterable[str] = (),
    row_places: Iterable[float] = (),
) -> Markup:
    """Return a table of anything, HTML; `are_names` says which columns are text, not numbers."""
    kinds = ["name" if is_name else None for is_name in are_names]
    head = element(
        "tr",
        *(element("th", escaped(text), class_=kind, scope="col") for text, kind in zip(headings, kinds, strict=True)),
    )
    classes, places = iter(row_classes), (f"{place:.3f}" if isfinite(place) else None for place in row_places)
    body = (
        element(
            "tr",
            *(
                element("td", cell, class_=kind, data_label=heading or None)
                for cell, kind, heading in zip(row, kinds, headings, strict=True)
            ),
            class_=next(classes, "") or None,
            data_x=next(places, None),
        )
        for row in rows
    )
    table = element("table", element("thead", head), element("tbody", *body))
    return element("div", table, class_="scroll")


def _unbroken(cell: str) -> str:
    return cell.replace(" ", NO_BREAK) if len(cell) <= _ONE_LINE else cell
