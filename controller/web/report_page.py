"""A report as a page: one file without script, which prints on two sheets; a function of the report's lines."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, tzinfo
from itertools import groupby
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from controller.history.energy_history.query import Report
from controller.history.energy_history.report import HOW_COMBINED, TOO_EARLY, Entry
from controller.history.energy_history.sentence import PART_NAMES, worked_text
from controller.runtime.markup import NO_BREAK, Markup, element, escaped
from controller.web.charts.document import render_document, render_table
from controller.web.charts.figure import render_chart
from controller.web.charts.marks import Bars, Chart, NameAxis, NumberAxis, Panel
from controller.web.charts.ticks import number_text
from controller.web.pages.savings import savings_of, slower_text, split_of, told_saving
from controller.web.pages.words import percent_text, range_text, sentence_text, typeset
from policies.vocabulary.units import JOULES_PER_KWH, duration_text
from publishers.training.reporting.amounts import energy_text

MAX_DAYS: Final = 31
"""A month; of more days the last ones are shown."""
MAX_ROWS: Final = 31
"""Of jobs, users or runs; of more those that used most."""
MAX_PRINTED_ROWS: Final = 15
"""The same on a page for paper, so that it fits on two sheets."""
MAX_SPLIT_ROWS: Final = 8
"""What a saving is made of is shown of so many lines; of more, of their sum alone."""
MAX_BARS: Final = 100
"""Of more days the bars are months."""
_SUMMED: Final = tuple(
    name for name in Entry.__struct_fields__ if name.endswith(("_j", "_g", "cost", "_s", "_cost_ci90"))
)
"""Of a line's amounts; a sum of intervals is one that is wide enough, whatever is the same in several days."""
_MONTH_LETTERS: Final = len("2026-11")
UNKNOWN: Final = "not known"


class ReportPage(Struct, frozen=True, kw_only=True):
    """What the page shows.

    Attributes:
        period: the time it is about, as text.
        headline: what was used and saved, as a sentence.
        by: what a line is of: "job", "user", "run" or "day".
        total: the sum.
        rows: the lines.
        days: a line for each day with a run.
        without_run_j: what GPUs used without a run [J]; None: not known.
        counted: by which signals, and what: a sentence each.
    """

    period: str
    headline: str
    by: str
    total: Entry
    rows: Sequence[Entry]
    days: Sequence[Entry]
    without_run_j: float | None = None
    counted: Sequence[str] = ()


class Section(NamedTuple):
    """A part of a page: its heading, plain text, and what is below."""

    title: str
    content: list[Markup]


def page_of(
    found: Report, *, days: Report, gpus: Report | None = None, zone: tzinfo | None = None, is_month: bool
) -> ReportPage:
    """Return what a page shows of reports about one time.

    Args:
        found: the lines.
        days: by day.
        gpus: what GPUs used, with runs and without; None: the runs are not all there were.
        zone: that days are named in; None: this machine's.
        is_month: whether the time is a month, and called so.
    """
    used_j = None if gpus is None else gpus.total.energy_j
    rest_j = 0.0 if used_j is None else used_j - (found.total.energy_j or 0.0)
    begin, end = (datetime.fromtimestamp(at_s, UTC).astimezone(zone) for at_s in (found.since_s, found.until_s))
    return ReportPage(
        period=f"{begin:%B %Y}" if is_month else f"{begin:%Y-%m-%d} to {end:%Y-%m-%d}",
        headline=found.headline,
        by=found.by,
        total=found.total,
        rows=found.rows,
        days=days.rows,
        without_run_j=rest_j if rest_j > 0 else None,
        counted=found.counted,
    )


def render_report(page: ReportPage, *, command: str, fingerprint: str, version: str) -> str:
    """Return the page, HTML.

    Args:
        page: what it shows.
        command: the command that makes it.
        fingerprint: a hash of the numbers.
        version: of this program.
    """
    first, *more = report_sections(page, max_rows=MAX_PRINTED_ROWS)
    return render_document(
        first.title,
        [
            element("p", escaped("gridchase report"), class_="note"),
            element("h1", escaped(first.title)),
            *first.content,
            *(part for section in more for part in (element("h2", escaped(section.title)), *section.content)),
            element("p", escaped("The same page: "), element("code", escaped(command)), class_="note"),
            element("p", escaped(f"Numbers: {fingerprint} (SHA-256). gridchase {version}"), class_="note"),
        ],
    )


def report_sections(page: ReportPage, *, max_rows: int = MAX_ROWS) -> list[Section]:
    """Return what was used and saved in all and over time, then the lines, then how it was counted.

    Of more than `max_rows` jobs, users or runs those that used most are shown.
    """
    whole = [element("p", escaped(sentence_text(page.headline)))]
    if page.total.measured_runs:
        whole.append(_comparison(page.total))
    if len(page.days) > 1:
        whole.append(render_chart(_over_time(page)))
    how = element("ul", *(element("li", escaped(text)) for text in _how_counted(page)))
    return [
        Section(f"{page.period}: {_headline(page.total)}", whole),
        *([Section(f"By {page.by}", list(_rows(page, max_rows)))] if page.rows else []),
        Section("How this was counted", [how]),
    ]


def _headline(total: Entry) -> str:
    if not total.runs:
        return "no run"
    told = told_saving(total)
    if told is None or told.saved is None:
        return f"{TOO_EARLY} what was saved"
    what = "saved" if told.saved >= 0 else "more used"
    share = "" if told.saved_ratio is None else f", {typeset(percent_text(abs(told.saved_ratio)))}"
    return f"{typeset(told.text_of(abs(told.saved)))} {what}{share} (90{NO_BREAK}%: {told.interval})"


def _comparison(total: Entry) -> Markup:
    """Return a table of what was used with and without, and what was saved; of the runs with evidence."""
    rows = [
        (
            quantity.name,
            typeset(quantity.text_of(quantity.baseline - quantity.saved)),
            typeset(quantity.text_of(quantity.baseline)),
            f"{typeset(quantity.text_of(quantity.saved))}{_share(quantity.saved_ratio)}",
            quantity.interval,
        )
        for quantity in savings_of(total)
        if quantity.baseline is not None and quantity.saved is not None
    ]
    if total.baseline_duration_s and total.slowdown_ratio and total.slowdown_ci90_ratio is not None:
        change = total.slowdown_ratio - 1
        lower, upper = (total.slowdown_ratio - 1 + sign * total.slowdown_ci90_ratio for sign in (-1, 1))
        rows.append((
            "Time",
            typeset(duration_text(total.baseline_duration_s * total.slowdown_ratio)),
            typeset(duration_text(total.baseline_duration_s)),
            typeset(f"{percent_text(abs(change))} {'less' if change < 0 else 'more'} time"),
            range_text(percent_text(lower), percent_text(upper)),
        ))  # fmt: skip
    return render_table(("quantity", "with gridchase", "same work at the prior limits", "saved", "90 % interval"), rows)


def _over_time(page: ReportPage) -> Chart:
    """Return what was used and saved on each day, or in each month; the whisker is the interval of what was saved."""
    is_daily = len(page.days) <= MAX_BARS
    entries = page.days if is_daily else _months(page.days)
    name, unit, size = _bar_unit(page.total, entries)
    bars_of = [{quantity.name: quantity for quantity in savings_of(entry)}.get(name) for entry in entries]
    used = [(one.used or 0.0) / size if one else 0.0 for one in bars_of]
    known = [
        (place, one.saved / size, (one.ci90 or 0.0) / size)
        for place, one in enumerate(bars_of)
        if one and one.saved is not None
    ]
    bars = [
        Bars(
            name="used",
            xs=range(len(used)),
            ys=used,
            texts=[used_text(entry) for entry in entries],
            colour="power",
            is_tinted=True,
        ),
        Bars(
            name="saved, with its 90 % interval",
            xs=[place for place, _, _ in known],
            ys=[used[place] + max(saved, 0.0) for place, saved, _ in known],
            bottoms=[used[place] for place, _, _ in known],
            lowers=[used[place] + saved - half for place, saved, half in known],
            uppers=[used[place] + saved + half for place, saved, half in known],
            texts=[_saved_text(entries[place]) for place, _, _ in known],
            colour="saved",
        ),
    ]
    period = "day" if is_daily else "month"
    return Chart(
        title=f"{period.capitalize()} by {period}",
        words="Used, and saved against the same work at the prior limits; no saving is shown without evidence.",
        x_axis=NameAxis(names=[_date_text(entry.name) for entry in entries], label=period),
        panels=[Panel(axis=NumberAxis(label=f"{unit} a {period}", has_zero=True), marks=bars)],
        has_table=page.by != "day" or len(page.days) > MAX_DAYS,
    )


def _months(days: Sequence[Entry]) -> list[Entry]:
    """Return the sums of the days of each month, named as in `2026-11`."""
    return [_sum_of(name, list(group)) for name, group in groupby(days, key=lambda day: day.name[:_MONTH_LETTERS])]


def _sum_of(name: str, days: Sequence[Entry]) -> Entry:
    currencies = {day.currency for day in days if day.currency is not None}
    total: dict[str, float | None] = {}
    for quantity in _SUMMED:
        known = [amount for day in days if (amount := getattr(day, quantity)) is not None]
        is_known = bool(known) and (len(currencies) <= 1 or "cost" not in quantity)
        total[quantity] = sum(known) if is_known else None
    for stem, unit in (("energy", "_j"), ("carbon", "_g"), ("cost", "")):
        saved, baseline = total[f"saved_{stem}{unit}"], total[f"baseline_{stem}{unit}"]
        total[f"saved_{stem}_ratio"] = saved / baseline if saved is not None and baseline else None
    return replace(Entry(name=name, currency=currencies.pop() if len(currencies) == 1 else None), **total)


def _date_text(name: str) -> str:
    """Return a day as `1 May`, and a month as `May 2021`."""
    if len(name) <= _MONTH_LETTERS:
        return f"{date.fromisoformat(f'{name}-01'):%b %Y}"
    day = date.fromisoformat(name)
    return f"{day.day} {day:%b}"


def _bar_unit(total: Entry, entries: Sequence[Entry]) -> tuple[str, str, float]:
    """Return which quantity the bars show, as in the headline; its unit, and the size of that."""
    told = told_saving(total) or next(iter(savings_of(total)), None)
    if told is not None and told.name == "CO₂e":
        most_g = max((entry.carbon_g or 0.0 for entry in entries), default=0.0)
        return (told.name, "kg CO₂e", 1e3) if most_g >= 1e3 else (told.name, "g CO₂e", 1.0)  # noqa: PLR2004 — a kilogram
    if told is not None and told.name == "Cost":
        return told.name, total.currency or "cost", 1.0
    return "Energy", "kWh", JOULES_PER_KWH


def _rows(page: ReportPage, max_rows: int) -> Iterator[Markup]:
    """Yield the lines and their sum as a table; of many, those that used most, and of days the last ones."""
    rows = list(page.rows)
    if page.by == "day":
        rows = rows[-MAX_DAYS:]
    elif len(rows) > max_rows:
        rows = sorted(rows, key=lambda row: -(row.energy_j or 0.0))[:max_rows]
    total = [replace(page.total, name="all")] if len(page.rows) > 1 else []
    shown = rows + total
    yield _table((page.by, "runs", "time", "used", "saved (90 %)", "slower (90 %)"), map(_cells, shown), total)
    if len(page.rows) > len(rows):
        left_out = number_text(len(page.rows) - len(rows))
        which = "earlier ones" if page.by == "day" else "more, which used less,"
        yield element("p", escaped(f"{left_out} {which} are in the sum."), class_="note")
    split = [row for row in (shown if len(page.rows) <= MAX_SPLIT_ROWS else total) if row.measured_runs]
    if any(map(split_of, split)):
        yield element("p", escaped("What the saving is made of, with 90 % intervals:"))
        yield _table((page.by, *PART_NAMES.values()), map(_split_cells, split), total)
    if any(map(worked_text, rows)):
        yield element("p", escaped("Work as the training programs report it, and the energy of the GPUs for it:"))
        lines = total if page.by == "day" and any(map(worked_text, total)) else shown
        worked = [(row.name, worked_text(row) or UNKNOWN) for row in lines if row in total or worked_text(row)]
        yield _table((page.by, "work"), worked, total)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], total: Sequence[Entry]) -> Markup:
    """Return lines as a table, the last of which is their sum where there is one."""
    cells = list(rows)
    return render_table(headings, cells, row_classes=[*("" for _ in cells[1:]), "sum"] if total else ())


def _split_cells(row: Entry) -> tuple[str, ...]:
    return row.name, *([part.saved_text for _, part in split_of(row)] or [UNKNOWN] * len(PART_NAMES))


def _cells(row: Entry) -> tuple[str, ...]:
    slower = slower_text(row) or UNKNOWN
    time = typeset(duration_text(row.duration_s or 0.0))
    return row.name, number_text(row.runs or 0), time, used_text(row), _saved_text(row), slower


def used_text(entry: Entry) -> str:
    """Return what a line has used: energy, carbon and cost, where they are known."""
    return ", ".join(typeset(quantity.text_of(quantity.used or 0.0)) for quantity in savings_of(entry)[::-1])


def _saved_text(entry: Entry) -> str:
    told = told_saving(entry)
    return TOO_EARLY if told is None else told.saved_text


def _how_counted(page: ReportPage) -> Iterator[str]:
    yield (
        "Savings compare with the same iterations at the power limit that each GPU had before, in the hours in which"
        " they would have run there. A saving counts on the day on which it becomes known, so a day may be negative;"
        " days add up to runs."
    )
    yield HOW_COMBINED
    runs, measured = page.total.runs or 0, page.total.measured_runs or 0
    if measured < runs:
        of = "1 run" if runs == 1 else f"all {number_text(runs)} runs"
        known = f"known for {number_text(measured)} of them, and told of {'that one' if measured == 1 else 'those'}"
        yield f"Use is that of {of}; savings and slowdown are {f'{known} alone' if measured else 'not known yet'}."
    yield from page.counted
    if page.without_run_j is not None:
        yield f"Not counted: {typeset(energy_text(page.without_run_j))} that GPUs used outside runs."


def _share(ratio: float | None) -> str:
    return "" if ratio is None else f", {typeset(percent_text(ratio))}"
