"""A simulated training run: what is seen of it at a limit, and what it spends."""

import math
from dataclasses import replace

import pytest

from policies.profiling.measurement import Observation
from policies.replay.profiling.noise import LEVELS, NoiseLevel
from policies.replay.profiling.training import LATE_S, READING_S, SimulatedTraining
from tests.policies.replay.profiling.curves import QUIET, bending, flat

STEADY = NoiseLevel(step_ratio=0.0, stall_ratio=0.0, block_ratio=0.0, tick_s=0.05, settling_s=0.3)


def seen(training: SimulatedTraining, n: int) -> list[Observation]:
    found: list[Observation] = []
    while len(found) < n:
        found += training.observe()
    return found


@pytest.mark.parametrize("limit_w", [300.0, 200.0, 100.0])
def test_observations_follow_the_curve(limit_w: float) -> None:
    training = SimulatedTraining(bending(), QUIET, seed=1)
    training.set_power_limit(limit_w)
    slices = seen(training, 100)
    power_w, rate_per_s = bending().profile.at(limit_w)
    active_s = sum(piece.active_s for piece in slices)
    assert {piece.power_limit_w for piece in slices} == {limit_w}
    assert sum(piece.n_iterations for piece in slices) / active_s == pytest.approx(rate_per_s)
    assert sum(piece.energy_j for piece in slices) / active_s == pytest.approx(power_w, rel=1e-3)


def test_observations_have_no_gaps_between_them() -> None:
    training = SimulatedTraining(bending(), LEVELS["harsh"], seed=1)
    slices = seen(training, 300)
    spanned_s = 300 * READING_S
    assert sum(piece.active_s for piece in slices[:300]) == pytest.approx(spanned_s, abs=LATE_S)
    assert all(abs(piece.active_s - READING_S) < LATE_S for piece in slices)
    ended = sum(len(piece.iteration_times_s) for piece in slices)
    assert ended == pytest.approx(sum(piece.n_iterations for piece in slices), abs=1)
    assert ended == pytest.approx(training.n_iterations, abs=1)
    assert math.fsum(time_s for piece in slices for time_s in piece.iteration_times_s) <= training.now_s


def test_an_iteration_is_observed_once_it_has_ended() -> None:
    """What was read during it comes all at once, with fractions of it, and its time with the slice of its end."""
    training = SimulatedTraining(flat(iteration_time_s=4.0), QUIET, seed=1)
    first = training.observe()
    assert training.now_s == pytest.approx(4.0)
    assert len(first) == 4
    assert training.reading_s == 4.0 / 5
    assert not any(piece.iteration_times_s for piece in first)
    assert first[0].n_iterations == pytest.approx(first[0].active_s / 4.0)
    assert [time_s for piece in training.observe() for time_s in piece.iteration_times_s] == [pytest.approx(4.0)]


def test_an_interval_with_two_limits_is_not_observed() -> None:
    training = SimulatedTraining(bending(iteration_time_s=0.07), QUIET, seed=1)
    training.observe()
    changed_s = training.now_s
    training.set_power_limit(200.0)
    pieces = training.observe()
    assert {piece.power_limit_w for piece in pieces} == {200.0}
    assert training.now_s - sum(piece.active_s for piece in pieces) >= changed_s


def test_the_counter_moves_in_ticks() -> None:
    training = SimulatedTraining(flat(), STEADY, seed=1)
    energies_j = {round(piece.energy_j / (240.0 * STEADY.tick_s), 6) for piece in seen(training, 200)[1:]}
    assert energies_j <= {1.0, 2.0, 3.0}
    assert len(energies_j) > 1
    assert 0 <= training.energy_j - training.counter_j <= 240.0 * STEADY.tick_s


@pytest.mark.parametrize(("tick_s", "is_told"), [(0.05, True), (0.02, False)])
def test_what_the_counter_has_not_counted_is_known_where_its_ticks_can_be_told(tick_s: float, *, is_told: bool) -> None:
    slices = seen(SimulatedTraining(flat(), replace(STEADY, tick_s=tick_s), seed=1), 200)[1:]
    known = [piece.interpolated_energy_j for piece in slices]
    assert known == (pytest.approx([240.0 * piece.active_s for piece in slices]) if is_told else [None] * len(slices))


def test_power_settles_with_its_time_constant() -> None:
    """Of the step from 240 to 160 W, 80 W · 0.3 s are used beyond what the lower limit draws."""
    training = SimulatedTraining(flat(), STEADY, seed=1)
    training.iterate(10)
    before_j = training.energy_j
    training.set_power_limit(200.0)
    training.iterate(3)
    assert training.energy_j - before_j == pytest.approx(160.0 * 0.3 + 80.0 * 0.3 * (1 - math.exp(-1)))
    training.iterate(100)
    assert training.energy_j - before_j == pytest.approx(160.0 * 10.3 + 80.0 * 0.3)


def test_power_that_has_not_settled_continues_from_its_value() -> None:
    training = SimulatedTraining(flat(), STEADY, seed=1)
    training.iterate(10)
    training.set_power_limit(200.0)
    training.iterate(3)
    training.set_power_limit(300.0)
    drawn_w = 160.0 + 80.0 * math.exp(-1)
    assert training.limit_periods[-1].excess_w == pytest.approx(drawn_w - 240.0)


def test_two_policies_get_the_same_iterations() -> None:
    """At another limit an iteration takes another time, but the same share of the mean."""
    fast, slow = (
        SimulatedTraining(bending(), LEVELS["harsh"], seed=3),
        SimulatedTraining(bending(), LEVELS["harsh"], seed=3),
    )
    slow.set_power_limit(100.0)
    ratio = bending().profile.at(300.0)[1] / bending().profile.at(100.0)[1]
    for _ in range(50):
        fast.iterate()
        slow.iterate()
        assert slow.now_s == pytest.approx(ratio * fast.now_s)


def test_readings_outside_observations_are_skipped() -> None:
    training = SimulatedTraining(bending(), QUIET, seed=1)
    training.iterate(100)
    training.set_power_limit(200.0)
    begin_s, pieces = training.now_s, training.observe()
    assert training.now_s < begin_s + 0.5
    assert sum(piece.active_s for piece in pieces) <= training.now_s - begin_s
