"""The default policy: the batch size whose run, with what it teaches, makes the next recurrences cheapest.

Two things are weighed for each candidate, in units of the cost of the best: the expected cost of a run there now, if it
is stopped at β times the best and restarted; and the expected cost of the recurrences after it, given what it would
teach (the knowledge gradient: Frazier, Powell and Dayanik, SIAM J. Control Optim. 47 (2008); for correlated normal
beliefs, INFORMS J. Comput. 21 (2009)). The first run takes the user's default.

Two things are beyond that model. A batch size may never reach the target, which no neighbour tells: until it has, that
is expected of one in ten. And where runs are concurrent, what a second run at a size teaches could be had a little
later, once the first has ended: it is worth the few recurrences until then, not the whole horizon.

So that a batch size with an unlucky run is not lost for ever, the runner-up is tried again at growing intervals, as
long as it may well be the best.
"""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.batch_size.concept_drift import NOISE_LOG
from policies.batch_size.gaussian_process import Gaussian, normal_cdf, normal_pdf
from policies.batch_size.posterior import CostPosterior, infer, prior
from policies.batch_size.study import Belief, Choice, LearningSettings, Study
from policies.vocabulary.units import Values

UNREACHED_RATIO: Final = 0.1
"""How likely a batch size is to never reach the target, until it has; the user's default is expected to."""
FIRST_REVIEW: Final = 8
"""The number of the first run that may be a review; then each doubling of it."""
INTERVAL_Z: Final = 1.645
"""Half the width of a 90 % interval, in standard deviations."""
FARTHEST_FIRST: Final = 2.0
"""How far a run without a bound goes from the default, and from what ran, as a factor."""
MOST_DOUBLINGS: Final = 20
"""Of the bound."""
WORST_LOG: Final = 50.0
"""The logarithm of a ratio of costs beyond which nothing changes, and floats would overflow."""
REVIEW_Z: Final = 1.28
"""A candidate is reviewed if its cost is below the best's with a probability of at least 10 %."""


_Interval = tuple[float | None, float | None, float | None]
_UNKNOWN: _Interval = (None, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """The scores of the candidates, shapes (n,), in units of the least cost.

    Attributes:
        now: the expected cost of a run now.
        total: the mean over that run and the recurrences of the horizon, less what it is worth to them.
        best: the index of the candidate with the least expected cost.
    """

    now: Values
    total: Values
    best: int


def choose(study: Study, settings: LearningSettings) -> Choice:
    """Return the batch size of the next run, and why."""
    posterior = infer(study, settings)
    bound = _bound(posterior, study, settings)
    open_candidates = study.open_candidates
    if len(study.pruned) == len(study.candidates):
        detail = f"every batch size has failed; the default, {study.default}, is tried again"
        return Choice(batch_size=study.default, reason="none_can_run", detail=detail, cost_bound=bound)
    if len(open_candidates) == 1:
        only = open_candidates[0]
        detail = f"{only} is the only batch size that can run"
        return Choice(batch_size=only, reason="only_candidate", detail=detail, cost_bound=bound)
    if posterior is None:
        return _first(study, settings)
    belief = in_flight(posterior.log_cost, posterior.noise_variance, study)
    scores = score(belief, posterior.noise_variance, study, settings)
    near = scores.total if bound is not None else _near(study, scores.total)
    at = int(np.argmin(near if np.isfinite(near).any() else scores.total))
    reason = "best_so_far" if at == scores.best else "knowledge_gradient"
    if reason == "best_so_far" and _review_is_due(study):
        runner_up = _runner_up(belief, study, scores.best)
        at, reason = (at, reason) if runner_up is None else (runner_up, "review")
    if _default_is_due(posterior, study):
        at, reason = study.candidates.index(study.default), "job_changed"
    return Choice(
        batch_size=study.candidates[at],
        reason=reason,
        detail=_explain(study, posterior, scores, at, reason),
        cost_bound=bound,
    )


def describe(study: Study, settings: LearningSettings) -> list[Belief]:
    """Return the posterior of each candidate, in their order."""
    posterior = infer(study, settings)
    scores: list[float | None] = [None] * len(study.candidates)
    if posterior is not None and len(study.open_candidates) > 1:
        belief = in_flight(posterior.log_cost, posterior.noise_variance, study)
        least = math.exp(float(belief.mean.min()))
        total = score(belief, posterior.noise_variance, study, settings).total
        scores = [float(value) * least if math.isfinite(value) else None for value in total]
    return [_row(study, posterior, at, scores[at]) for at in range(len(study.candidates))]


def score(belief: Gaussian, noise_variance: float, study: Study, settings: LearningSettings) -> Scores:
    """Return the scores of the candidates; those that cannot run have an infinite one.

    Args:
        belief: the logarithm of the cost of a run to the target at each candidate.
        noise_variance: of that logarithm, from run to run.
        study: the job.
        settings: beta, and the horizon.
    """
    open_candidates = study.open_candidates
    runs = np.array([size in open_candidates for size in study.candidates])
    mean = np.where(runs, belief.mean, np.inf)
    order = np.argsort(mean)
    best, second = int(order[0]), int(order[1])
    gap = np.minimum(mean[runs] - mean[best], WORST_LOG)
    variance = belief.variance[runs]
    sd = np.sqrt(variance + noise_variance)
    # The log-normal cost, cut at the bound; beyond it the bound is paid, and a restart at the best.
    stopped_cost = 1 + settings.beta
    until_bound = (math.log(settings.beta) - gap) / sd
    now = np.exp(gap + sd**2 / 2) * normal_cdf(until_bound - sd) + stopped_cost * normal_cdf(-until_bound)
    unreached = np.where(_has_reached(study)[runs], 0.0, UNREACHED_RATIO)
    now = (1 - unreached) * now + unreached * stopped_cost
    rival = np.where(np.arange(len(mean)) == best, mean[second], mean[best])[runs]
    step = variance / sd
    surprise = np.abs(mean[runs] - rival) / step
    gain = step * (normal_pdf(surprise) - surprise * normal_cdf(-surprise))
    saved = -np.expm1(-gain) * _worth(study, settings)[runs]
    all_now, all_total = np.full(len(mean), np.inf), np.full(len(mean), np.inf)
    all_now[runs], all_total[runs] = now, (now + settings.horizon - saved) / (1 + settings.horizon)
    return Scores(now=all_now, total=all_total, best=best)


def cost_bound(study: Study, settings: LearningSettings) -> float | None:
    """Return the cost at which to stop a run; None: there is no bound yet."""
    return _bound(infer(study, settings), study, settings)


def in_flight(belief: Gaussian, noise_variance: float, study: Study) -> Gaussian:
    """Return the belief expected once the runs in flight have ended, so that concurrent runs differ."""
    for size in study.in_flight:
        if size in study.candidates:
            belief = belief.after_measuring(study.candidates.index(size), noise_variance)
    return belief


def _has_reached(study: Study) -> NDArray[np.bool_]:
    """Return which candidates have reached the target, the user's default included, shape (n,)."""
    reached = {seen.batch_size for seen in study.observations if seen.outcome == "reached"} | {study.default}
    return np.array([size in reached for size in study.candidates])


def _worth(study: Study, settings: LearningSettings) -> Values:
    """Return the number of recurrences that what a run teaches is worth, shape (n,).

    The horizon; beside a run at the same size those until that one has ended, since another can follow then.
    """
    n_until_then = min(float(len(study.in_flight) + 1), settings.horizon)
    return np.array([n_until_then if size in study.in_flight else settings.horizon for size in study.candidates])


def _first(study: Study, settings: LearningSettings) -> Choice:
    """Return the default, or the nearest size that can run; beside runs in flight, what has the best score.

    Nothing bounds the cost of a run yet, so none goes beyond half or twice the default.
    """
    if study.in_flight:
        size = _beside(study, settings)
        if size is not None and size != study.default:
            detail = "other runs of this job are under way and none has ended yet: this one tries another size"
            return Choice(batch_size=size, reason="knowledge_gradient", detail=detail)
    size = min(study.open_candidates, key=lambda size: (abs(math.log(size / study.default)), size))
    detail = f"no run of this job has ended yet; {size} is its default"
    if size != study.default:
        detail = f"the default, {study.default}, cannot run; {size} is the nearest to it"
    return Choice(batch_size=size, reason="default_first", detail=detail)


def _beside(study: Study, settings: LearningSettings) -> int | None:
    """Return the size near the default with the best score before any run has ended; None: none can run."""
    near = [size for size in study.open_candidates if 1 / FARTHEST_FIRST <= size / study.default <= FARTHEST_FIRST]
    if not near:
        return None
    belief = in_flight(prior(study), NOISE_LOG**2, study)
    total = score(belief, NOISE_LOG**2, study, settings).total
    return min(near, key=lambda size: float(total[study.candidates.index(size)]))


def _bound(posterior: CostPosterior | None, study: Study, settings: LearningSettings) -> float | None:
    """Return the cost at which to stop a run: β times that of the best.

    A job may become more expensive as a whole, and must not be stopped again and again for that: the bound is doubled
    for each stop of this recurrence, or raised as the last run that reached its target exceeded its posterior.
    """
    least = None if posterior is None else posterior.least_cost
    if posterior is None or least is None:
        return None
    factor = 2.0 ** min(study.n_stopped, MOST_DOUBLINGS)
    last = next((seen for seen in reversed(study.observations) if seen.outcome == "reached"), None)
    if last is not None and last.epochs > 0 and last.batch_size in study.candidates:
        surprise = math.log(last.epochs) - float(posterior.log_epochs.mean[study.candidates.index(last.batch_size)])
        factor = max(factor, math.exp(min(surprise, WORST_LOG)))
    return settings.beta * least * factor


def _near(study: Study, total: Values) -> Values:
    """Return the scores, infinite for sizes far from the default and from all that ran: nothing bounds a run yet."""
    here = np.array([study.default, *(seen.batch_size for seen in study.observations if seen.outcome != "failed")])
    ratios = np.array(study.candidates)[:, None] / here[None, :]
    near = ((ratios >= 1 / FARTHEST_FIRST) & (ratios <= FARTHEST_FIRST)).any(axis=1)
    return np.where(near, total, np.inf)


def _review_is_due(study: Study) -> bool:
    """Return whether the next run is the 8th, 16th, 32nd, …: it finds what drift or bad luck hides."""
    number = len(study.observations) + len(study.in_flight)
    return number >= FIRST_REVIEW and number & (number - 1) == 0


def _default_is_due(posterior: CostPosterior, study: Study) -> bool:
    """Return whether the job has changed since the default last ran: it starts again like a new job."""
    size = study.default
    unseen = bool(posterior.unseen_since[study.candidates.index(size)])
    return unseen and size in study.open_candidates and size not in study.in_flight


def _runner_up(belief: Gaussian, study: Study, best: int) -> int | None:
    """Return the candidate most likely to be the best, after the best; None if that is below 10 %."""
    optimistic = belief.mean - REVIEW_Z * np.sqrt(belief.variance)
    open_candidates = study.open_candidates
    others = [at for at, size in enumerate(study.candidates) if at != best and size in open_candidates]
    runner_up = min(others, key=lambda at: float(optimistic[at]))
    return runner_up if optimistic[runner_up] < belief.mean[best] else None


def _explain(study: Study, posterior: CostPosterior, scores: Scores, at: int, reason: str) -> str:
    size, best = study.candidates[at], study.candidates[scores.best]
    log_ratio = float(posterior.log_cost.mean[at] - posterior.log_cost.mean[scores.best])
    covariance = posterior.log_cost.covariance
    both = covariance[at, at] + covariance[scores.best, scores.best] - 2 * covariance[at, scores.best]
    sd = math.sqrt(max(float(both), 0.0))
    low, high = math.exp(log_ratio - INTERVAL_Z * sd), math.exp(log_ratio + INTERVAL_Z * sd)
    comparison = (
        f"{size} is expected to cost {math.exp(log_ratio):.2f} times as much as {best} (90 %: {low:.2f} to {high:.2f})"
    )
    match reason:
        case "best_so_far":
            return f"{size} is expected to be the cheapest, and exploring another size is not expected to pay off"
        case "review":
            return f"{comparison}: trying it again, in case its runs were unlucky"
        case "job_changed":
            return f"runs cost much more than before: the job has changed, and starts again with its default, {size}"
        case _:
            return f"{comparison}: what a run there would teach is worth more than it costs"


def _row(study: Study, posterior: CostPosterior | None, at: int, score: float | None) -> Belief:
    size = study.candidates[at]
    ends = Counter(seen.outcome for seen in study.observations if seen.batch_size == size)
    epochs = cost = _UNKNOWN
    epoch_cost = log_cost_sd = None
    if posterior is not None:
        epochs = _interval(float(posterior.log_epochs.mean[at]), math.sqrt(posterior.log_epochs.variance[at]))
        log_cost_sd = math.sqrt(posterior.log_cost.variance[at])
        if posterior.epoch_costs.known.any():  # else only ratios are known
            epoch_cost = math.exp(float(posterior.epoch_costs.log.mean[at]))
            cost = _interval(float(posterior.log_cost.mean[at]), log_cost_sd)
    return Belief(
        batch_size=size,
        n_reached=ends["reached"],
        n_stopped=ends["stopped"],
        is_pruned=size in study.pruned,
        epochs=epochs[0],
        epochs_lower=epochs[1],
        epochs_upper=epochs[2],
        epoch_cost=epoch_cost,
        epoch_cost_is_known=size in study.epoch_costs,
        cost=cost[0],
        cost_lower=cost[1],
        cost_upper=cost[2],
        log_cost_sd=log_cost_sd,
        score=score,
    )


def _interval(log_mean: float, log_sd: float) -> _Interval:
    """Return the median and the 90 % interval of a log-normal distribution, within the range of floats."""
    bounds = (log_mean, log_mean - INTERVAL_Z * log_sd, log_mean + INTERVAL_Z * log_sd)
    median, lower, upper = (math.exp(min(max(value, -600.0), 600.0)) for value in bounds)
    return median, lower, upper
