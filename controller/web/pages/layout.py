"""What all pages share: head, header, cards, footer, and times."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, Literal, TypeVar
from zoneinfo import ZoneInfo

from controller.runtime.markup import NO_BREAK, NOTHING, Markup, element, escaped, joined
from controller.web.charts.ticks import number_text
from controller.web.live.site_state import Subject
from controller.web.pages.words import order_path

PAGES: Final = {
    "/": "Overview",
    "/gpus": "GPUs",
    "/runs": "Runs",
    "/jobs": "Jobs",
    "/grid": "Grid",
    "/log": "Log",
    "/history": "History",
}
"""What the header leads to."""
PAST_PAGES: Final = frozenset({"/log", "/history"})
"""They cost the database something, and are read again by hand; a script keeps the others up to date."""
State = Literal["ok", "warning", "error", "pinned", "idle", "measuring"]
"""What a text tells; each has a mark of its own shape before it: ✓ ▲ ✕ ◆ ○ ◔."""
Width = Literal["whole", "wide", "narrow", "half"]
N_ROWS: Final = 100
"""Of a long list on a page."""
Row = TypeVar("Row")
_WEEK: Final = timedelta(days=7)


def render_page(
    title: str,
    *,
    current: str,
    parts: Iterable[Markup],
    now_s: float,
    zone: tzinfo,
    shows_title: bool = True,
    follows: bool = True,
) -> str:
    """Return a page, HTML.

    Args:
        title: plain text, in the head and as the heading.
        current: the path of the page that the header marks as the present one.
        parts: what is in it: cards.
        now_s: the time [Unix s].
        zone: that times are shown in.
        shows_title: whether the heading is seen, not only heard.
        follows: whether a script may read the page again.
    """
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", escaped(f"{title} \u2013 gridchase")),
        element("link", rel="icon", href="/static/icon.svg", type="image/svg+xml"),
        element("link", rel="stylesheet", href="/static/page.css"),
        element("script", src="/static/theme.js"),
        element("script", src="/static/page.js", defer=""),
        element("script", src="/static/orders.js", defer=""),
    )
    heading = element("h1", escaped(title), class_=None if shows_title else "unseen")
    is_live = follows and current not in PAST_PAGES
    body = element(
        "body",
        element("a", escaped("To the content"), class_="skip", href="#main"),
        _header(current, now_s, zone),
        element(
            "main", heading, joined(parts, "\n"), id="main", data_follows="" if is_live else None, data_zone=_key(zone)
        ),
        _footer(now_s, zone),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _header(current: str, now_s: float, zone: tzinfo) -> Markup:
    links = (
        element("li", element("a", escaped(name), href=path, aria_current="page" if path == current else None))
        for path, name in PAGES.items()
    )
    return element(
        "header",
        element("a", escaped("gridchase"), class_="brand", href="/"),
        element("nav", element("ul", *links), aria_label="Pages"),
        element("p", escaped("as of "), render_time(now_s, now_s, zone), class_="heard", id="heard"),
        element("div", id="theme"),
    )


def _footer(now_s: float, zone: tzinfo) -> Markup:
    name = datetime.fromtimestamp(now_s, zone).tzname() or "its own zone"
    whose = _key(zone).replace("_", " ") or f"the machine that serves this page ({name})"
    words = (
        f"Saved and slower are against the same work at the prior limits, with 90{NO_BREAK}% intervals."
        f" Times and days are those of {whose}."
    )
    return element("footer", element("p", escaped(words)))


def _key(zone: tzinfo) -> str:
    """Return the name of a zone of the database; "" of this machine's."""
    return zone.key if isinstance(zone, ZoneInfo) else ""


def render_card(
    title: str,
    *content: Markup,
    width: Width = "whole",
    note: str = "",
    link: tuple[str, str] | None = None,
    id_: str | None = None,
) -> Markup:
    """Return a card of a page.

    Args:
        title: its heading, plain text.
        content: what is in it.
        width: of the page: whole, two thirds, a third, or half of it; on a narrow screen all are whole.
        note: what stands beside the heading, plain text.
        link: where the heading's line leads, and the words for it.
        id_: of the element.
    """
    head = [element("h2", escaped(title))]
    if note:
        head.append(element("p", escaped(note), class_="note"))
    if link is not None:
        head.append(element("a", escaped(link[1]), href=link[0]))
    return element("section", element("div", *head, class_="head"), *content, class_=f"card {width}", id=id_)


def rows_of(rows: Sequence[Row], page: int) -> Sequence[Row]:
    """Return the rows that a page of a long list has; pages count from 1."""
    return rows[N_ROWS * (page - 1) : N_ROWS * page]


def render_turns(path: str, page: int, n_rows: int) -> Markup:
    """Return which of how many rows a page of a list has, and links to the others; nothing where all are on one."""
    if n_rows <= N_ROWS and page == 1:
        return NOTHING
    first, last = N_ROWS * (page - 1) + 1, min(N_ROWS * page, n_rows)
    of = number_text(n_rows, 0)
    shown = f"{number_text(first, 0)} to {number_text(last, 0)} of {of}" if first <= last else f"there are only {of}"
    turns = [escaped(shown)]
    if page > 1:
        turns.append(element("a", escaped("first"), href=path))
    if last < n_rows:
        turns.append(element("a", escaped("next"), href=f"{path}?page={page + 1}", rel="next"))
    return element("p", joined(turns, " · "))


def render_state(state: State, text: str) -> Markup:
    """Return a text with the mark of a state before it."""
    return element("span", escaped(text), class_=f"state {state}")


def render_facts(facts: Iterable[tuple[str, Markup]]) -> Markup:
    """Return what is known of a thing, as a list of names and texts."""
    pairs = (joined([element("dt", escaped(name)), element("dd", said)]) for name, said in facts)
    return element("dl", *pairs, class_="facts left")


def render_time(time_s: float, now_s: float, zone: tzinfo) -> Markup:
    """Return a moment [Unix s]."""
    moment = datetime.fromtimestamp(time_s, UTC)
    return element("time", escaped(moment_text(time_s, now_s, zone)), datetime=f"{moment:%Y-%m-%dT%H:%M:%SZ}")


def moment_text(time_s: float, now_s: float, zone: tzinfo) -> str:
    """Return a moment [Unix s]: the time, within a week with the weekday, beyond with the date."""
    moment, now = (datetime.fromtimestamp(at_s, zone) for at_s in (time_s, now_s))
    clock = f"{moment:%H:%M}"
    if moment.date() == now.date():
        return clock
    if abs(moment.date() - now.date()) < _WEEK:
        return f"{moment:%a}{NO_BREAK}{clock}"
    year = "" if moment.year == now.year else f"{NO_BREAK}{moment.year}"
    return f"{moment.day}{NO_BREAK}{moment:%b}{year}{NO_BREAK}{clock}"


def render_bar(
    label: str, *, drawn_ratio: float, mark_ratio: float | None = None, kind: str = "", id_: str | None = None
) -> Markup:
    """Return a bar: how much is filled, perhaps with a mark; both are shares of its width, an SVG's attributes.

    The pages allow no inline style. `label` is read aloud: what no text beside the bar says; "": nothing.
    """
    drawn_ratio = min(max(drawn_ratio, 0.0), 1.0)
    mark = NOTHING
    if mark_ratio is not None:
        x = f"{100 * min(max(mark_ratio, 0.0), 1.0):.1f}%"
        mark = element("line", x1=x, x2=x, y1="-15%", y2="115%", class_="mark")
    return element(
        "svg",
        element("rect", width="100%", height="100%", class_="whole"),
        element("rect", width=f"{100 * drawn_ratio:.1f}%", height="100%", class_="filled"),
        mark,
        class_=f"gauge {kind}".rstrip(),
        role="img" if label else None,
        aria_label=label or None,
        aria_hidden=None if label else "true",
        id=id_,
    )


def render_order_links(subject: Subject, words: Mapping[str, str], *, name: str = "") -> Markup:
    """Return links to where something is ordered, by the action; a script opens them in a dialog.

    Args:
        subject: the run or the GPU.
        words: by action.
        name: what it is called, for whoever hears the links without what stands beside them; "": one sees that.
    """
    links = [
        element(
            "a",
            escaped(each),
            href=order_path(subject, action),
            data_order="",
            aria_label=f"{each} {name}" if name else None,
        )
        for action, each in words.items()
    ]
    return joined(links, " · ")
