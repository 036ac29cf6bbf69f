"""The steps of an energy counter: found out from readings, whatever these are late by; what it has not counted yet."""

from dataclasses import replace

import numpy as np
import pytest

from controller.gpu.meter.counter_step import MAX_AGE_S, PROBE_S, REST_S, SHORT_REST_S, CounterStep
from controller.ports import Sample

POWER_W = 570.0
READING_S = 0.1


class Counter:
    """A counter that moves every `step_s`, and its readings, each of which takes some milliseconds."""

    def __init__(self, *, step_s: float = 0.1, phase_s: float = 0.037, jitter_s: float = 0.0, seed: int = 1) -> None:
        self.step_s = step_s
        self.power_w = POWER_W
        self.noise_ratio = 0.0
        self.read_s = 0.0035
        self.n_looks = 0
        self.now_s = 1_000.0
        self._rng = np.random.default_rng(seed)
        n = round(4_000 / step_s)
        self._moves_s = phase_s + step_s * np.arange(1, n + 1) + jitter_s * self._rng.uniform(-1, 1, n)
        self._n_moves, self._shown_j, self.used_j = 0, 0.0, 0.0

    def pass_to(self, time_s: float) -> None:
        """Let time pass."""
        while self._moves_s[self._n_moves] <= time_s - 1_000.0:
            move_s = 1_000.0 + float(self._moves_s[self._n_moves])
            self.used_j += self.power_w * (move_s - self.now_s)
            noise_j = self.noise_ratio * self.power_w * self.step_s * self._rng.standard_normal()
            self._shown_j, self.now_s = max(self._shown_j, self.used_j + noise_j), move_s
            self._n_moves += 1
        self.used_j += self.power_w * (time_s - self.now_s)
        self.now_s = time_s

    def read(self, *, read_s: float | None = None, at_ratio: float = 0.5) -> tuple[Sample, float]:
        """Return a reading, and what was used until its middle [J]; it shows the value at a share of its time."""
        begin_s, lasts_s = self.now_s, self.read_s if read_s is None else read_s
        found: dict[str, float] = {}
        for name, share in sorted({"shown": at_ratio, "middle": 0.5}.items(), key=lambda each: each[1]):
            self.pass_to(begin_s + share * lasts_s)
            found[name] = self._shown_j if name == "shown" else self.used_j
        self.pass_to(begin_s + lasts_s)
        time_ns = round((begin_s + lasts_s / 2) * 1e9)
        return Sample(time_ns=time_ns, power_w=None, energy_j=found["shown"], read_s=lasts_s), found["middle"]

    def train(self, step: CounterStep, duration_s: float) -> list[float | None]:
        """Read as a meter does; return by how much each sample is off with what it says is not counted yet [J]."""
        errors_j: list[float | None] = []
        for tick in range(1, round(duration_s / READING_S) + 1):
            due_s = self.now_s + READING_S - (self.now_s - 1_000.0) % READING_S if tick > 1 else self.now_s
            while step.is_sought(round(self.now_s * 1e9)) and self.now_s + PROBE_S < due_s - PROBE_S / 2:
                self.pass_to(self.now_s + PROBE_S)
                step.look(self.read()[0])
                self.n_looks += 1
            self.pass_to(due_s)
            raw, used_j = self.read()
            if step.is_seeking:
                step.look(raw)
            uncounted_j = step.uncounted_j(raw)
            errors_j.append(None if uncounted_j is None else (raw.energy_j or 0.0) + uncounted_j - used_j)
        return errors_j


@pytest.mark.parametrize("step_s", [0.1, 0.0999, 0.05, 0.08, 0.15])
@pytest.mark.parametrize("phase_s", [0.0, 0.05, 0.093])
def test_the_step_is_found_and_what_is_not_counted_yet_is_known(step_s: float, phase_s: float) -> None:
    counter, step = Counter(step_s=step_s, phase_s=phase_s), CounterStep()
    errors_j = counter.train(step, 600)
    assert step.period_s == pytest.approx(step_s, rel=2e-4)
    late_j = np.array([error_j for error_j in errors_j[30:] if error_j is not None])
    assert len(late_j) > 0.99 * len(errors_j[30:])
    over_half_a_second_j = late_j[5:] - late_j[:-5]
    assert np.std(over_half_a_second_j) < 0.03 * POWER_W * step_s, "without it: 0.4 of a step"
    assert np.abs(over_half_a_second_j).max() < 0.3 * POWER_W * step_s


def test_close_readings_are_rare_once_the_step_is_known() -> None:
    counter, step = Counter(), CounterStep()
    counter.train(step, 60)
    begun = counter.n_looks
    counter.train(step, 3_600)
    assert counter.n_looks - begun < 20 * 3_600 / MAX_AGE_S


@pytest.mark.parametrize(("step_s", "jitter_s"), [(0.02, 0.0), (0.001, 0.0), (0.1, 0.04)])
def test_a_counter_without_steps_that_can_be_told_is_left_as_it_is(step_s: float, jitter_s: float) -> None:
    counter, step = Counter(step_s=step_s, jitter_s=jitter_s), CounterStep()
    errors_j = counter.train(step, 0.9 * REST_S)
    assert step.period_s is None
    assert {*errors_j[50:]} == {None}
    assert counter.n_looks < 250


def test_slow_readings_do_not_shift_what_is_not_counted() -> None:
    counter, step, errors_j = Counter(), CounterStep(), []
    counter.train(step, 20)
    for number in range(200):
        counter.pass_to(counter.now_s + 0.05)
        slow = {"read_s": 0.097, "at_ratio": [0.02, 0.98][number // 2 % 2]} if number % 2 else {}
        raw, used_j = counter.read(**slow)
        uncounted_j = step.uncounted_j(raw)
        assert uncounted_j is not None
        errors_j.append((raw.energy_j or 0.0) + uncounted_j - used_j)
    assert max(map(abs, errors_j)) < 0.2 * POWER_W * 0.1


def test_a_noisy_counter_is_as_good() -> None:
    counter, step = Counter(), CounterStep()
    counter.noise_ratio = 0.0155
    errors_j = [error_j for error_j in counter.train(step, 300)[30:] if error_j is not None]
    assert np.std(errors_j) < 0.03 * POWER_W * 0.1


def test_a_counter_that_steps_otherwise_from_now_on_is_found_out_anew() -> None:
    counter, step = Counter(), CounterStep()
    counter.train(step, 30)
    other = Counter(step_s=0.13)
    other.pass_to(counter.now_s)
    other.train(step, 30 + SHORT_REST_S + 30)
    assert step.period_s == pytest.approx(0.13, rel=1e-3)


def test_a_board_that_cannot_be_read_often_keeps_what_is_known_and_is_tried_again() -> None:
    counter, step = Counter(), CounterStep()
    counter.train(step, 200)
    known_s = step.period_s
    counter.read_s = 0.05
    counter.train(step, 150)
    assert not step.is_sought(round(counter.now_s * 1e9)), "it was, a minute ago at most"
    assert step.period_s == known_s is not None
    late = Counter()
    late.read_s = 0.05
    late.train(step := CounterStep(), 30)
    assert step.period_s is None
    late.read_s = 0.003
    late.train(step, SHORT_REST_S)
    assert step.period_s == pytest.approx(0.1, rel=1e-3)


def test_a_reading_that_fails_ends_no_burst() -> None:
    counter, step, rng = Counter(), CounterStep(), np.random.default_rng(1)
    for _ in range(200):
        counter.pass_to(counter.now_s + PROBE_S)
        raw, _ = counter.read()
        if step.is_sought(raw.time_ns):
            step.look(replace(raw, energy_j=None) if rng.random() < 0.15 else raw)
    assert step.period_s == pytest.approx(0.1, rel=1e-2)


def test_a_change_of_load_is_followed_within_half_a_second() -> None:
    counter, step = Counter(), CounterStep()
    counter.train(step, 20)
    counter.power_w = 200.0
    errors_j = counter.train(step, 5)
    settled_j = np.array([error_j for error_j in errors_j[5:] if error_j is not None])
    assert len(settled_j) == len(errors_j) - 5
    assert np.ptp(settled_j) < 0.2 * 200.0 * 0.1


def test_after_a_reset_or_a_long_gap_nothing_is_known_until_two_steps_are() -> None:
    counter, step = Counter(), CounterStep()
    counter.train(step, 20)
    raw, _ = counter.read()
    assert step.uncounted_j(raw) is not None
    assert step.uncounted_j(Sample(time_ns=raw.time_ns + 10**8, power_w=None, energy_j=0.0)) is None
    assert step.uncounted_j(Sample(time_ns=raw.time_ns + 2 * 10**8, power_w=None)) is None


@pytest.mark.parametrize("step_s", [0.05, 0.1])
def test_a_counter_that_is_read_seldom_is_best_read_away_from_its_steps(step_s: float) -> None:
    counter, step, errors_j = Counter(step_s=step_s), CounterStep(), []
    counter.train(step, 20)
    for _ in range(200):
        counter.pass_to(counter.now_s + 1.9703)
        wait_s = step.clear_in_s(round(counter.now_s * 1e9))
        assert 0 <= wait_s < step_s
        counter.pass_to(counter.now_s + wait_s)
        assert step.clear_in_s(round(counter.now_s * 1e9)) == pytest.approx(0.0, abs=1e-6)
        raw, used_j = counter.read()
        uncounted_j = step.uncounted_j(raw)
        assert uncounted_j is not None
        errors_j.append((raw.energy_j or 0.0) + uncounted_j - used_j)
    assert np.std(errors_j) < 0.03 * POWER_W * step_s


def test_a_slow_reading_long_after_the_last_one_begins_anew() -> None:
    """Which of the steps in its time it shows, not even the power tells any more."""
    counter, step = Counter(), CounterStep()
    counter.train(step, 20)
    counter.pass_to(counter.now_s + 2.0)
    assert step.uncounted_j(counter.read(read_s=0.097)[0]) is None
    counter.train(step, 0.5)
    raw, used_j = counter.read()
    assert (raw.energy_j or 0.0) + (step.uncounted_j(raw) or 0.0) == pytest.approx(used_j, abs=0.1 * POWER_W * 0.1)
