"""All runs: those that go on, and those that have ended in the last days."""

from collections.abc import Iterator, Sequence
from datetime import tzinfo
from typing import Final

from controller.history.energy_history.reading import PastRun
from controller.runtime.markup import NO_BREAK, NOTHING, Markup, element, escaped
from controller.web.charts.document import render_cells
from controller.web.live.site_state import SiteState
from controller.web.pages.layout import (
    State,
    render_card,
    render_page,
    render_state,
    render_time,
    render_turns,
    rows_of,
)
from controller.web.pages.overview import run_cells, running_runs
from controller.web.pages.savings import run_entry, savings_of, slower_text, told_saving
from controller.web.pages.words import run_path, run_words, typeset, without_number_text
from policies.vocabulary.units import DAY_S, duration_text
from publishers.messages.reports import RunEnergy
from publishers.messages.topics import RunKey

SINCE_S: Final = 7 * DAY_S
N_ENDED: Final = 200
_STATES: Final[dict[str, tuple[State, str]]] = {
    "running": ("ok", "running"),
    "finished": ("ok", "finished"),
    "lost": ("error", "lost: its process ended without a word"),
    "silent": ("warning", "silent: nothing was heard any more"),
}
_SLOWER: Final = f"slower (90{NO_BREAK}%)"
_SAVED: Final = f"saved (90{NO_BREAK}%)"


def render_runs(state: SiteState, ended: Sequence[PastRun], *, now_s: float, zone: tzinfo, page: int = 1) -> str:
    """Return a page of the runs that go on, HTML; the first has those that have ended, too.

    Args:
        state: what is known of the site.
        ended: those that the history knows, newest first.
        now_s: the time [Unix s].
        zone: that times are shown in.
        page: which page of those that go on; they count from 1.
    """
    running = running_runs(state, now_s)
    rows = [tuple(run_cells(key, run, now_s, zone)) for key, run in rows_of(list(running.items()), page)]
    parts = [_running(rows, page, len(running))]
    if page == 1:
        parts.append(_ended([run for run in ended if run.key not in running], now_s, zone))
    return render_page("Runs", current="/runs", parts=parts, now_s=now_s, zone=zone)


def _running(rows: Sequence[Sequence[Markup]], page: int, n_running: int) -> Markup:
    if not n_running:
        return render_card("Running", element("p", escaped("No run goes on."), class_="second"))
    headings = ("run", "done", f"slower so far (90{NO_BREAK}%)", f"saved so far (90{NO_BREAK}%)")
    table = render_cells(headings, rows, are_names=(True, True, False, False)) if rows else NOTHING
    return render_card("Running", table, render_turns("/runs", page, n_running))


def _ended(ended: Sequence[PastRun], now_s: float, zone: tzinfo) -> Markup:
    if not ended:
        return render_card("Ended", element("p", escaped("No run has ended in the last 7 days."), class_="second"))
    headings = ("run", "ended", "state", "took", "used", _SLOWER, _SAVED)
    rows = [tuple(_cells(run, now_s, zone)) for run in ended]
    table = render_cells(headings, rows, are_names=(True, True, True, False, False, False, False))
    note = f"in the last 7 days, at most {N_ENDED}"
    return render_card("Ended", table, note=note, link=("/history", "History"))


def _cells(run: PastRun, now_s: float, zone: tzinfo) -> Iterator[Markup]:
    record = run.record
    yield element("span", run_link(run.key), escaped(f" {NO_BREAK}"), who(run.key, record))
    yield render_time(run.heard_s, now_s, zone)
    yield render_run_state(record)
    yield escaped(typeset(duration_text(record.duration_s)) if record.n_gpus else "")
    yield escaped(used_text(run.key, record))
    entry = run_entry(run.key, record)
    told = told_saving(entry)
    yield escaped(slower_text(entry) or without_number_text(record))
    yield escaped(told.saved_text if told is not None else without_number_text(record))


def run_link(key: RunKey) -> Markup:
    """Return the name of a run's job, which leads to its page."""
    return element("a", element("bdi", escaped(key.job)), href=run_path(key))


def who(key: RunKey, record: RunEnergy) -> Markup:
    """Return whose run it is, which, and on what."""
    return element("span", element("bdi", escaped(key.user)), escaped(f" · {run_words(key, record)}"), class_="note")


def render_run_state(record: RunEnergy) -> Markup:
    """Return the state of a run."""
    return render_state(*_STATES[record.state])


def used_text(key: RunKey, record: RunEnergy) -> str:
    """Return what a run has used: energy, money, carbon, as far as these are known."""
    if not record.n_gpus:
        return "not measured: it never held a GPU"
    quantities = savings_of(run_entry(key, record))
    return ", ".join(typeset(quantity.text_of(quantity.used or 0.0)) for quantity in quantities[::-1])
