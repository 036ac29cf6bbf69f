"""The log: every decision about a power limit, newest first; two limits that alternate are one line."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import tzinfo
from itertools import pairwise
from typing import Final, NamedTuple
from urllib.parse import urlencode

from controller.runtime.markup import NOTHING, Markup, element, escaped, joined
from controller.web.charts.document import render_cells
from controller.web.pages.layout import moment_text, render_card, render_page, render_time
from controller.web.pages.words import decision_text, limit_text, pin_text, typeset
from publishers.messages.reasons import short_reason
from publishers.messages.reports import LimitChange
from publishers.training.reporting.amounts import power_text

N_DECISIONS: Final = 100
"""On a page."""
TOGETHER_S: Final = 5.0
"""GPUs get a limit within this time of each other: one decision [s]."""
FOLDED_S: Final = 7_200.0
"""So long two limits may alternate in one line [s]."""
_PLANNED: Final = ("_signal", "_static")
"""So the reasons of plans end that may share a time between two limits."""
_LOOK: Final = "refining"
"""The reason of a limit that is only compared with the planned one."""
N_MIXED: Final = 2
"""So many limits a plan has at most."""
N_FOLDED: Final = 4
"""Fewer decisions are shown each by itself."""


class Line(NamedTuple):
    """What one line of the log tells: one decision for some GPUs, or two limits that alternate; newest first.

    Attributes:
        changes: all of them.
        n_decisions: how many: a decision is a change for each of its GPUs.
    """

    changes: Sequence[LimitChange]
    n_decisions: int = 1

    @property
    def newest(self) -> LimitChange:
        """Return the newest change."""
        return self.changes[0]

    @property
    def gpus(self) -> list[str]:
        """Return the GPUs that it is about, by their numbers where these are known."""
        indices = {(change.gpu_index is None, change.gpu_index or 0, change.gpu_uuid or "") for change in self.changes}
        return [uuid if is_unknown else str(index) for is_unknown, index, uuid in sorted(indices)]


def log_lines(changes: Sequence[LimitChange]) -> list[Line]:
    """Return the lines of some changes of limits, both newest first; each change is in exactly one of them."""
    by_owner: dict[tuple[object, ...], list[Line]] = {}
    for line in _together(changes):
        owner = (line.newest.node, line.newest.job, *line.gpus)
        by_owner.setdefault(owner, []).append(line)
    lines = [line for of_owner in by_owner.values() for line in _folded(of_owner)]
    places = {id(change): place for place, change in enumerate(changes)}
    return sorted(lines, key=lambda line: places[id(line.newest)])


def _together(changes: Sequence[LimitChange]) -> Iterator[Line]:
    """Yield the decisions: the changes that several GPUs of a job got at the same time for the same reason.

    A change joins no newer ones where its GPU has had another limit since they came.
    """
    groups: list[list[LimitChange]] = []
    newest: dict[tuple[object, ...], tuple[int, list[LimitChange]]] = {}
    seen: dict[tuple[object, ...], int] = {}
    for place, change in enumerate(changes):
        limits_w = change.power_limit_w, change.previous_power_limit_w
        what = (change.node, change.job, change.reason, *limits_w, pin_text(change))
        gpu = (change.node, change.gpu_uuid)
        opened, group = newest.get(what, (-1, []))
        if group and group[0].time_s - change.time_s <= TOGETHER_S and seen.get(gpu, -1) < opened:
            group.append(change)
        else:
            newest[what] = place, [change]
            groups.append(newest[what][1])
        seen[gpu] = place
    return map(Line, groups)


def _folded(lines: Sequence[Line]) -> Iterator[Line]:
    """Yield the decisions about the same GPUs, those of one plan as one."""
    begin = 0
    while begin < len(lines):
        n = _n_of_one_plan(lines[begin:])
        if n < N_FOLDED:
            yield lines[begin]
            begin += 1
        else:
            yield Line([change for line in lines[begin : begin + n] for change in line.changes], n)
            begin += n


def _n_of_one_plan(lines: Sequence[Line]) -> int:
    """Return how many of the first decisions alternate between the limits of one plan.

    Two limits alternate where the first one comes back: one that replaced another for good has a plan of its own.
    """
    told = [lines[0].newest]
    unlike = {_limit_of(told[0]): told[0]}  # a few, however many changes are told
    for line in lines[1:]:
        change = line.newest
        with_this = {**unlike, _limit_of(change): change}
        is_soon = told[0].time_s - change.time_s <= FOLDED_S
        if not (is_soon and _leads_to(change, told[-1]) and _is_one_plan(with_this.values())):
            break
        told.append(change)
        unlike = with_this
    plans = [(place, change.power_limit_w) for place, change in enumerate(told) if change.reason != _LOOK]
    switches = [place for (_, newer_w), (place, older_w) in pairwise(plans) if newer_w != older_w]
    return switches[0] if len(switches) == 1 else len(told)


def _leads_to(older: LimitChange, newer: LimitChange) -> bool:
    """Return whether one change replaced what the other had set."""
    limits_w = older.power_limit_w, newer.power_limit_w
    return None not in limits_w and limits_w[0] != limits_w[1] and limits_w[0] == newer.previous_power_limit_w


def _limit_of(change: LimitChange) -> tuple[str, float | None]:
    return change.reason, change.power_limit_w


def _is_one_plan(changes: Collection[LimitChange]) -> bool:
    """Return whether changes have one limit or two, for one reason, and at most one more that is compared with them."""
    planned_w, compared_w = _limits_w(changes)
    n_reasons = len({change.reason for change in changes} - {_LOOK})
    n_limits = len(planned_w | compared_w)
    return n_reasons <= 1 and len(planned_w) <= N_MIXED and n_limits <= max(N_MIXED, len(planned_w) + 1)


def _limits_w(changes: Iterable[LimitChange]) -> tuple[set[float], set[float]]:
    """Return the limits that were planned, and the others, which these were only compared with [W]."""
    limits_w: tuple[set[float], set[float]] = set(), set()
    for change in changes:
        limits_w[change.reason == _LOOK].add(change.power_limit_w or 0.0)
    return limits_w[0], limits_w[1] - limits_w[0]


class Asked(NamedTuple):
    """Which decisions: of a node, of a job, before a time [Unix s]; None is any."""

    node: str | None = None
    job: str | None = None
    before_s: float | None = None

    def path(self, **changes: str | float | None) -> str:
        """Return where a page of the log is, this one but for what is changed."""
        asked = self._replace(**changes)  # type: ignore[arg-type]
        given = {"node": asked.node, "job": asked.job, "before": asked.before_s and repr(asked.before_s)}
        query = urlencode({name: value for name, value in given.items() if value is not None})
        return f"/log?{query}" if query else "/log"


def render_log(changes: Sequence[LimitChange], asked: Asked, *, now_s: float, zone: tzinfo) -> str:
    """Return a page of the log, HTML; `changes` are at least `N_DECISIONS` unless there are no older ones."""
    lines = log_lines(changes)
    content = [render_lines(lines, asked, now_s=now_s, zone=zone)] if lines else [_nothing()]
    links = []
    if asked.before_s is not None:
        links.append(element("a", escaped("newest"), href=asked.path(before_s=None)))
    if len(changes) >= N_DECISIONS:
        links.append(element("a", escaped("older"), href=asked.path(before_s=changes[-1].time_s), rel="next"))
    if links:
        content.append(element("p", joined(links, " · ")))
    of = " and ".join(f"{what} {name}" for what, name in (("node", asked.node), ("job", asked.job)) if name)
    link = ("/log", "all decisions") if of else None
    card = render_card(f"Decisions of {of}" if of else "Decisions", *content, note="newest first", link=link)
    return render_page("Log", current="/log", parts=[card], now_s=now_s, zone=zone)


def _nothing() -> Markup:
    return element("p", escaped("There are none."), class_="second")


def render_lines(lines: Sequence[Line], asked: Asked, *, now_s: float, zone: tzinfo) -> Markup:
    """Return lines as a table; names lead to the log of a job or a node."""
    headings = ("time", "job", "GPU", "limit", "why", "numbers used")
    rows = [tuple(_cells(line, asked, now_s, zone)) for line in lines]
    return render_cells(headings, rows, are_names=(True, True, True, False, True, True))


def _cells(line: Line, asked: Asked, now_s: float, zone: tzinfo) -> Iterator[Markup]:
    change = line.newest
    yield render_time(change.time_s, now_s, zone)
    yield _link(asked.path(job=change.job, before_s=None), change.job) if change.job else escaped("no run")
    node = _link(asked.path(node=change.node, before_s=None), change.node or "")
    yield element("span", node, escaped(f" {'+'.join(line.gpus)}"))
    yield escaped(line_limits(line))
    yield element("span", escaped(line_reason(line, now_s, zone)), class_="why")
    numbers = "" if pin_text(change) else change.detail
    yield element("details", element("summary", escaped("show")), escaped(numbers)) if numbers else NOTHING


def _link(path: str, name: str) -> Markup:
    return element("a", element("bdi", escaped(name)), href=path)


def line_limits(line: Line) -> str:
    """Return from which limit to which, or between which two."""
    if line.n_decisions == 1:
        return limit_text(line.newest)
    planned_w, compared_w = _limits_w(line.changes)
    lower_w, upper_w = sorted(planned_w if len(planned_w) > 1 else planned_w | compared_w)
    return typeset(f"{power_text(lower_w).removesuffix(' W')} ⇄ {power_text(upper_w)}")


def line_reason(line: Line, now_s: float, zone: tzinfo) -> str:
    """Return why; of limits that alternate also how often, and from when until when."""
    if line.n_decisions == 1:
        return decision_text(line.newest)
    begin, end = (moment_text(line.changes[place].time_s, now_s, zone) for place in (-1, 0))
    when = begin if begin == end else f"{begin}\u2013{end}"
    reason = next((change.reason for change in line.changes if change.reason != _LOOK), _LOOK)
    planned_w, compared_w = _limits_w(line.changes)
    is_mix = len(planned_w) > 1 and reason.endswith(_PLANNED)
    why = "two limits mixed to keep the pace" if is_mix else short_reason(reason)
    if planned_w and compared_w:
        why = f"{why}; compared with {typeset(power_text(*compared_w))}"
    return f"{why} · {line.n_decisions} changes, {when}"
