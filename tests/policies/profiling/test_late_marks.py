"""Late marks: what was waited for and made good is moved back; stalls, pauses and noise stay."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.profiling.late_marks import LEAST_N, MOST_LATE, TimesNs, UsualStep, settle_marks, usual_step

STEP_NS = 64_000_000
USUAL = UsualStep(STEP_NS, 0.05 * STEP_NS)
STEPS_NS = st.sampled_from(
    [STEP_NS, STEP_NS, STEP_NS + 300_000, STEP_NS - 300_000, 84_000_000, 44_000_000, 0, 128_000_000]
)


def marks_of(*steps_ns: int) -> TimesNs:
    return np.cumsum((1_000, *steps_ns))


@pytest.mark.parametrize("n_late", [1, 2, MOST_LATE])
def test_marks_are_moved_back_until_a_step_makes_good_what_was_late(n_late: int) -> None:
    steps_ns = [STEP_NS, 84_000_000, *[STEP_NS] * (n_late - 1), 44_000_000, STEP_NS]
    marks_ns, settled_ns = settle_marks(marks_of(*steps_ns), USUAL)
    assert np.diff(marks_ns).tolist() == [STEP_NS] * len(steps_ns)
    assert settled_ns == marks_ns[-1]


@pytest.mark.parametrize(
    "steps_ns",
    [
        [84_000_000, STEP_NS, STEP_NS],
        [84_000_000, *[STEP_NS] * MOST_LATE, 44_000_000],
        [84_000_000, 54_000_000, STEP_NS],
        [44_000_000, 84_000_000, STEP_NS],
        [400_000_000, 0, STEP_NS],
        [66_000_000, 62_000_000],
    ],
    ids=["a stall", "made good too late", "half made good", "short before long", "a pause", "no outlier"],
)
def test_what_is_not_made_good_stays(steps_ns: list[int]) -> None:
    marks_ns = marks_of(*steps_ns, *[STEP_NS] * MOST_LATE)
    assert settle_marks(marks_ns, USUAL).marks_ns.tolist() == marks_ns.tolist()


def test_nothing_after_a_long_step_is_settled_before_it_is_known_to_be_late() -> None:
    marks_ns = marks_of(STEP_NS, 84_000_000, *[STEP_NS] * MOST_LATE)
    assert [settle_marks(marks_ns[:n], USUAL).settled_ns for n in (2, 3, MOST_LATE + 2)] == [
        marks_ns[1],
        marks_ns[1],
        marks_ns[1],
    ]
    assert settle_marks(marks_ns, USUAL).settled_ns == marks_ns[-1]


def test_what_is_counted_does_not_move() -> None:
    marks_ns = marks_of(STEP_NS, 84_000_000, 44_000_000)
    assert settle_marks(marks_ns, USUAL, fixed_until_ns=int(marks_ns[1])).marks_ns[2] != marks_ns[2]
    assert settle_marks(marks_ns, USUAL, fixed_until_ns=int(marks_ns[1]) + 1).marks_ns.tolist() == marks_ns.tolist()


@given(steps_ns=st.lists(STEPS_NS, min_size=1, max_size=40))
def test_marks_stay_in_order_between_the_first_and_the_last(steps_ns: list[int]) -> None:
    marks_ns = marks_of(*steps_ns)
    moved_ns, settled_ns = settle_marks(marks_ns, USUAL)
    assert (moved_ns[0], moved_ns[-1], len(moved_ns)) == (marks_ns[0], marks_ns[-1], len(marks_ns))
    assert (np.diff(moved_ns) >= 0).all()
    assert (moved_ns <= marks_ns).all()
    assert marks_ns[0] <= settled_ns <= marks_ns[-1]


def test_what_is_usual_is_known_from_some_steps_and_only_where_one_is_longer() -> None:
    steady_s = np.full(31, 0.064)
    assert usual_step(steady_s) is None
    with_late_s = np.append(steady_s, (0.084, 0.044))
    assert usual_step(with_late_s[: LEAST_N - 1]) is usual_step(with_late_s[-LEAST_N + 1 :]) is None
    assert usual_step(with_late_s) == pytest.approx((64e6, 3.2e6))
    noisy_s = 0.064 * np.exp(0.1 * np.random.default_rng(1).standard_normal(32))
    found = usual_step(noisy_s)
    assert found is not None
    assert found.reach_ns > 0.25 * found.time_ns


def test_the_calls_for_a_message_do_not_grow_with_its_late_marks() -> None:
    def n_calls(n_late: int) -> int:
        marks_ns, events = marks_of(*[STEP_NS, 84_000_000, 44_000_000, STEP_NS] * n_late), list[str]()
        sys.setprofile(lambda _frame, event, _argument: events.append(event))
        try:
            moved_ns, _ = settle_marks(marks_ns, USUAL)
        finally:
            sys.setprofile(None)
        assert np.diff(moved_ns).tolist() == [STEP_NS] * (4 * n_late)
        return events.count("c_call")

    assert n_calls(1_000) == n_calls(3), "a hostile training may send tens of thousands"
