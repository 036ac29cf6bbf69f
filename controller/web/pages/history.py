"""A month of the site: what its runs used and saved, as a report has it, or what its GPUs and nodes used."""

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from typing import Final, Literal, NamedTuple
from urllib.parse import urlencode

from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Connection

from controller.history.energy_history.query import (
    BY_HARDWARE,
    AskedTime,
    Report,
    ReportQuery,
    make_reports,
    period_of,
)
from controller.history.energy_history.reading import oldest_s
from controller.runtime.markup import Markup, element, escaped
from controller.web.charts.document import render_table
from controller.web.pages.layout import render_card, render_page
from controller.web.pages.words import sentence_text
from controller.web.report_page import page_of, report_sections, used_text

MAX_ROWS: Final = 256
"""Of GPUs or nodes; of more those that used most."""
_GROUPS: Final = {"job": "job", "user": "user", "day": "day", "run": "run", "gpu": "GPU", "node": "node"}


class HistoryQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which month, such as 2026-11, and lines by what; None: this month."""

    month: AskedTime | None = None
    by: Literal["job", "user", "day", "run", "gpu", "node"] = "job"


class History(NamedTuple):
    """A month: its name, such as 2026-11, when the history began, and what is read of it, the days and GPUs too."""

    month: str
    first_s: float
    found: Report
    days: Report
    gpus: Report


def read_month(
    connection: Connection, query: HistoryQuery, now_s: float, zone: tzinfo, faults: list[str]
) -> History | None:
    """Return a month.

    Args:
        connection: in a transaction.
        query: which one.
        now_s: the time [Unix s].
        zone: of its days.
        faults: what is wrong with the query is added to them; then the answer is None.
    """
    month = query.month or f"{datetime.fromtimestamp(now_s, zone):%Y-%m}"
    asked = ReportQuery(by=query.by, month=month)
    period = period_of(asked, now_s, faults, zone)
    if faults or period is None:
        return None
    found, days, gpus = make_reports(
        connection, [asked, replace(asked, by="day"), replace(asked, by="gpu")], period, now_s, zone
    )
    return History(month, oldest_s(connection) or now_s, found, days, gpus)


def render_history(history: History, *, now_s: float, zone: tzinfo) -> str:
    """Return the page, HTML."""
    by = history.found.by
    page = page_of(history.found, days=history.days, gpus=history.gpus, zone=zone, is_month=True)
    if by in BY_HARDWARE:
        cards = [_hardware(history.found)]
    else:
        cards = [render_card(title, *content) for title, content in report_sections(page)]
    return render_page(
        f"History: {page.period}",
        current="/history",
        parts=[_choices(history, now_s, zone), *cards],
        now_s=now_s,
        zone=zone,
    )


def _choices(history: History, now_s: float, zone: tzinfo) -> Markup:
    """Return links to other months, to other lines, and to the same as JSON and CSV."""
    by, month = history.found.by, history.month
    first, newest = (f"{datetime.fromtimestamp(at_s, zone):%Y-%m}" for at_s in (history.first_s, now_s))
    months = [(name, _address(other, by)) for name, other in _beside(month) if first <= other <= newest]
    groups = [(f"by {name}", _address(month, group)) for group, name in _GROUPS.items()]
    file = f"/v1/report?{urlencode({'month': month, 'by': by})}"
    files = [("as JSON", file), ("as CSV", f"{file}&format=csv")]
    return element(
        "nav",
        element(
            "ul",
            *(
                element(
                    "li",
                    element("a", escaped(text), href=to, aria_current="true" if to == _address(month, by) else None),
                )
                for text, to in (*months, *groups, *files)
            ),
        ),
        class_="choices",
        aria_label="What is shown",
    )


def _address(month: str, by: str) -> str:
    return f"/history?{urlencode({'month': month, 'by': by})}"


def _beside(month: str) -> Iterator[tuple[str, str]]:
    """Yield the months before and after one, each with the words that lead to it."""
    year, number = (int(part) for part in month.split("-"))
    for step, words in ((-1, "← {}"), (1, "{} →")):
        at = datetime(year + (number - 1 + step) // 12, (number - 1 + step) % 12 + 1, 1, tzinfo=UTC)
        yield words.format(f"{at:%B}"), f"{at:%Y-%m}"


def _hardware(found: Report) -> Markup:
    """Return what GPUs or nodes used, with runs and without, the most first."""
    rows = sorted(found.rows, key=lambda row: -(row.energy_j or 0.0))
    shown = [(row.name, used_text(row)) for row in (*rows[:MAX_ROWS], replace(found.total, name="all"))]
    table = render_table((_GROUPS[found.by], "used"), shown, row_classes=[*("" for _ in shown[1:]), "sum"])
    note = [element("p", escaped(f"{len(rows) - MAX_ROWS} more, which used less, are in the sum."), class_="note")]
    return render_card(
        f"By {_GROUPS[found.by]}",
        element("p", escaped(sentence_text(found.headline))),
        table,
        *(note if len(rows) > MAX_ROWS else []),
    )
