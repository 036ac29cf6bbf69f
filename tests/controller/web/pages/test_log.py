"""The log: each change of a limit is in exactly one line, and two limits that alternate are one."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from controller.web.pages.log import FOLDED_S, N_DECISIONS, N_FOLDED, Asked, log_lines, render_log
from publishers.messages.reports import LimitChange
from tests.controller.runtime.test_markup import HOSTILE
from tests.controller.web.pages.site import NOW_S, ZONE, Found

STEP_S = 300.0


def change(
    ago_s: float, from_w: float, to_w: float, *, gpu: int = 0, job: str = "bert", reason: str = "slowdown_signal"
) -> LimitChange:
    return LimitChange(
        time_s=NOW_S - ago_s,
        node="atlas",
        gpu_uuid=f"GPU-{gpu}",
        gpu_index=gpu,
        reason=reason,
        detail="1.258 iterations/s now",
        power_limit_w=to_w,
        previous_power_limit_w=from_w,
        job=job,
    )


def alternating(n: int, *, step_s: float = STEP_S, gpus: Sequence[int] = (0, 1)) -> list[LimitChange]:
    """Return changes between 200 and 205 W, newest first, the newest to 200 W."""
    limits_w = (200.0, 205.0)
    return [
        change(step_s * place + gpu, limits_w[(place + 1) % 2], limits_w[place % 2], gpu=gpu)
        for place in range(n)
        for gpu in gpus
    ]


def found(changes: Sequence[LimitChange], asked: Asked = Asked()) -> Found:  # noqa: B008 — immutable
    return Found(render_log(changes, asked, now_s=NOW_S, zone=ZONE))


CHANGES = st.lists(
    st.builds(
        change,
        st.integers(0, 40).map(lambda step: 200.0 * step),
        st.sampled_from([200.0, 205.0, 250.0]),
        st.sampled_from([200.0, 205.0]),
        gpu=st.integers(0, 1),
        job=st.sampled_from(["bert", "llama"]),
        reason=st.sampled_from(["slowdown_signal", "slowdown_signal", "kept_small_gain", "refining"]),
    ),
    max_size=40,
).map(lambda changes: sorted(changes, key=lambda it: -it.time_s))


@given(CHANGES)
def test_each_change_is_in_exactly_one_line(changes: list[LimitChange]) -> None:
    lines = log_lines(changes)
    assert Counter(map(repr, changes)) == Counter(repr(it) for line in lines for it in line.changes)
    newest_s = [line.newest.time_s for line in lines]
    assert newest_s == sorted(newest_s, reverse=True)
    for line in lines:
        assert line.newest.time_s == max(it.time_s for it in line.changes)
        assert len(line.changes) >= line.n_decisions


@given(CHANGES)
def test_a_folded_line_is_of_one_plan_of_one_job_within_two_hours(changes: list[LimitChange]) -> None:
    for line in log_lines(changes):
        if line.n_decisions > 1:
            assert line.n_decisions >= N_FOLDED
            planned_w = {it.power_limit_w for it in line.changes if it.reason != "refining"}
            assert len(planned_w) <= 2
            assert 2 <= len({it.power_limit_w for it in line.changes}) <= max(2, len(planned_w) + 1)
            assert len({(it.node, it.job) for it in line.changes}) == 1
            assert len({it.reason for it in line.changes} - {"refining"}) <= 1
            assert line.changes[0].time_s - line.changes[-1].time_s <= FOLDED_S + 5.0


def test_two_limits_that_alternate_are_one_line_with_their_number_and_times() -> None:
    page = found(alternating(24))
    assert len(page.all("tr")) == 1 + 1
    assert "0+1 200 ⇄ 205 W two limits mixed to keep the pace · 24 changes, 13:24\u201315:20" in page.text


def test_looks_at_another_limit_are_one_line_with_the_plan_that_they_return_to() -> None:
    looks = [
        msgspec.structs.replace(it, reason="refining") if it.power_limit_w == 205.0 else it
        for it in alternating(6, gpus=[0])
    ]
    text = "following the grid in the allowed time; compared with 205 W · 6 changes, 14:55\u201315:20"
    for changes in (looks, [msgspec.structs.replace(it, time_s=it.time_s + STEP_S) for it in looks[1:]]):
        (line,) = log_lines(changes)
        assert line.n_decisions == len(changes)
    assert f"200 ⇄ 205 W {text}" in found(looks).text


def test_a_mix_of_two_limits_that_looks_interrupt_is_one_line() -> None:
    limits_w = [400.0, 205.0, 400.0, 200.0, 400.0, 205.0, 200.0, 205.0, 200.0]
    changes = [
        change(STEP_S * place, from_w, to_w, reason="refining" if to_w == 400.0 else "slowdown_signal")
        for place, (to_w, from_w) in enumerate(pairwise(limits_w))
    ]
    text = "200 ⇄ 205 W two limits mixed to keep the pace; compared with 400 W · 8 changes, 14:45\u201315:20"
    assert text in found(changes).text


def test_a_plan_that_replaced_another_for_good_is_another_line() -> None:
    limits_w = [205.0, 400.0, 205.0, 400.0, 205.0, 200.0, 400.0, 200.0, 400.0, 200.0]
    changes = [
        change(STEP_S * place, from_w, to_w, reason="refining" if to_w == 400.0 else "slowdown_signal")
        for place, (to_w, from_w) in enumerate(pairwise(limits_w))
    ]
    newer, older = log_lines(changes)
    assert {it.power_limit_w for it in newer.changes} == {205.0, 400.0}
    assert {it.power_limit_w for it in older.changes} == {200.0, 400.0}


def test_a_fold_within_a_minute_has_one_time() -> None:
    changes = [msgspec.structs.replace(it, time_s=it.time_s - 10.0) for it in alternating(4, step_s=2.0)]
    assert "to keep the pace · 4 changes, 15:19 show" in found(changes).text


def test_two_programs_that_set_limits_in_turn_are_no_plan() -> None:
    changes = [msgspec.structs.replace(it, reason="another_writer") for it in alternating(8)]
    text = found(changes).text
    assert "another program has set the limit · 8 changes" in text
    assert "to keep the pace" not in text


def test_what_is_beside_the_two_limits_stays_a_line_of_its_own() -> None:
    lines = log_lines([change(0.0, 200.0, 250.0), *alternating(6, gpus=[0])[1:], change(1e4, 250.0, 205.0)])
    assert [line.n_decisions for line in lines] == [1, 5, 1]


def test_a_gpu_that_has_had_another_limit_since_is_not_told_with_the_newer_ones() -> None:
    lines = log_lines([change(0.0, 250.0, 200.0), change(2.0, 200.0, 205.0, gpu=1), change(4.0, 250.0, 200.0, gpu=1)])
    assert [(line.gpus, line.newest.power_limit_w) for line in lines] == [
        (["0"], 200.0),
        (["1"], 205.0),
        (["1"], 200.0),
    ]


def test_few_changes_are_told_each_by_itself() -> None:
    assert [line.n_decisions for line in log_lines(alternating(N_FOLDED - 1))] == [1] * (N_FOLDED - 1)
    assert [line.n_decisions for line in log_lines(alternating(N_FOLDED))] == [N_FOLDED]


def test_more_than_two_hours_are_more_than_one_line() -> None:
    lines = log_lines(alternating(60))
    assert sum(line.n_decisions for line in lines) == 60
    assert len(lines) == 3


def test_a_decision_has_its_reason_and_its_numbers_behind_a_fold() -> None:
    page = found([change(60.0, 250.0, 200.0)])
    assert "bert atlas 0 250 → 200 W following the grid in the allowed time: slower for now" in page.text
    assert len(page.all("details")) == 1


def test_the_next_page_begins_where_this_one_ends_and_keeps_what_was_asked_for() -> None:
    changes = [change(60.0 * place, 250.0, 200.0 + place) for place in range(N_DECISIONS)]
    links = [it.get("href") for it in found(changes, Asked(node="atlas", before_s=NOW_S)).all("a")]
    assert f"/log?node=atlas&before={changes[-1].time_s!r}" in links
    assert "/log?node=atlas" in links  # the newest
    assert not any("before" in str(it.get("href")) for it in found(changes[1:]).all("a"))


def test_hostile_names_are_text() -> None:
    page = found([change(60.0 * place, 250.0, 200.0, job=name) for place, name in enumerate(HOSTILE) if name.isascii()])
    assert not {"img", "b"} & {name for name, _ in page.elements}
    assert all(it["src"] for it in page.all("script"))
