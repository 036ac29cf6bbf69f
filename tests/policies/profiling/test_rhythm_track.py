"""The rhythm of a rank as its intervals come: pauses from the first on, and when it is known what an iteration is."""

import numpy as np
import pytest

from policies.profiling.rhythm import Intervals
from policies.profiling.rhythm_track import KEPT_N, RhythmTracker, rhythm_of_run
from policies.vocabulary.units import Values
from tests.policies.profiling.test_rhythm import intervals, noise

BURST = [0.01] * 7 + [1.0]
AMBIGUOUS = [0.1] * 7 + [1.0]


def feed(tracker: RhythmTracker, times_s: Values, *, counts_steps: bool = False, at_once: int = 10) -> list[float]:
    """Tell a rank's intervals, some at a time; return the lengths of the pauses that were found [s]."""
    found: list[float] = []
    for start in range(0, len(times_s), at_once):
        new = intervals(times_s[start : start + at_once], counts_steps=counts_steps)
        found += tracker.find_pauses(new).lengths_s.tolist()
        tracker.add(new, duration_s=float(new.times_s.sum()))
    return found


def test_steps_are_known_at_once_and_marks_of_a_loader_once_ten_are_alike() -> None:
    steps, marks = RhythmTracker(), RhythmTracker()
    feed(steps, 0.1 * noise(1), counts_steps=True)
    assert steps.standing == "known"
    seen: list[str] = []
    for _ in range(12):
        feed(marks, 0.1 * noise(1))
        seen.append(marks.standing)
    assert seen == ["unknown"] * 9 + ["known"] * 3


def test_the_first_marks_may_take_long() -> None:
    marks = RhythmTracker()
    feed(marks, np.concatenate(([30.0, 2.0], 0.1 * noise(8))))
    assert marks.standing == "known"


@pytest.mark.parametrize("at_once", [1, 7, 100])
def test_pauses_are_found_however_many_intervals_come_at_once(at_once: int) -> None:
    times_s = 0.1 * noise(200)
    times_s[39::40] += 3.0
    found = feed(RhythmTracker(), times_s, counts_steps=True, at_once=at_once)
    assert found == pytest.approx([3.0] * 5, rel=0.02)


def test_what_is_usual_follows_a_slower_job() -> None:
    times_s = np.concatenate((0.1 * noise(100), 0.5 * noise(100)))
    found = feed(RhythmTracker(), times_s, counts_steps=True)
    assert len(found) <= 16, "half of the intervals that say what is usual"
    assert feed(RhythmTracker(), times_s[80:], counts_steps=True, at_once=60) == [], "so many are no pauses"


def test_what_may_be_bursts_is_unknown_and_then_refused_until_it_is_over() -> None:
    tracker = RhythmTracker()
    feed(tracker, np.tile(AMBIGUOUS, 8))
    assert (tracker.standing, tracker.not_profiled_reason) == ("unknown", None)
    feed(tracker, np.tile(AMBIGUOUS, 30))
    assert (tracker.standing, tracker.not_profiled_reason) == ("refused", "bursts_ambiguous")
    feed(tracker, 0.5 * noise(KEPT_N + 128))
    assert (tracker.standing, tracker.not_profiled_reason) == ("known", None)


def test_nothing_is_refused_in_a_run_too_short_to_be_measured() -> None:
    tracker = RhythmTracker()
    feed(tracker, 0.1 * np.tile(AMBIGUOUS, 150))  # 25 s
    assert (tracker.standing, tracker.not_profiled_reason) == ("unknown", None)
    feed(tracker, 0.1 * np.tile(AMBIGUOUS, 150))
    assert (tracker.standing, tracker.not_profiled_reason) == ("refused", "bursts_ambiguous")


def test_a_doubt_that_passes_voids_what_was_counted_before() -> None:
    tracker = RhythmTracker()
    feed(tracker, np.concatenate((np.tile(BURST, 2), 0.1 * noise(15))))
    assert (tracker.standing, tracker.unit) == ("unknown", 0)
    feed(tracker, 0.1 * noise(200))
    assert tracker.standing == "known"
    assert tracker.unit == 1


def test_intervals_of_another_kind_begin_anew() -> None:
    tracker = RhythmTracker()
    feed(tracker, 0.1 * noise(100))
    feed(tracker, 0.8 * noise(10), counts_steps=True)
    assert (tracker.standing, tracker.unit, tracker.regime) == ("known", 1, 1)
    assert feed(tracker, 0.8 * noise(10), counts_steps=True) == []


def test_memory_is_bounded() -> None:
    tracker = RhythmTracker()
    feed(tracker, 0.1 * noise(20_000), at_once=1)
    assert sum(len(part) for part in tracker._recent) <= KEPT_N
    feed(tracker, 0.1 * noise(100_000), at_once=8_192)
    assert sum(len(part) for part in tracker._recent) <= 8_192 + KEPT_N


def test_a_plain_run_is_seldom_judged() -> None:
    tracker = RhythmTracker()
    feed(tracker, np.full(1_000_000, 1e-5), at_once=1_000)  # ten seconds
    assert tracker._since_s < 10.1
    assert tracker.rhythm.not_profiled_reason is None


def test_a_run_is_known_as_well_as_its_least_known_rank() -> None:
    known, unknown, refused = RhythmTracker(), RhythmTracker(), RhythmTracker()
    feed(known, 0.1 * noise(50))
    feed(refused, np.tile(AMBIGUOUS, 60))
    assert rhythm_of_run([known]).standing == "known"
    assert rhythm_of_run([known, unknown]).standing == "unknown"
    run = rhythm_of_run([known, unknown, refused])
    assert (run.standing, run.not_profiled_reason) == ("refused", "bursts_ambiguous")


def test_requests_tell_a_wait_from_a_pause() -> None:
    tracker = RhythmTracker()
    times_s, loose_s = 0.1 * noise(60), np.full(60, 0.001)
    times_s[30] += 2.0  # waits for data
    times_s[50] += 2.0
    loose_s[50] += 2.0
    seen = Intervals(times_s=times_s, loose_s=loose_s, counts_steps=True, tells_loose=True)
    pauses = tracker.find_pauses(seen)
    assert pauses.at.tolist() == [50]
    assert pauses.lengths_s == pytest.approx([2.0])
