"""Straggler slack: waiting GPUs are lowered as far as that costs nothing, and undecided steps are not kept."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.planning.slack.straggler import (
    RateStatistics,
    SlackState,
    StragglerRules,
    advance_slack,
    begin_slack,
    interrupted,
    limit_reductions,
    resumed,
)

RULES = StragglerRules()
EXPONENT = 0.3
"""A GPU is as fast as its limit to the power of this."""


class Run:
    """A run in iterations of which all GPUs wait for the slowest; noise is that of a block's rate."""

    def __init__(
        self, *speeds_per_s: float, noise_ratio: float = 0.0, seed: int = 0, rules: StragglerRules = RULES
    ) -> None:
        self.speeds_per_s = list(speeds_per_s)
        self.rules = rules
        self.slack = begin_slack(len(speeds_per_s))
        self.iterations, self.active_s = 0.0, 0.0
        self.tried: list[int] = []
        self._noise_ratio = noise_ratio
        self._rng = np.random.default_rng(seed)

    @property
    def rate_per_s(self) -> float:
        ratios = limit_reductions(self.rules, self.slack)
        return min(v * math.pow(1 - ratio, EXPONENT) for v, ratio in zip(self.speeds_per_s, ratios, strict=True))

    def train(self, duration_s: float) -> "Run":
        """Train in slices of a block."""
        for _ in range(int(duration_s / self.rules.block_s)):
            rate_per_s = self.rate_per_s * (1 + self._noise_ratio * self._rng.standard_normal())
            trial = self.slack.trial
            self.slack = advance_slack(
                self.rules, self.slack, active_s=self.rules.block_s, n_iterations=rate_per_s * self.rules.block_s
            )
            self.active_s += self.rules.block_s
            self.iterations += rate_per_s * self.rules.block_s
            if self.slack.trial is not None and self.slack.trial != trial:
                self.tried.append(self.slack.trial)
        return self


def test_waiting_gpus_are_lowered_and_the_straggler_is_not() -> None:
    run = Run(1.0, 0.92, 1.0, 1.0, noise_ratio=0.005).train(4 * 3_600)
    assert run.slack.ratios[1] == 0
    assert np.delete(run.slack.ratios, 1) == pytest.approx([0.2, 0.2, 0.2], abs=0.051)
    assert run.iterations / run.active_s > 0.995 * 0.92


def test_equally_fast_gpus_are_not_lowered() -> None:
    run = Run(1.0, 1.0, 1.0, 1.0, noise_ratio=0.005).train(8 * 3_600)
    assert not any(run.slack.ratios)
    assert run.iterations / run.active_s > 0.998


def test_a_single_gpu_is_never_lowered() -> None:
    assert Run(1.0).train(3_600).tried == []


def test_the_backoff_of_a_rejected_gpu_doubles() -> None:
    run = Run(1.0, 1.0)
    times_s: list[float] = []
    for _ in range(4 * 3_600 // 5):
        n_tried = len(run.tried)
        run.train(5.0)
        if run.tried[n_tried:] == [0]:
            times_s.append(run.active_s)
    backoffs_s = np.diff(times_s)
    assert backoffs_s[0] == pytest.approx(RULES.backoff_s, abs=300)
    assert backoffs_s[1] == pytest.approx(2 * RULES.backoff_s, abs=300)


def test_noise_prevents_lowering() -> None:
    assert Run(1.0, 0.5, noise_ratio=0.05).train(4 * 3_600).slack.ratios == (0, 0)


def test_the_false_acceptance_rate_is_5_percent_at_most() -> None:
    costly = 1 / ((1 - RULES.step_ratio) ** EXPONENT / (1 - RULES.tolerance_ratio))
    n_kept = 0
    for seed in range(400):
        run = Run(costly, 1.0, noise_ratio=0.01, seed=seed)
        while not run.tried or run.slack.trial is not None:
            run.train(5.0)
        n_kept += run.slack.ratios[0] > 0
    # 5 % of 400, and three standard deviations of a binomial distribution.
    assert n_kept <= 20 + 3 * (400 * 0.05 * 0.95) ** 0.5


def test_a_changed_rate_restarts_with_no_gpu_lowered() -> None:
    run = Run(1.0, 0.92, noise_ratio=0.003).train(3_600)
    assert run.slack.ratios[0] > 0
    run.speeds_per_s = [0.85, 0.92]
    run.train(400)
    assert run.slack.ratios[0] == 0


def test_a_recovered_straggler_is_found_at_the_recheck() -> None:
    run = Run(1.0, 0.92, noise_ratio=0.003).train(3_600)
    assert run.slack.ratios[0] > 0
    run.speeds_per_s[1] = 1.0
    run.train(RULES.recheck_s + 900)
    assert run.slack.ratios == (0, 0)


def test_a_recheck_restores_the_reductions() -> None:
    run = Run(1.0, 0.92, noise_ratio=0.003).train(9_000)
    before = run.slack.ratios
    n_looks = 0
    for _ in range(9_000 // 5):
        was_looking = run.slack.suspended is not None
        run.train(5.0)
        n_looks += was_looking and run.slack.suspended is None
    assert n_looks == 1
    assert run.slack.ratios == before


def test_a_short_interruption_resumes_the_trial() -> None:
    run = Run(1.0, 0.92).train(200)
    assert run.slack.trial == 0
    run.slack = resumed(run.slack)
    assert (run.slack.trial, run.slack.settled_s) == (0, 0.0)
    assert run.train(100).slack.ratios == (RULES.step_ratio, 0.0), "not from the beginning: that takes two minutes more"


def test_a_long_interruption_discards_the_trial() -> None:
    slack = SlackState(
        ratios=(0.1, 0.0), trial=0, rates=RateStatistics(n=5, mean_per_s=1.0), backoffs_s=(0, 9), n_rejections=(0, 1)
    )
    assert limit_reductions(RULES, interrupted(slack)) == (0.1, 0.0)
    looking = replace(slack, trial=None, ratios=(0.0, 0.0), suspended=(0.1, 0.0))
    assert limit_reductions(RULES, interrupted(looking)) == (0.1, 0.0)


def test_short_blocks_wait_for_more_iterations() -> None:
    slack = begin_slack(2)
    for _ in range(10):
        slack = advance_slack(RULES, slack, active_s=5.0, n_iterations=0.4)
    assert slack.rates.n == 1


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.floats(0.01, 60), st.floats(0, 100)), min_size=50, max_size=600),
    st.integers(1, 8),
    st.floats(0, 0.5),
)
def test_reductions_are_bounded_and_one_gpu_keeps_its_limit(
    slices: list[tuple[float, float]], n_gpus: int, max_ratio: float
) -> None:
    rules, slack = StragglerRules(max_ratio=max_ratio, block_s=1.0, settle_s=0.0), begin_slack(n_gpus)
    for active_s, n_iterations in slices:
        slack = advance_slack(rules, slack, active_s=active_s, n_iterations=n_iterations)
        ratios = limit_reductions(rules, slack)
        assert len(ratios) == n_gpus
        assert 0.0 in ratios
        assert all(0 <= ratio <= max_ratio + 1e-6 for ratio in ratios)


def test_invalid_intervals_change_nothing() -> None:
    slack = begin_slack(2)
    assert advance_slack(RULES, slack, active_s=0.0, n_iterations=1.0) == slack
    assert advance_slack(RULES, slack, active_s=float("nan"), n_iterations=1.0) == slack
