"""Lowers the limits of GPUs that wait for a straggler, one tested step after the other.

The GPUs of a run wait for each other in every iteration. Which of them the others wait for does not show in their
rates, which are equal; so it is tested:

    baseline ──24 blocks──► a GPU gets one step less ──no slower──► kept; the next GPU
      ▲                        │
      └── restored, and not tried again for a while ◄── slower, or undecided

A step is kept if a one-sided Welch test (B. L. Welch, Biometrika 34, 1947) rejects that the run is slower by
`tolerance_ratio` or more, both than just before and than with no GPU lowered at all. There are three interim analyses,
each with a third of the error: a step that costs as much is kept with a probability of 5 % at most, and all steps
together cost no more than `tolerance_ratio`. Lowering the straggler slows the run at once, so it keeps its limit. Now
and then all limits are restored for a recheck, because a straggler that has recovered would go unnoticed: it waits for
those that are lowered.

Time is active time, as the observations have it; there is no clock here.

>>> rules, slack = StragglerRules(), begin_slack(2)
>>> for _ in range(600):  # ten minutes: a step is tried on the first GPU, and does not slow the run
...     slack = advance_slack(rules, slack, active_s=1.0, n_iterations=2.0)
>>> limit_reductions(rules, slack)[0] > 0
True
"""

import math
from dataclasses import dataclass, replace
from typing import Final, TypeVar

T = TypeVar("T")

ANALYSES: Final = (24, 48, 96)
"""The interim analyses of a trial come after so many blocks."""
ERROR_QUANTILE: Final = 2.128
"""Of the normal distribution, for an error of 5 % in three analyses."""
HARM_QUANTILE: Final = 3.0
MIN_HARM_BLOCKS: Final = 4
MIN_BLOCK_ITERATIONS: Final = 3.0
"""A block has at least so many, however long they take; else neighbouring blocks would be correlated."""
MAX_REFERENCE_BLOCKS: Final = 192
MAX_DOUBLINGS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerRules:
    """The rules of the search.

    Attributes:
        step_ratio: one step, as a share of the run's limit.
        max_ratio: the most that a GPU's limit is lowered, as a share of the run's limit.
        tolerance_ratio: the slowdown that all steps together may cost.
        settle_s: time that is not counted after a change of limits [s].
        block_s: how long a rate is averaged to count as one observation [s].
        backoff_s: how long a GPU that has slowed the run is not tried again, doubled each further time [s].
        recheck_s: how often all limits are restored for a moment [s].
    """

    step_ratio: float = 0.05
    max_ratio: float = 0.3
    tolerance_ratio: float = 0.005
    settle_s: float = 5.0
    block_s: float = 5.0
    backoff_s: float = 1_800.0
    recheck_s: float = 7_200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RateStatistics:
    """The rates of blocks: their number, mean [1/s], and sum of squared deviations from it."""

    n: int = 0
    mean_per_s: float = 0.0
    square: float = 0.0

    def plus(self, rate_per_s: float) -> "RateStatistics":
        """Return the statistics with one more rate (Welford's update)."""
        n, off_per_s = self.n + 1, rate_per_s - self.mean_per_s
        mean_per_s = self.mean_per_s + off_per_s / n
        return RateStatistics(n=n, mean_per_s=mean_per_s, square=self.square + off_per_s * (rate_per_s - mean_per_s))

    @property
    def variance_of_mean(self) -> float:
        """Return the variance of the mean [1/s²]."""
        return self.square / (self.n - 1) / self.n


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackState:
    """The state of the search at one limit of the run.

    Attributes:
        ratios: by what share of the run's limit each GPU's is lowered.
        trial: the GPU with one step more on trial; None while the baseline is measured.
        rates: of the blocks of the present phase.
        baseline: of the blocks before the trial.
        reference: of the blocks with no GPU lowered.
        settled_s: for how long the present limits have been in force [s].
        block_s: the duration of the block so far [s].
        block_iterations: its iterations.
        backoffs_s: for how long each GPU is not to be tried [s].
        n_rejections: how often in a row each GPU has slowed the run.
        last_gpu: the GPU that was tried last, for the round robin.
        suspended: the ratios to return to after the recheck; None outside a recheck.
        since_recheck_s: the time since the last recheck [s].
    """

    ratios: tuple[float, ...]
    trial: int | None = None
    rates: RateStatistics = RateStatistics()
    baseline: RateStatistics = RateStatistics()
    reference: RateStatistics = RateStatistics()
    settled_s: float = 0.0
    block_s: float = 0.0
    block_iterations: float = 0.0
    backoffs_s: tuple[float, ...] = ()
    n_rejections: tuple[int, ...] = ()
    last_gpu: int = -1
    suspended: tuple[float, ...] | None = None
    since_recheck_s: float = 0.0


def begin_slack(n_gpus: int) -> SlackState:
    """Return the state in which no GPU is lowered and nothing is known."""
    return SlackState(ratios=(0.0,) * n_gpus, backoffs_s=(0.0,) * n_gpus, n_rejections=(0,) * n_gpus)


def limit_reductions(rules: StragglerRules, slack: SlackState) -> tuple[float, ...]:
    """Return by what share of the run's limit each GPU's is to be lowered now."""
    return tuple(ratio + (rules.step_ratio if gpu == slack.trial else 0.0) for gpu, ratio in enumerate(slack.ratios))


def resumed(slack: SlackState) -> SlackState:
    """Return the state after a short time at other limits: they settle again, and the phase goes on."""
    return replace(slack, settled_s=0.0, block_s=0.0, block_iterations=0.0)


def interrupted(slack: SlackState) -> SlackState:
    """Return the state after a long time at other limits: the present phase is discarded."""
    return replace(
        _begin_phase(slack), ratios=slack.suspended or slack.ratios, suspended=None, baseline=RateStatistics()
    )


def advance_slack(rules: StragglerRules, slack: SlackState, *, active_s: float, n_iterations: float) -> SlackState:
    """Return the state after an interval in which iterations ran, with the requested limits in force.

    Args:
        rules: the rules of the search.
        slack: the state before.
        active_s: the duration of the interval [s].
        n_iterations: the iterations in it, with fractions.
    """
    if not (active_s > 0 and n_iterations >= 0):
        return slack
    backoffs_s = tuple(max(backoff_s - active_s, 0.0) for backoff_s in slack.backoffs_s)
    slack = replace(slack, backoffs_s=backoffs_s, since_recheck_s=slack.since_recheck_s + active_s)
    if slack.settled_s < rules.settle_s:
        return replace(slack, settled_s=slack.settled_s + active_s)
    block_s, block_iterations = slack.block_s + active_s, slack.block_iterations + n_iterations
    if block_s < rules.block_s or block_iterations < MIN_BLOCK_ITERATIONS:
        return replace(slack, block_s=block_s, block_iterations=block_iterations)
    rate_per_s = block_iterations / block_s
    slack = replace(slack, rates=slack.rates.plus(rate_per_s), block_s=0.0, block_iterations=0.0)
    if slack.suspended is not None:
        return _after_recheck_block(rules, slack, slack.suspended)
    if slack.trial is not None:
        return _after_trial_block(rules, slack, slack.trial)
    if not any(slack.ratios) and slack.reference.n < MAX_REFERENCE_BLOCKS:
        slack = replace(slack, reference=slack.reference.plus(rate_per_s))
    return _after_baseline_block(rules, slack)


def _after_baseline_block(rules: StragglerRules, slack: SlackState) -> SlackState:
    """Return the state after a baseline block: the same phase, a trial, a recheck, or a restart."""
    if slack.rates.n < ANALYSES[0]:
        return slack
    nothing = (0.0,) * len(slack.ratios)
    if _has_changed(slack.rates, slack.reference, rules.tolerance_ratio):
        return replace(_begin_phase(slack), ratios=nothing, reference=RateStatistics(), since_recheck_s=0.0)
    if any(slack.ratios) and slack.since_recheck_s >= rules.recheck_s:
        return replace(
            _begin_phase(slack), baseline=slack.rates, suspended=slack.ratios, ratios=nothing, since_recheck_s=0.0
        )
    gpu = _next_gpu(rules, slack)
    if gpu is None:  # keep the baseline recent
        return replace(slack, rates=RateStatistics()) if slack.rates.n >= ANALYSES[-1] else slack
    return replace(_begin_phase(slack), trial=gpu, last_gpu=gpu, baseline=slack.rates)


def _after_trial_block(rules: StragglerRules, slack: SlackState, gpu: int) -> SlackState:
    rates = slack.rates
    is_harmful = rates.n >= MIN_HARM_BLOCKS and _relative_difference(rates, slack.baseline, HARM_QUANTILE)[1] < 0
    if rates.n in ANALYSES and not is_harmful:
        tests = (_relative_difference(rates, former, ERROR_QUANTILE)[0] for former in (slack.baseline, slack.reference))
        if all(least_ratio > -rules.tolerance_ratio for least_ratio in tests):
            # What was just measured is the baseline of the next trial.
            kept = replace(
                slack, ratios=_replace_at(slack.ratios, gpu, slack.ratios[gpu] + rules.step_ratio), trial=None
            )
            return replace(kept, n_rejections=_replace_at(slack.n_rejections, gpu, 0))
    if not is_harmful and rates.n < ANALYSES[-1]:
        return slack
    n_rejections = slack.n_rejections[gpu]
    return replace(
        _begin_phase(slack),
        backoffs_s=_replace_at(slack.backoffs_s, gpu, rules.backoff_s * 2.0 ** min(n_rejections, MAX_DOUBLINGS)),
        n_rejections=_replace_at(slack.n_rejections, gpu, n_rejections + 1),
    )


def _after_recheck_block(rules: StragglerRules, slack: SlackState, suspended: tuple[float, ...]) -> SlackState:
    """Return the state after a block of a recheck: the same phase, the former reductions, or none."""
    rates = slack.rates
    if rates.n not in ANALYSES:
        return slack
    is_worth_it = _relative_difference(slack.baseline, rates, ERROR_QUANTILE)[0] > -rules.tolerance_ratio
    if not is_worth_it and rates.n < ANALYSES[-1]:
        return slack
    return replace(
        _begin_phase(slack), ratios=suspended if is_worth_it else slack.ratios, suspended=None, reference=rates
    )


def _next_gpu(rules: StragglerRules, slack: SlackState) -> int | None:
    """Return the next GPU that may be lowered by a step, or None. One GPU always keeps its limit."""
    n_gpus = len(slack.ratios)
    for gpu in ((slack.last_gpu + 1 + number) % n_gpus for number in range(n_gpus)):
        others = slack.ratios[:gpu] + slack.ratios[gpu + 1 :]
        is_low_enough = slack.ratios[gpu] + rules.step_ratio > rules.max_ratio + 1e-9
        if not is_low_enough and slack.backoffs_s[gpu] <= 0 and 0.0 in others:
            return gpu
    return None


def _begin_phase(slack: SlackState) -> SlackState:
    """Return the state at the beginning of a phase: limits have to settle, and nothing is measured yet."""
    return replace(resumed(slack), trial=None, rates=RateStatistics())


def _has_changed(now: RateStatistics, former: RateStatistics, tolerance_ratio: float) -> bool:
    """Return whether the rate of the run has changed significantly, and by more than the tolerance."""
    if former.n < ANALYSES[0]:
        return False
    low_ratio, high_ratio = _relative_difference(now, former, HARM_QUANTILE)
    middle_ratio = (low_ratio + high_ratio) / 2
    return abs(middle_ratio) > tolerance_ratio and (low_ratio > 0 or high_ratio < 0)


def _relative_difference(now: RateStatistics, former: RateStatistics, quantile: float) -> tuple[float, float]:
    """Return the confidence bounds of the relative difference of two rates, by Welch's test.

    Args:
        now: the rates now.
        former: the rates that the difference is relative to.
        quantile: of the normal distribution; Student's follows by the Cornish-Fisher expansion, two terms.
    """
    ratio = now.mean_per_s / former.mean_per_s
    variances = now.variance_of_mean, former.variance_of_mean * ratio * ratio
    whole = sum(variances)
    n_degrees = whole**2 / (variances[0] ** 2 / (now.n - 1) + variances[1] ** 2 / (former.n - 1)) if whole else math.inf
    student = quantile + (quantile**3 + quantile) / (4 * n_degrees)
    half_ratio = student * math.sqrt(whole) / former.mean_per_s
    return ratio - 1 - half_ratio, ratio - 1 + half_ratio


def _replace_at(values: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    return (*values[:index], value, *values[index + 1 :])
