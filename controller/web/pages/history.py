"""The history of a month: what was used and saved on each day, and by job, user, day, GPU or node."""

import re
from collections.abc import Iterator
from datetime import date, datetime, tzinfo
from typing import Annotated, Final, Literal, get_args
from urllib.parse import urlencode

from msgspec import Meta, Struct

from controller.history.energy_history.query import Report
from controller.web.charts.figure import render_chart
from controller.web.charts.markup import Markup, element, escaped, joined
from controller.web.pages.layout import render_card, render_page
from controller.web.report_page import days_chart, render_comparison, render_rows, title_text

By = Literal["job", "user", "day", "gpu", "node"]
MONTH: Final = re.compile(r"\A\d{4}-\d{2}\Z")


class HistoryQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which month is asked for, None: the present one; and lines by what."""

    month: Annotated[str, Meta(max_length=7)] | None = None
    by: By = "job"


def month_of(now_s: float, zone: tzinfo) -> str:
    """Return the month of a time [Unix s], such as 2026-11."""
    return f"{datetime.fromtimestamp(now_s, zone):%Y-%m}"


def render_history(month: str, days: Report, rows: Report, *, now_s: float, zone: tzinfo) -> str:
    """Return the page of a month, HTML: its days, and its lines by anything."""
    total = days.total
    parts = [render_card(f"{_month_text(month)}: {title_text(total)}", *_links(month, rows.by, now_s, zone))]
    if total.runs:
        used = [render_comparison(total)] if total.measured_runs else []
        chart = render_chart(days_chart(total, days.rows))
        parts += [element("section", chart, class_="card"), *(render_card("With and without", table) for table in used)]
    if rows.rows:
        parts.append(render_card(f"By {rows.by}", *render_rows(rows.by, rows.total, rows.rows)))
    parts.append(element("p", escaped(days.combined), class_="note"))
    return render_page("History", current="/history", parts=parts, now_s=now_s, zone=zone)


def _month_text(month: str) -> str:
    return f"{date.fromisoformat(f'{month}-01'):%B %Y}"


def _links(month: str, by: str, now_s: float, zone: tzinfo) -> Iterator[Markup]:
    """Yield where other months, other lines and the same numbers for programs are."""
    year, number = map(int, month.split("-"))
    months = {
        "the month before": f"{year - (number == 1):04}-{(number - 2) % 12 + 1:02}",
        "the month after": f"{year + number // 12:04}-{number % 12 + 1:02}",
    }
    there = {name: it for name, it in months.items() if "1970-01" < it <= month_of(now_s, zone)}
    yield _line("", [_link(name, "/history", month=it, by=by) for name, it in there.items()])
    others = [_link(it, "/history", month=month, by=it) for it in get_args(By) if it != by]
    yield _line("By ", [element("b", escaped(by)), *others])
    yield _line("For programs: ", [_link("JSON", "/v1/report", month=month, by=by)])


def _line(before: str, links: list[Markup]) -> Markup:
    return element("p", escaped(before), joined(links, " · "))


def _link(name: str, path: str, **query: str) -> Markup:
    return element("a", escaped(name), href=f"{path}?{urlencode(query)}")
