"""Tests of what a run has saved, by its books and its looks, against what it truly has."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from controller.accounting.meter_intervals import MeterInterval
from controller.control.curve_learning import Planned, observation_of
from controller.control.limit_control import LimitControl
from policies.savings.books import Purpose
from policies.savings.interval import KnownSaving
from policies.vocabulary.profile import PowerProfile
from tests.controller.accounting.test_run_books import TOP_W, Course, uses
from tests.controller.control.control_bench import begin, choose, interval, limit_control, rate_per_s


@dataclass
class Trainer:
    """A run that trains second by second, with noise, and looks at the top limit.

    Attributes:
        control: its control.
        power_w, rate: what it needs and how fast it is at each limit.
        rng: of the noise.
        course: what it did.
        used_j, top_j: what it needs without noise, and what the same work needs at the top.
    """

    control: LimitControl
    power_w: Callable[[float], float]
    rate: Callable[[float], float]
    rng: np.random.Generator
    course: Course = field(default_factory=Course)
    used_j: float = 0.0
    top_j: float = 0.0

    def work(self, limit_w: float, purpose: Purpose) -> MeterInterval:
        """Iterate for a second; return what was seen."""
        course = self.course
        if course.in_force is None or course.in_force[0] != limit_w:
            course.set_limit(limit_w, purpose)
        course.books.purpose = purpose
        noise = 1 + 0.005 * self.rng.standard_normal(2)
        seen = interval(float(noise[0]) * self.power_w(limit_w), float(noise[1]) * self.rate(limit_w))
        times = seen.iteration_times_s
        course.work(1.0, seen.energy_j, n_iterations=seen.n_iterations, iteration_times_s=times)
        self.used_j += self.power_w(limit_w)
        self.top_j += self.rate(limit_w) * self.power_w(TOP_W) / self.rate(TOP_W)
        return course.added[-1]

    def error(self) -> float:
        """Return by how many half widths of its interval the estimate is off."""
        assert isinstance(self.control.state, Planned)
        self.course.books.curve = self.control.state.refinement.profile
        found = self.course.books.saving(self.control.ledger.looks)
        assert isinstance(found, KnownSaving)
        true_ratio = 1 - self.used_j / self.top_j
        return (found.saving.saved_ratio - true_ratio) / found.saved_ci90_ratio


def test_the_interval_holds_what_was_truly_saved() -> None:
    errors = []
    for seed in range(4):
        control = begin(limit_control())
        run = Trainer(control, lambda limit_w: 0.9 * limit_w, rate_per_s, np.random.default_rng(seed))
        for second in range(3_600):
            limit_w = choose(control, at_s=second).power_limit_w
            seen = run.work(limit_w, control.purpose)
            control.ledger.add(seen, run.course.in_force)
            control.observe(seen, enforced_power_limit_w=limit_w)
        assert 1 - run.used_j / run.top_j > 0.03
        assert {purpose for _, purpose in uses(run.course)} == set(Purpose)
        errors.append(run.error())
    assert sum(abs(error) <= 1 for error in errors) >= 3, errors
    assert max(map(abs, errors)) < 2, errors


def test_where_all_limits_are_alike_nothing_was_saved() -> None:
    flat = PowerProfile.from_rows([(200.0, 250.0, 4.0), (240.0, 250.0, 4.0), (TOP_W, 250.0, 4.0)])
    errors = []
    for seed in range(8):
        control = begin(limit_control(), flat)
        assert isinstance(control.state, Planned)
        state, run = control.state, Trainer(control, lambda _: 250.0, lambda _: 4.0, np.random.default_rng(seed))
        for second in range(2_000):  # ten looks of 40 s
            limit_w, purpose = (TOP_W, Purpose.LOOK) if second % 200 >= 160 else (200.0, Purpose.PLAN)
            seen = observation_of(run.work(limit_w, purpose), enforced_power_limit_w=limit_w)
            control.ledger.observe(seen, state.refinement, state.settings, settle_s=2.0)
        errors.append(run.error())
    assert sum(abs(error) <= 1 for error in errors) >= 6, errors
    assert max(map(abs, errors)) < 2, errors
