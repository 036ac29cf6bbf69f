"""The posterior of the default policy as people read it: a row for each candidate."""

import math
from collections import Counter

from policies.batch_size.knowledge_gradient import INTERVAL_Z, in_flight, score
from policies.batch_size.posterior import Posterior, infer
from policies.batch_size.study import Belief, LearningSettings, Study

_Interval = tuple[float | None, float | None, float | None]
_UNKNOWN: _Interval = (None, None, None)


def describe(study: Study, settings: LearningSettings) -> list[Belief]:
    """Return what is believed of each candidate, in their order."""
    posterior = infer(study, settings)
    scores: list[float | None] = [None] * len(study.candidates)
    if posterior is not None and len(study.open_candidates) > 1:
        belief = in_flight(posterior.log_cost, posterior.noise_variance, study)
        least = math.exp(float(belief.mean.min()))
        total = score(belief, posterior.noise_variance, study, settings).total
        scores = [float(value) * least if math.isfinite(value) else None for value in total]
    return [_row(study, posterior, at, scores[at]) for at in range(len(study.candidates))]


def _row(study: Study, posterior: Posterior | None, at: int, score: float | None) -> Belief:
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
    """Return the median of a log-normal distribution and its 90 % interval; wide ones end where floats do."""
    bounds = (log_mean, log_mean - INTERVAL_Z * log_sd, log_mean + INTERVAL_Z * log_sd)
    median, lower, upper = (math.exp(min(max(value, -600.0), 600.0)) for value in bounds)
    return median, lower, upper
