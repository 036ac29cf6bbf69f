"""A report as a page: one file without script, which prints on two sheets; a function of the report's lines."""

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from controller.history.energy_history.report import HOW_COMBINED, TOO_EARLY, Entry
from controller.runtime.markup import NO_BREAK, Markup, element, escaped
from controller.web.charts.document import render_document, render_table
from controller.web.charts.figure import render_chart
from controller.web.charts.marks import Bars, Chart, NameAxis, NumberAxis, Panel
from controller.web.charts.ticks import number_text
from controller.web.pages.savings import savings_of, slower_text, told_saving
from controller.web.pages.words import percent_text, range_text, typeset
from policies.vocabulary.units import JOULES_PER_KWH, duration_text
from publishers.training.reporting.amounts import energy_text

MAX_ROWS: Final = 31
"""A month of days; more would not fit on two sheets: those that used most are shown, and of days the last ones."""
_UNKNOWN: Final = "not known"


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
        command: the command that makes the page.
        fingerprint: a hash of the numbers.
        version: of this program.
    """

    period: str
    headline: str
    by: str
    total: Entry
    rows: Sequence[Entry]
    days: Sequence[Entry]
    without_run_j: float | None = None
    command: str
    fingerprint: str
    version: str


def render_report(page: ReportPage) -> str:
    """Return the page, HTML."""
    title = f"{page.period}: {_headline(page.total)}"
    return render_document(
        title,
        [
            element("p", escaped("gridchase report"), class_="note"),
            element("h1", escaped(title)),
            element("p", escaped(page.headline)),
            *([_comparison(page.total)] if page.total.measured_runs else []),
            *([render_chart(_by_day(page))] if page.days else []),
            *_rows(page),
            element("h2", escaped("How this was counted")),
            element("ul", *(element("li", escaped(text)) for text in _how_counted(page))),
            element("p", escaped("The same page: "), element("code", escaped(page.command)), class_="note"),
            element("p", escaped(f"Numbers: {page.fingerprint} (SHA-256). gridchase {page.version}"), class_="note"),
        ],
    )


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
    return render_table(("", "with gridchase", "same work at the prior limits", "saved", "90 % interval"), rows)


def _by_day(page: ReportPage) -> Chart:
    """Return what was used and saved on each day; the whisker is the interval of what was saved."""
    name, unit, size = _day_unit(page)
    days = [{quantity.name: quantity for quantity in savings_of(day)}.get(name) for day in page.days]
    used = [(day.used or 0.0) / size if day else 0.0 for day in days]
    known = [
        (place, day.saved / size, (day.ci90 or 0.0) / size)
        for place, day in enumerate(days)
        if day and day.saved is not None
    ]
    bars = [
        Bars(
            name="used",
            xs=range(len(used)),
            ys=used,
            texts=[_used_text(day) for day in page.days],
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
            texts=[_saved_text(page.days[place]) for place, _, _ in known],
            colour="saved",
        ),
    ]
    return Chart(
        title="Day by day",
        words="Used, and saved against the same work at the prior limits. A day without evidence has no saving.",
        x_axis=NameAxis(names=[_day_text(day.name) for day in page.days], label="day"),
        panels=[Panel(axis=NumberAxis(label=f"{unit} a day", has_zero=True), marks=bars)],
    )


def _day_text(name: str) -> str:
    day = date.fromisoformat(name)
    return f"{day.day} {day:%b}"


def _day_unit(page: ReportPage) -> tuple[str, str, float]:
    """Return which quantity the bars show, as in the headline; its unit, and the size of that."""
    told = told_saving(page.total) or next(iter(savings_of(page.total)), None)
    if told is not None and told.name == "CO₂e":
        most_g = max((day.carbon_g or 0.0 for day in page.days), default=0.0)
        return (told.name, "kg CO₂e", 1e3) if most_g >= 1e3 else (told.name, "g CO₂e", 1.0)  # noqa: PLR2004 — a kilogram
    if told is not None and told.name == "Cost":
        return told.name, page.total.currency or "cost", 1.0
    return "Energy", "kWh", JOULES_PER_KWH


def _rows(page: ReportPage) -> Iterator[Markup]:
    """Yield the lines and their sum as a table; of many, those that used most, and of days the last ones."""
    if not page.rows:
        return
    shown = list(page.rows)
    if page.by == "day":
        shown = shown[-MAX_ROWS:]
    elif len(shown) > MAX_ROWS:
        shown = sorted(shown, key=lambda row: -(row.energy_j or 0.0))[:MAX_ROWS]
    yield element("h2", escaped(f"By {page.by}"))
    yield render_table(
        (page.by, "runs", "time", "used", "saved (90 %)", "slower (90 %)"),
        [_cells(row) for row in (*shown, replace(page.total, name="all"))],
        row_classes=[*("" for _ in shown), "sum"],
    )
    if len(page.rows) > MAX_ROWS:
        left_out = number_text(len(page.rows) - MAX_ROWS)
        which = "earlier ones" if page.by == "day" else "more, which used less,"
        yield element("p", escaped(f"{left_out} {which} are in the sum."), class_="note")


def _cells(row: Entry) -> tuple[str, ...]:
    slower = slower_text(row) or _UNKNOWN
    time = typeset(duration_text(row.duration_s or 0.0))
    return row.name, number_text(row.runs or 0), time, _used_text(row), _saved_text(row), slower


def _used_text(entry: Entry) -> str:
    return ", ".join(typeset(quantity.text_of(quantity.used or 0.0)) for quantity in savings_of(entry)[::-1])


def _saved_text(entry: Entry) -> str:
    told = told_saving(entry)
    return TOO_EARLY if told is None else told.saved_text


def _how_counted(page: ReportPage) -> Iterator[str]:
    yield (
        "Saved: against the same iterations at the power limit that each GPU had before, in the hours in which they"
        " would have been done there. A day has what became known on it, and may be negative; days add up to runs."
    )
    yield HOW_COMBINED
    runs, measured = page.total.runs or 0, page.total.measured_runs or 0
    if measured < runs:
        yield (
            f"Used is of all {number_text(runs)} runs; what was saved, and how much longer it took, is known of"
            f" {number_text(measured)}, and counts those alone."
        )
    if page.total.carbon_g is not None:
        yield (
            "Carbon: location-based, by the grid signal of each node's configuration, which says whether it is average"
            " or marginal, and whether PUE and host power are counted; this history does not record them."
        )
    if page.without_run_j is not None:
        yield f"Not counted: {typeset(energy_text(page.without_run_j))} that GPUs used without a run."


def _share(ratio: float | None) -> str:
    return "" if ratio is None else f", {typeset(percent_text(ratio))}"
