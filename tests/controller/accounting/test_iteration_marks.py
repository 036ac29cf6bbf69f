"""The marks of a message: where pauses may lie, and what is left without them."""

from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.accounting.iteration_marks import IterationMarks
from policies.profiling.rhythm_track import NO_PAUSES, Pauses
from publishers.messages.training import CountedBy, Iterations, pack_ends
from tests.controller.messages import ns


def message(
    ends_s: list[float], told_s: list[float] | None = None, *, counted_by: CountedBy = "optimizer"
) -> Iterations:
    """Return a message that begins at 0 s; `told_s`: its requests, or what a loader's batches were received at."""
    told = pack_ends(array("q", map(ns, told_s or [])))
    return Iterations(
        run="run-1",
        seq=0,
        first=100,
        begin_ns=0,
        end_ns=pack_ends(array("q", map(ns, ends_s))),
        epoch=0,
        dropped=0,
        counted_by=counted_by,
        request_ns=told if counted_by != "loader" else b"",
        received_ns=told if counted_by == "loader" else b"",
    )


def test_a_pause_may_lie_before_the_request_of_a_step() -> None:
    seen = IterationMarks.of(message([1, 3, 4], [0.1, 2.2, 3.1])).intervals()
    assert (seen.counts_steps, seen.tells_loose) == (True, True)
    assert seen.times_s == pytest.approx([1, 2, 1])
    assert seen.loose_s == pytest.approx([0.1, 1.2, 0.1])


def test_a_pause_may_lie_after_the_receipt_of_a_loaders_batch() -> None:
    seen = IterationMarks.of(message([1, 3, 4], [0.1, 1.5, 3.1], counted_by="loader")).intervals()
    assert (seen.counts_steps, seen.tells_loose) == (False, True)
    assert seen.loose_s == pytest.approx([0.9, 1.5, 0.9])


@pytest.mark.parametrize("counted_by", ["loader", "caller"])
def test_without_requests_it_may_lie_anywhere(counted_by: CountedBy) -> None:
    seen = IterationMarks.of(message([1, 3, 4], counted_by=counted_by)).intervals()
    assert not seen.tells_loose
    assert seen.loose_s is seen.times_s


def test_requests_at_the_end_of_the_step_before_tell_nothing() -> None:
    ends_s = [float(n) for n in range(1, 21)]
    ahead = IterationMarks.of(message(ends_s, [0.0, *ends_s[:-1]]))
    honest = IterationMarks.of(message(ends_s, [at_s + 0.001 for at_s in (0.0, *ends_s[:-1])]))
    assert (ahead.fetches_ahead, honest.fetches_ahead) == (True, False)
    assert not ahead.intervals(trusts_requests=False).tells_loose


def test_a_step_comes_before_its_pause_and_a_loaders_mark_after_it() -> None:
    pauses = Pauses(at=np.array([1]), lengths_s=np.array([4.0]))
    steps = list(IterationMarks.of(message([1, 6, 7])).without(pauses))
    assert [(part.first, part.begin_ns, part.ends_ns.tolist()) for part in steps] == [
        (100, 0, [ns(1)]),
        (101, ns(5), [ns(6), ns(7)]),
    ]
    marks = list(IterationMarks.of(message([1, 6, 7], counted_by="loader")).without(pauses))
    assert [(part.first, part.begin_ns, part.ends_ns.tolist()) for part in marks] == [
        (100, 0, [ns(1), ns(2)]),
        (102, ns(6), [ns(7)]),
    ]


def test_without_pauses_there_is_one_part() -> None:
    (part,) = IterationMarks.of(message([1, 2, 3])).without(NO_PAUSES)
    assert (part.first, part.begin_ns, len(part.ends_ns)) == (100, 0, 3)


@given(
    times_s=st.lists(st.floats(0.001, 100.0), min_size=1, max_size=60),
    data=st.data(),
    counted_by=st.sampled_from(["loader", "optimizer"]),
)
def test_no_iteration_is_lost_and_no_time_but_that_of_the_pauses(
    times_s: list[float], data: st.DataObject, counted_by: CountedBy
) -> None:
    at = sorted(data.draw(st.sets(st.integers(0, len(times_s) - 1))))
    shares = [data.draw(st.floats(0.1, 0.9)) for _ in at]
    lengths_s = [share * times_s[i] for i, share in zip(at, shares, strict=True)]
    ends_s = np.cumsum(times_s).tolist()
    marks = IterationMarks.of(message(ends_s, counted_by=counted_by))
    pauses = Pauses(at=np.array(at, dtype=np.intp), lengths_s=np.array(lengths_s))
    parts = list(marks.without(pauses))
    assert sum(len(part.ends_ns) for part in parts) == len(times_s)
    assert [part.first for part in parts] == [100 + sum(len(p.ends_ns) for p in parts[:i]) for i in range(len(parts))]
    left_s = sum((int(part.ends_ns[-1]) - part.begin_ns) / 1e9 for part in parts)
    assert left_s == pytest.approx(sum(times_s) - sum(lengths_s), abs=1e-6)
    edges_ns = [edge_ns for part in parts for edge_ns in (part.begin_ns, *part.ends_ns.tolist())]
    assert edges_ns == sorted(edges_ns)
