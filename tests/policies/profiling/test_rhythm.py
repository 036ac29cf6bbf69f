"""What an iteration is: bursts, pauses and steadiness, on random loops and on plain cases."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.profiling.rhythm import SKIPPED, Intervals, Rhythm, judge_rhythm
from policies.vocabulary.units import Values
from tests.policies.profiling.mixtures import ROWS, VIEWS, View, mixture

SEED = 77
N = 25
UNTELLABLE = {"bursts, slow loader (5 to 50 %)"}
"""From the marks of a loader alone."""
SYNCHRONOUS = [row for row in ROWS if not row.startswith("asynchronous")]
ACCEPTED = ["steady", "bursts of k, draws up to 4 % of the step", "validation in the loop, 5 to 300 steps"]


def intervals(times_s: Values, *, counts_steps: bool = False, loose_s: Values | None = None) -> Intervals:
    """Return intervals between marks."""
    return Intervals(
        times_s=times_s,
        loose_s=times_s if loose_s is None else loose_s,
        counts_steps=counts_steps,
        tells_loose=loose_s is not None,
    )


def noise(n: int, *, cv_ratio: float = 0.03, seed: int = 1) -> Values:
    """Return factors around 1."""
    return np.asarray(np.exp(cv_ratio * np.random.default_rng(seed).standard_normal(n)), dtype=np.float64)


def judged(row: str, view: View, index: int) -> tuple[Rhythm, float]:
    """Return the verdict on a mixture, and how far its claim is off."""
    marks = mixture(row, SEED, index).marks(view)
    rhythm = judge_rhythm(marks.seen.without_first(SKIPPED))
    return rhythm, abs(rhythm.iteration_time_s / marks.iteration_time_s - 1)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("row", SYNCHRONOUS)
def test_what_is_claimed_of_a_synchronous_loop_is_right(row: str, view: View) -> None:
    verdicts = [judged(row, view, index) for index in range(N)]
    wrong = [off for rhythm, off in verdicts if rhythm.not_profiled_reason is None and off > 0.02]
    # One of a hundred may be, and is off by a little: its steps happened to be short.
    assert len(wrong) <= 1 + (row in UNTELLABLE and view == "loader")
    assert all(off < 0.04 for off in wrong) or (row in UNTELLABLE and view == "loader")


@pytest.mark.parametrize("row", ACCEPTED)
def test_most_usual_loops_are_accepted_by_steps_and_requests(row: str) -> None:
    verdicts = Counter(judged(row, "steps and requests", index)[0].not_profiled_reason for index in range(N))
    assert verdicts[None] >= 0.6 * N, verdicts


@given(
    row=st.sampled_from(SYNCHRONOUS),
    view=st.sampled_from(VIEWS),
    index=st.integers(0, 10_000),
    log_scale=st.floats(-1.0, 3.0),
)
def test_another_unit_of_time_changes_no_verdict(row: str, view: View, index: int, log_scale: float) -> None:
    seen = mixture(row, SEED, index).marks(view).seen.without_first(SKIPPED)
    scale = 2.0 ** round(log_scale * 3)  # exact in floating point
    scaled_times_s = seen.times_s * scale
    scaled = Intervals(
        times_s=scaled_times_s,
        loose_s=seen.loose_s * scale if seen.tells_loose else scaled_times_s,
        counts_steps=seen.counts_steps,
        tells_loose=seen.tells_loose,
    )
    one, other = judge_rhythm(seen), judge_rhythm(scaled)
    if float(seen.loose_s.min()) * min(scale, 1.0) > 1e-6:  # shorter ones count as this long
        assert (one.not_profiled_reason, one.draws, one.n_pauses, one.period) == (
            other.not_profiled_reason,
            other.draws,
            other.n_pauses,
            other.period,
        )
        assert other.iteration_time_s == pytest.approx(one.iteration_time_s * scale)


@given(st.lists(st.floats(0.0, 1e4), max_size=300), st.booleans(), st.booleans())
def test_any_times_have_a_verdict(times_s: list[float], counts_steps: bool, tells_loose: bool) -> None:
    times = np.array(times_s, dtype=np.float64)
    rhythm = judge_rhythm(intervals(times, counts_steps=counts_steps, loose_s=times / 2 if tells_loose else None))
    assert rhythm.not_profiled_reason is not None or rhythm.iteration_time_s > 0
    assert math.isfinite(rhythm.iteration_time_s)
    assert rhythm.pause_ratio >= 3


def test_a_plain_run_is_steady_and_has_no_pauses() -> None:
    rhythm = judge_rhythm(intervals(0.1 * noise(200)))
    assert (rhythm.not_profiled_reason, rhythm.draws, rhythm.n_pauses, rhythm.period) == (None, 1, 0, 1)
    assert rhythm.iteration_time_s == pytest.approx(0.1, rel=0.01)


def test_batches_drawn_at_once_are_one_step() -> None:
    times_s = np.tile([0.001] * 7 + [1.0], 60) * noise(480)
    rhythm = judge_rhythm(intervals(times_s))
    assert (rhythm.not_profiled_reason, rhythm.draws) == (None, 8)
    assert rhythm.iteration_time_s == pytest.approx(1.007, rel=0.01)
    assert 0.001 < rhythm.burst_limit_s < 1.0


def test_bursts_that_take_long_to_draw_are_not_to_be_told_from_steps_and_a_pause() -> None:
    times_s = np.tile([0.1] * 7 + [1.0], 60) * noise(480)
    assert judge_rhythm(intervals(times_s)).not_profiled_reason == "bursts_ambiguous"
    known = judge_rhythm(intervals(times_s, loose_s=np.tile([0.001] * 7 + [0.9], 60)))
    assert (known.not_profiled_reason, known.draws) == (None, 8), "the loader says how long it took to answer"


def test_bursts_of_changing_length_are_refused() -> None:
    times_s = np.tile([*[0.001] * 7, 1.0, *[0.001] * 3, 1.0], 40) * noise(480)
    assert judge_rhythm(intervals(times_s)).not_profiled_reason == "bursts_ambiguous"


def test_a_validation_is_left_out_and_what_is_usual_of_its_interval_stays() -> None:
    times_s = 0.1 * noise(240)
    times_s[39::40] += 3.0
    rhythm = judge_rhythm(intervals(times_s, counts_steps=True))
    assert (rhythm.not_profiled_reason, rhythm.n_pauses) == (None, 6)
    assert rhythm.iteration_time_s == pytest.approx(0.1, rel=0.01)


def test_a_wait_for_data_is_no_pause_where_requests_are_known() -> None:
    times_s = 0.1 * noise(240)
    times_s[39::40] += 3.0
    rhythm = judge_rhythm(intervals(times_s, counts_steps=True, loose_s=np.full(240, 0.002)))
    assert rhythm.n_pauses == 0
    assert rhythm.iteration_time_s == pytest.approx(float(times_s.mean()))


def test_a_wait_that_faster_steps_make_good_is_no_pause() -> None:
    times_s = 0.1 * noise(400)
    for at in range(39, 400, 40):  # ten steps had been dispatched ahead, in half of their time
        times_s[at] += 0.5
        times_s[at + 1 : at + 11] *= 0.5
    rhythm = judge_rhythm(intervals(times_s, counts_steps=True))
    assert rhythm.n_pauses == 0 or rhythm.not_profiled_reason is not None
    assert math.isinf(rhythm.pause_ratio) or rhythm.not_profiled_reason == "not_steady"


def test_waits_that_come_often_are_refused_and_rare_stalls_are_not() -> None:
    often_s, rare_s = 0.1 * noise(480), 0.1 * noise(480)
    often_s[::24] += 1.0
    rare_s[::160] += 0.25
    assert judge_rhythm(intervals(often_s, counts_steps=True)).not_profiled_reason == "pauses_unclear"
    assert judge_rhythm(intervals(rare_s, counts_steps=True)).is_usable


def test_too_many_pauses_are_none() -> None:
    times_s = 0.1 * noise(480)
    times_s[np.random.default_rng(3).random(480) < 0.2] += 1.0
    assert judge_rhythm(intervals(times_s, counts_steps=True)).not_profiled_reason == "pauses_frequent"


def test_phases_that_repeat_are_judged_together() -> None:
    times_s = np.tile([0.1, 0.1, 0.1, 0.25], 80) * noise(320)
    rhythm = judge_rhythm(intervals(times_s))
    assert (rhythm.not_profiled_reason, rhythm.period, rhythm.n_pauses) == (None, 4, 0)
    assert rhythm.iteration_time_s == pytest.approx(0.1375, rel=0.01)


@pytest.mark.parametrize(
    ("times_s", "reason"),
    [
        (0.1 * noise(20), "too_short"),
        (0.1 * noise(60, cv_ratio=0.3), "too_short"),
        (0.1 * noise(300) * np.linspace(1, 1.3, 300), "not_steady"),
    ],
    ids=["few", "scattered", "drifting"],
)
def test_what_says_little_about_iterations_to_come_is_not_claimed(times_s: Values, reason: str) -> None:
    rhythm = judge_rhythm(intervals(times_s))
    assert rhythm.not_profiled_reason == reason
    assert rhythm.is_usable, "it is known what an iteration is"
