"""The default policy: the batch size whose run, with what it teaches, makes the coming recurrences cheapest.

For each candidate two things are weighed, in units of the cost of the best: what a run there costs now, if it is
stopped at β times the best and restarted; and what the recurrences after it are expected to cost, given what it would
teach (the knowledge gradient: Frazier, Powell and Dayanik, SIAM J. Control Optim. 47 (2008); for correlated normal
beliefs, INFORMS J. Comput. 21 (2009)). The first run takes the user's default. A batch size that was unlucky when it
was tried is not lost for ever: at growing intervals the runner-up is tried again, as long as it may well be the best.
"""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np

from policies.batch_size.concept_drift import NOISE_LOG
from policies.batch_size.gaussian_process import Gaussian, normal_cdf, normal_pdf
from policies.batch_size.posterior import Posterior, infer, prior
from policies.batch_size.study import Choice, Floats, LearningSettings, Study

FIRST_REVIEW: Final = 8
"""The number of the first run that may be a review; then each doubling of it."""
INTERVAL_Z: Final = 1.645
"""Half the width of a 90 % interval, in standard deviations."""
FARTHEST_FIRST: Final = 2.0
"""How far from the default, and from what ran, a run goes that nothing bounds, as a factor."""
MOST_DOUBLINGS: Final = 20
"""Of the bound."""
WORST_LOG: Final = 50.0
"""The logarithm of a ratio of costs beyond which nothing matters any more, and floats would overflow."""
REVIEW_Z: Final = 1.28
"""A candidate is reviewed whose cost is below the best's with a probability of at least 10 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What the candidates are compared by, shapes (n,): the cost of a run now, and the sum with those to come.

    Both are in units of the least cost; `total` is the mean over the run and the recurrences that a finding is worth.
    """

    now: Floats
    total: Floats
    best: int


def choose(study: Study, settings: LearningSettings) -> Choice:
    """Return the batch size of the next run, and why."""
    posterior = infer(study, settings)
    bound = _bound(posterior, study, settings)
    open_candidates = study.open_candidates
    if len(study.pruned) == len(study.candidates):
        detail = f"every batch size has failed: {study.default}, the default, is tried again"
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


def score(belief: Gaussian, noise_variance: float, study: Study, settings: LearningSettings) -> Scores:
    """Return what the candidates are compared by; those that cannot run have an infinite score.

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
    until_bound = (math.log(settings.beta) - gap) / sd
    now = np.exp(gap + sd**2 / 2) * normal_cdf(until_bound - sd) + (1 + settings.beta) * normal_cdf(-until_bound)
    rival = np.where(np.arange(len(mean)) == best, mean[second], mean[best])[runs]
    step = variance / sd
    surprise = np.abs(mean[runs] - rival) / step
    gain = step * (normal_pdf(surprise) - surprise * normal_cdf(-surprise))
    later = np.exp(np.minimum(mean[runs], rival) - mean[best] - gain)
    all_now, all_total = np.full(len(mean), np.inf), np.full(len(mean), np.inf)
    all_now[runs], all_total[runs] = now, (now + settings.horizon * later) / (1 + settings.horizon)
    return Scores(now=all_now, total=all_total, best=best)


def in_flight(belief: Gaussian, noise_variance: float, study: Study) -> Gaussian:
    """Return what will be left to learn once the runs in flight have ended: concurrent runs are of different use."""
    for size in study.in_flight:
        if size in study.candidates:
            belief = belief.seen_once(study.candidates.index(size), noise_variance)
    return belief


def _first(study: Study, settings: LearningSettings) -> Choice:
    """Return the user's own choice, or the nearest to it that can run; beside one in flight, what teaches more.

    Nothing bounds the cost of a run yet, so none goes farther than to half or twice the default; and once each of those
    is in flight, the runs are spread over them: nobody knows yet which is any good.
    """
    if study.in_flight:
        size = _beside(study, settings)
        if size is not None and size != study.default:
            detail = "other runs of this job are on their way, and none has ended yet: this one looks beside them"
            return Choice(batch_size=size, reason="knowledge_gradient", detail=detail)
    size = min(study.open_candidates, key=lambda size: (abs(math.log(size / study.default)), size))
    detail = f"no run of this job has ended yet: {size} is its default"
    if size != study.default:
        detail = f"{study.default}, the default, cannot run: {size} is the nearest to it"
    return Choice(batch_size=size, reason="default_first", detail=detail)


def _beside(study: Study, settings: LearningSettings) -> int | None:
    """Return the size near the default that teaches most; those that all run already, in turn; None: none can run."""
    near = [size for size in study.open_candidates if 1 / FARTHEST_FIRST <= size / study.default <= FARTHEST_FIRST]
    if not near:
        return None
    used = Counter(study.in_flight)
    if all(used[size] for size in near):
        return min(near, key=lambda size: (used[size], abs(math.log(size / study.default)), size))
    belief = in_flight(prior(study), NOISE_LOG**2, study)
    total = score(belief, NOISE_LOG**2, study, settings).total
    return min(near, key=lambda size: float(total[study.candidates.index(size)]))


def _bound(posterior: Posterior | None, study: Study, settings: LearningSettings) -> float | None:
    """Return where to stop: at β times what the best is believed to cost.

    A job may become dearer as a whole, and must not be stopped again and again for that: the bound is twice as high for
    each time that this recurrence was stopped already, or as many times as high as the last run that reached its target
    was dearer than is believed of its batch size.
    """
    least = None if posterior is None else posterior.least_cost
    if posterior is None or least is None:
        return None
    dearer = 2.0 ** min(study.n_stopped, MOST_DOUBLINGS)
    last = next((seen for seen in reversed(study.observations) if seen.outcome == "reached"), None)
    if last is not None and last.epochs > 0 and last.batch_size in study.candidates:
        surprise = math.log(last.epochs) - float(posterior.log_epochs.mean[study.candidates.index(last.batch_size)])
        dearer = max(dearer, math.exp(min(surprise, WORST_LOG)))
    return settings.beta * least * dearer


def _near(study: Study, total: Floats) -> Floats:
    """Return the scores, infinite for what is far from the default and from all that ran: nothing bounds a run yet."""
    here = np.array([study.default, *(seen.batch_size for seen in study.observations if seen.outcome != "failed")])
    ratios = np.array(study.candidates)[:, None] / here[None, :]
    near = ((ratios >= 1 / FARTHEST_FIRST) & (ratios <= FARTHEST_FIRST)).any(axis=1)
    return np.where(near, total, np.inf)


def _review_is_due(study: Study) -> bool:
    """Return whether the next run is the 8th, 16th, 32nd, …: so that what a drift or bad luck hides is found."""
    number = len(study.observations) + len(study.in_flight)
    return number >= FIRST_REVIEW and number & (number - 1) == 0


def _default_is_due(posterior: Posterior, study: Study) -> bool:
    """Return whether the job has changed since the default last ran: then it begins with it anew, as a new job does."""
    size = study.default
    unseen = bool(posterior.unseen_since[study.candidates.index(size)])
    return unseen and size in study.open_candidates and size not in study.in_flight


def _runner_up(belief: Gaussian, study: Study, best: int) -> int | None:
    """Return the candidate that may be the best with the highest probability; None: none with 10 % or more."""
    optimistic = belief.mean - REVIEW_Z * np.sqrt(belief.variance)
    open_candidates = study.open_candidates
    others = [at for at, size in enumerate(study.candidates) if at != best and size in open_candidates]
    runner_up = min(others, key=lambda at: float(optimistic[at]))
    return runner_up if optimistic[runner_up] < belief.mean[best] else None


def _explain(study: Study, posterior: Posterior, scores: Scores, at: int, reason: str) -> str:
    """Return the choice in a sentence."""
    size, best = study.candidates[at], study.candidates[scores.best]
    log_ratio = float(posterior.log_cost.mean[at] - posterior.log_cost.mean[scores.best])
    covariance = posterior.log_cost.covariance
    both = covariance[at, at] + covariance[scores.best, scores.best] - 2 * covariance[at, scores.best]
    sd = math.sqrt(max(float(both), 0.0))
    low, high = math.exp(log_ratio - INTERVAL_Z * sd), math.exp(log_ratio + INTERVAL_Z * sd)
    believed = (
        f"{size} is believed to cost {math.exp(log_ratio):.2f} times as much as {best} (90 %: {low:.2f} to {high:.2f})"
    )
    match reason:
        case "best_so_far":
            return f"{size} is believed to be the cheapest, and nothing else promises to teach more than it costs"
        case "review":
            return f"{believed}: it is looked at once more, in case it was unlucky"
        case "job_changed":
            return (
                f"runs cost much more than they used to: the job has changed, and begins anew with {size}, its default"
            )
        case _:
            return f"{believed}: what a run there would teach is worth it"
