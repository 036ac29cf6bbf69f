"""The slack of a straggler: the GPUs that wait for the slowest one get lower limits, one careful step after the other.

The GPUs of a run wait for each other in every iteration. Which of them the others wait for cannot be seen in their
rates, which are the same; so it is tried out:

    base ──24 blocks──► a GPU gets one step less ──the run is no slower──► kept; the next GPU
      ▲                        │
      └── put back, and not tried again for a while ◄── it is, or that cannot be told

A step is kept where a one-sided Welch test (B. L. Welch, Biometrika 34, 1947) rejects that the run is slower by
`tolerance_ratio` or more, both than just before and than with no GPU lowered at all. It looks three times, so each look
has a third of the error: a step that costs as much is kept with a probability of 5 % at most, and all steps together
cost no more than one may. The straggler itself slows the run at once, and keeps its limit. Now and then all get theirs
back for a moment, because a straggler that has recovered would go unnoticed: it waits for those that are lowered.

Time is active time, as the observations bring it; there is no clock here.

>>> rules, slack = SlackRules(), begin_slack(2)
>>> for _ in range(600):  # ten minutes: a step is tried on the first GPU, and does no harm
...     slack = advance_slack(rules, slack, active_s=1.0, n_iterations=2.0)
>>> lowered_ratios(rules, slack)[0] > 0
True
"""

import math
from dataclasses import dataclass, replace
from typing import Final, TypeVar

T = TypeVar("T")

LOOKS: Final = (24, 48, 96)
"""After so many blocks of a trial it is looked at."""
ERROR_QUANTILE: Final = 2.128
"""Of the normal distribution, for an error of 5 % in three looks."""
HARM_QUANTILE: Final = 3.0
MIN_HARM_BLOCKS: Final = 4
MIN_BLOCK_ITERATIONS: Final = 3.0
"""A block needs this many, however long they take: else neighbouring blocks say the same."""
MAX_ANCHOR_BLOCKS: Final = 192
MAX_DOUBLINGS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackRules:
    """How slack is shared.

    Attributes:
        step_ratio: by what share of the run's limit a GPU's limit is lowered at a time.
        max_ratio: by what share at most.
        tolerance_ratio: the slowdown that all of it together may cost.
        settle_s: what is not counted after a change of limits [s].
        block_s: how long a rate is averaged before it counts as one observation [s].
        rest_s: how long a GPU is left alone that has slowed the run, doubled each further time [s].
        recheck_s: how often all get their limits back for a moment [s].
    """

    step_ratio: float = 0.05
    max_ratio: float = 0.3
    tolerance_ratio: float = 0.005
    settle_s: float = 5.0
    block_s: float = 5.0
    rest_s: float = 1_800.0
    recheck_s: float = 7_200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RateStatistics:
    """Rates of blocks: how many, their mean [1/s], and the sum of squares of what they differ from it."""

    n: int = 0
    mean_per_s: float = 0.0
    square: float = 0.0

    def plus(self, rate_per_s: float) -> "RateStatistics":
        """Return these rates and one more."""
        n, off_per_s = self.n + 1, rate_per_s - self.mean_per_s
        mean_per_s = self.mean_per_s + off_per_s / n
        return RateStatistics(n=n, mean_per_s=mean_per_s, square=self.square + off_per_s * (rate_per_s - mean_per_s))

    @property
    def variance_of_mean(self) -> float:
        """Return the variance of the mean [1/s²]."""
        return self.square / (self.n - 1) / self.n


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackState:
    """What is known of the slack at one limit of the run.

    Attributes:
        ratios: by what share of the run's limit each GPU's is lowered for good.
        trial: the GPU that has one more step for a trial; None while the base is measured.
        rates: of the blocks of what is being measured.
        base: of those before the trial.
        anchor: of those with no GPU lowered.
        settled_s: how long the present limits stand [s].
        block_s: how long the block under way is so far [s].
        block_iterations: the iterations in it.
        rests_s: for how long each GPU is not to be tried [s].
        n_refusals: how often in a row each GPU has slowed the run.
        latest: the GPU that was tried last: the others have their turn.
        shelved: what is lowered again after the look at how fast the run is without it; None where there is no look.
        age_s: how long ago that look was [s].
    """

    ratios: tuple[float, ...]
    trial: int | None = None
    rates: RateStatistics = RateStatistics()
    base: RateStatistics = RateStatistics()
    anchor: RateStatistics = RateStatistics()
    settled_s: float = 0.0
    block_s: float = 0.0
    block_iterations: float = 0.0
    rests_s: tuple[float, ...] = ()
    n_refusals: tuple[int, ...] = ()
    latest: int = -1
    shelved: tuple[float, ...] | None = None
    age_s: float = 0.0


def begin_slack(n_gpus: int) -> SlackState:
    """Return the state in which no GPU is lowered and nothing is known."""
    return SlackState(ratios=(0.0,) * n_gpus, rests_s=(0.0,) * n_gpus, n_refusals=(0,) * n_gpus)


def limit_reductions(rules: SlackRules, slack: SlackState) -> tuple[float, ...]:
    """Return by what share of the run's limit each GPU's is to be lower now."""
    return tuple(ratio + (rules.step_ratio if gpu == slack.trial else 0.0) for gpu, ratio in enumerate(slack.ratios))


def resumed(slack: SlackState) -> SlackState:
    """Return the state after the limits were others for a moment: they have to settle, and it goes on."""
    return replace(slack, settled_s=0.0, block_s=0.0, block_iterations=0.0)


def interrupted(slack: SlackState) -> SlackState:
    """Return the state after the limits were others for long: what was being measured says nothing any more."""
    return replace(_phase(slack), ratios=slack.shelved or slack.ratios, shelved=None, base=RateStatistics())


def advance_slack(rules: SlackRules, slack: SlackState, *, active_s: float, n_iterations: float) -> SlackState:
    """Return the state after a slice of time in which iterations ran, and the limits were those asked for.

    Args:
        rules: how slack is shared.
        slack: the state before.
        active_s: how long the slice was [s].
        n_iterations: the iterations in it, with fractions.
    """
    if not (active_s > 0 and n_iterations >= 0):
        return slack
    rests_s = tuple(max(rest_s - active_s, 0.0) for rest_s in slack.rests_s)
    slack = replace(slack, rests_s=rests_s, age_s=slack.age_s + active_s)
    if slack.settled_s < rules.settle_s:
        return replace(slack, settled_s=slack.settled_s + active_s)
    block_s, block_iterations = slack.block_s + active_s, slack.block_iterations + n_iterations
    if block_s < rules.block_s or block_iterations < MIN_BLOCK_ITERATIONS:
        return replace(slack, block_s=block_s, block_iterations=block_iterations)
    rate_per_s = block_iterations / block_s
    slack = replace(slack, rates=slack.rates.plus(rate_per_s), block_s=0.0, block_iterations=0.0)
    if slack.shelved is not None:
        return _checked(rules, slack, slack.shelved)
    if slack.trial is not None:
        return _tried(rules, slack, slack.trial)
    if not any(slack.ratios) and slack.anchor.n < MAX_ANCHOR_BLOCKS:
        slack = replace(slack, anchor=slack.anchor.plus(rate_per_s))
    return _based(rules, slack)


def _based(rules: SlackRules, slack: SlackState) -> SlackState:
    """Return what follows from one more block of the base: nothing yet, a trial, a look, or a new beginning."""
    if slack.rates.n < LOOKS[0]:
        return slack
    nothing = (0.0,) * len(slack.ratios)
    if _has_left(slack.rates, slack.anchor, rules.tolerance_ratio):
        return replace(_phase(slack), ratios=nothing, anchor=RateStatistics(), age_s=0.0)
    if any(slack.ratios) and slack.age_s >= rules.recheck_s:
        return replace(_phase(slack), base=slack.rates, shelved=slack.ratios, ratios=nothing, age_s=0.0)
    gpu = _next_gpu(rules, slack)
    if gpu is None:  # what is measured stays fresh
        return replace(slack, rates=RateStatistics()) if slack.rates.n >= LOOKS[-1] else slack
    return replace(_phase(slack), trial=gpu, latest=gpu, base=slack.rates)


def _tried(rules: SlackRules, slack: SlackState, gpu: int) -> SlackState:
    """Return what follows from one more block of a trial."""
    rates = slack.rates
    is_harmful = rates.n >= MIN_HARM_BLOCKS and _difference(rates, slack.base, HARM_QUANTILE)[1] < 0
    if rates.n in LOOKS and not is_harmful:
        tests = (_difference(rates, former, ERROR_QUANTILE)[0] for former in (slack.base, slack.anchor))
        if all(least_ratio > -rules.tolerance_ratio for least_ratio in tests):
            # What was just measured is the base of the next trial.
            kept = replace(slack, ratios=_with(slack.ratios, gpu, slack.ratios[gpu] + rules.step_ratio), trial=None)
            return replace(kept, n_refusals=_with(slack.n_refusals, gpu, 0))
    if not is_harmful and rates.n < LOOKS[-1]:
        return slack
    n_refused = slack.n_refusals[gpu]
    return replace(
        _phase(slack),
        rests_s=_with(slack.rests_s, gpu, rules.rest_s * 2.0 ** min(n_refused, MAX_DOUBLINGS)),
        n_refusals=_with(slack.n_refusals, gpu, n_refused + 1),
    )


def _checked(rules: SlackRules, slack: SlackState, shelved: tuple[float, ...]) -> SlackState:
    """Return what follows from one more block with no GPU lowered: wait, lower them again, or begin anew."""
    rates = slack.rates
    if rates.n not in LOOKS:
        return slack
    is_worth_it = _difference(slack.base, rates, ERROR_QUANTILE)[0] > -rules.tolerance_ratio
    if not is_worth_it and rates.n < LOOKS[-1]:
        return slack
    return replace(_phase(slack), ratios=shelved if is_worth_it else slack.ratios, shelved=None, anchor=rates)


def _next_gpu(rules: SlackRules, slack: SlackState) -> int | None:
    """Return the next GPU in turn that may be lowered by a step; None where none may. One always keeps its limit."""
    n_gpus = len(slack.ratios)
    for gpu in ((slack.latest + 1 + number) % n_gpus for number in range(n_gpus)):
        others = slack.ratios[:gpu] + slack.ratios[gpu + 1 :]
        is_low_enough = slack.ratios[gpu] + rules.step_ratio > rules.max_ratio + 1e-9
        if not is_low_enough and slack.rests_s[gpu] <= 0 and 0.0 in others:
            return gpu
    return None


def _phase(slack: SlackState) -> SlackState:
    """Return the state at the beginning of another phase: limits have to settle, and nothing of it is measured."""
    return replace(resumed(slack), trial=None, rates=RateStatistics())


def _has_left(now: RateStatistics, former: RateStatistics, tolerance_ratio: float) -> bool:
    """Return whether the run has another rate than it had, beyond noise and by more than is tolerated."""
    if former.n < LOOKS[0]:
        return False
    low_ratio, high_ratio = _difference(now, former, HARM_QUANTILE)
    middle_ratio = (low_ratio + high_ratio) / 2
    return abs(middle_ratio) > tolerance_ratio and (low_ratio > 0 or high_ratio < 0)


def _difference(now: RateStatistics, former: RateStatistics, quantile: float) -> tuple[float, float]:
    """Return between which bounds the relative difference of two rates lies, by Welch's test.

    Args:
        now: the one.
        former: the other, to which it is relative.
        quantile: of the normal distribution; Student's is made of it (Cornish-Fisher, two terms).
    """
    ratio = now.mean_per_s / former.mean_per_s
    variances = now.variance_of_mean, former.variance_of_mean * ratio * ratio
    whole = sum(variances)
    n_degrees = whole**2 / (variances[0] ** 2 / (now.n - 1) + variances[1] ** 2 / (former.n - 1)) if whole else math.inf
    student = quantile + (quantile**3 + quantile) / (4 * n_degrees)
    half_ratio = student * math.sqrt(whole) / former.mean_per_s
    return ratio - 1 - half_ratio, ratio - 1 + half_ratio


def _with(values: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    """Return values with another one in the place of one."""
    return (*values[:index], value, *values[index + 1 :])
