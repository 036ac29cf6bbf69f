"""The Gaussian posterior of the logarithm of the cost of a run to the target, at each batch size.

    cost of a run = epochs to the target (random, the same on every GPU) x cost of an epoch (exact, of this GPU)

The logarithm of the epochs is a Gaussian process over log2 of the batch size, plus noise from run to run. It is proper
from the first observation on: its variance is never zero, never infinite. A stopped run counts as its trained epochs
and one restart at the best batch size, which is what it cost the job. Carbon, price, η or another GPU change only the
cost of an epoch; what was learned of epochs stays.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.batch_size.concept_drift import NOISE_LOG, NOISE_WEIGHT, first_run_after_change, observation_weights
from policies.batch_size.epoch_costs import EpochCosts, infer_epoch_costs
from policies.batch_size.gaussian_process import Gaussian, kernel, regress
from policies.batch_size.study import LearningSettings, Observation, Study
from policies.vocabulary.units import Values

SD_LOG: Final = 0.7
LENGTH_OCTAVES: Final = 5.0
NUGGET_LOG: Final = 0.1
UNREACHED_LOG: Final = 0.3
"""In addition, for a batch size that ran out of epochs and never reached the target: it may not converge."""
SLOPE_PER_OCTAVE: Final = 0.1
"""The rise of the prior mean of the logarithm with each doubling: larger batches need more epochs, as a rule."""
LEAST_EPOCHS: Final = 1e-6
"""The least epochs of a run, so that it has a logarithm."""
LEAST_WEIGHT: Final = 1e-9
"""Observations of less weight are forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SufficientStatistics:
    """The weighted observations of each candidate; shapes (n,).

    Attributes:
        weight: the sum of their weights.
        mean: the mean of the logarithm of the epochs.
        squares: the sum of squared deviations from it.
        unseen_since: which candidates have not run since the job changed; none if it has not.
    """

    weight: Values
    mean: Values
    squares: Values
    unseen_since: NDArray[np.bool_]

    @property
    def seen(self) -> NDArray[np.intp]:
        """Return the indices of the candidates with observations."""
        return np.flatnonzero(self.weight > LEAST_WEIGHT)

    @property
    def noise_variance(self) -> float:
        """Return the variance of the logarithm from run to run: the mean of its inverse-gamma posterior, pooled."""
        degrees = NOISE_WEIGHT + float(np.sum(np.maximum(self.weight - 1, 0.0)))
        return (NOISE_WEIGHT * NOISE_LOG**2 + float(np.sum(self.squares))) / degrees


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPosterior:
    """The posterior at each candidate, in their order.

    Attributes:
        log_epochs, log_cost: the logarithms of the mean epochs, and of the mean cost, of a run to the target.
        noise_variance: of both, from run to run.
        epoch_costs: the costs of an epoch.
        reached: which candidates have reached the target, shape (n,).
        unseen_since: which have not run since the job changed, shape (n,); none if it has not.
    """

    log_epochs: Gaussian
    log_cost: Gaussian
    noise_variance: float
    epoch_costs: EpochCosts
    reached: NDArray[np.bool_]
    unseen_since: NDArray[np.bool_]

    @property
    def least_cost(self) -> float | None:
        """Return the cost of a run at the best batch size that has reached the target; None if unknown.

        It comes from the posterior: the least cost ever observed would be a lucky run's.
        """
        usable = self.reached & self.epoch_costs.known
        return float(np.exp(self.log_cost.mean[usable].min())) if usable.any() else None


def prior(study: Study) -> Gaussian:
    """Return the prior of the logarithm of the cost, before any run has ended: only ratios have a meaning."""
    return _prior_epochs(study).plus(infer_epoch_costs(study).log)


def infer(study: Study, settings: LearningSettings) -> CostPosterior | None:
    """Return the posterior, or None before the first informative run has ended."""
    epoch_costs = infer_epoch_costs(study)
    statistics = _sufficient_statistics(study, settings, epoch_costs)
    if not len(statistics.seen):
        return None
    before = _prior_epochs(study)
    noise_variance = statistics.noise_variance
    log_epochs = regress(
        before.mean[None, :],
        before.covariance + np.diag(_out_of_epochs(study) * UNREACHED_LOG**2),
        statistics.seen,
        statistics.mean[statistics.seen],
        noise_variance / statistics.weight[statistics.seen],
    )
    reached = {seen.batch_size for seen in study.observations if seen.outcome == "reached"}
    return CostPosterior(
        log_epochs=log_epochs,
        log_cost=log_epochs.plus(epoch_costs.log),
        noise_variance=noise_variance,
        epoch_costs=epoch_costs,
        reached=np.array([size in reached for size in study.candidates]),
        unseen_since=statistics.unseen_since,
    )


def _prior_epochs(study: Study) -> Gaussian:
    octaves = np.log2(np.array(study.candidates, dtype=np.float64))
    return Gaussian(
        mean=SLOPE_PER_OCTAVE * octaves,
        covariance=kernel(octaves, sd_log=SD_LOG, length_octaves=LENGTH_OCTAVES, nugget_log=NUGGET_LOG),
    )


def _out_of_epochs(study: Study) -> NDArray[np.bool_]:
    """Return which candidates never reached the target, though a run of theirs had no bound, shape (n,).

    There is no bound before the first run that reaches the target. Such a run says nothing smooth of its neighbours:
    half the batch size may well converge.
    """
    outcomes = [seen.outcome for seen in study.observations]
    n_unbounded = outcomes.index("reached") if "reached" in outcomes else len(outcomes)
    reached = {seen.batch_size for seen in study.observations if seen.outcome == "reached"}
    tried = {seen.batch_size for seen in study.observations[:n_unbounded] if seen.outcome == "stopped"}
    return np.array([size in tried - reached for size in study.candidates])


def _sufficient_statistics(study: Study, settings: LearningSettings, epoch_costs: EpochCosts) -> SufficientStatistics:
    """Return the weighted observations: first of runs that reached the target, which the others are valued by."""
    at = {size: index for index, size in enumerate(study.candidates)}
    usable = [seen for seen in study.observations if seen.outcome != "failed" and seen.batch_size in at]
    index = np.array([at[seen.batch_size] for seen in usable], dtype=np.intp)
    reached = np.array([seen.outcome == "reached" and seen.epochs > 0 for seen in usable], dtype=bool)
    log_epochs = np.array([math.log(seen.epochs) if ok else 0.0 for seen, ok in zip(usable, reached, strict=True)])
    log_trained = np.array([math.log(max(seen.epochs, LEAST_EPOCHS)) for seen in usable])
    n_before = first_run_after_change(index, log_trained, reached) if settings.forgetting_ratio is None else 0
    weights = np.ones(len(usable))
    for _ in range(2 if len(usable) > reached.sum() else 1):  # weights determine the cost of a restart, and vice versa
        best = _log_least_cost(_summed(len(at), index, log_epochs, weights * reached), epoch_costs)
        for number in np.flatnonzero(~reached):
            log_cost = float(epoch_costs.log.mean[index[number]])
            log_epochs[number] = _log_epochs_of_stopped(usable[number], best - log_cost, log_cost, settings.beta)
        weights = observation_weights(index, log_epochs, settings.forgetting_ratio, n_before=n_before)
    statistics = _summed(len(at), index, log_epochs, weights)
    unseen = ~np.isin(np.arange(len(at)), index[n_before:]) if n_before else statistics.unseen_since
    return replace(statistics, unseen_since=unseen)


def _summed(n: int, index: NDArray[np.intp], log_epochs: Values, weights: Values) -> SufficientStatistics:
    weight: Values = np.bincount(index, weights, minlength=n).astype(np.float64)
    total = np.bincount(index, weights * log_epochs, minlength=n)
    mean = total / np.where(weight > 0, weight, 1.0)
    squares: Values = np.bincount(index, weights * (log_epochs - mean[index]) ** 2, minlength=n).astype(np.float64)
    return SufficientStatistics(weight=weight, mean=mean, squares=squares, unseen_since=np.zeros(n, dtype=bool))


def _log_least_cost(statistics: SufficientStatistics, epoch_costs: EpochCosts) -> float:
    """Return the logarithm of the least cost among candidates that reached the target; nan if none did."""
    seen = statistics.seen
    return float((statistics.mean[seen] + epoch_costs.log.mean[seen]).min()) if len(seen) else math.nan


def _log_epochs_of_stopped(seen: Observation, log_restart: float, log_epoch_cost: float, beta: float) -> float:
    """Return the logarithm of the epochs that a stopped run counts as: those it trained, and one restart.

    Args:
        seen: the run. Stopped within its first epoch it counts as its cost, or unmeasured as its bound.
        log_restart: the logarithm of a restart at the best batch size, in epochs of this one; nan if there is none.
        log_epoch_cost: the logarithm of the cost of an epoch here.
        beta: the bound, in units of the best.
    """
    epochs = seen.epochs
    if epochs <= 0:
        bound = beta * math.exp(min(log_restart, 50.0)) if not math.isnan(log_restart) else 1.0
        epochs = min(1.0, seen.cost / math.exp(log_epoch_cost) if seen.cost else bound)
    epochs = max(epochs, LEAST_EPOCHS)
    restart = epochs if math.isnan(log_restart) else math.exp(min(log_restart, 50.0))
    return math.log(epochs + restart)
