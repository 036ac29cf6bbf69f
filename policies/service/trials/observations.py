"""What a job's trials tell: the study that its next batch size is chosen from, and what its runs have cost.

The cost of a run is Zeus's (arXiv:2208.06102, eq. 1 over a whole run): η·E + (1 - η)·P_max·T, with E [J] the energy and
T [s] the time that it used, and P_max [W] its GPUs' greatest power. Only E, T and epochs are stored, never costs, so
that a change of η counts for what has been, too.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from policies.batch_size import LearningSettings, Observation, Study
from policies.service.config import LearningConfig
from policies.service.trials.hardware import (
    Hardware,
    is_bound_for_other_gpus,
    max_powers_w,
    measured_hardware,
    newest_hardware,
)
from policies.service.trials.lifecycle import is_in_flight, n_epochs, next_recurrence
from policies.service.trials.records import ENDED, Job, Trial
from policies.service.trials.timings import joined, sample_times, too_large

LEAST: Final = 1e-12
"""A cost or time that is not above it was measured by nobody: it is left out."""


def settings_of(job: Job, learning: LearningConfig) -> LearningSettings:
    """Return how a job's batch size is learned: as it says itself, else as the configuration says."""
    own = job.settings
    return LearningSettings(
        policy=own.policy or learning.policy,
        beta=learning.beta if own.beta is None else own.beta,
        horizon=learning.horizon,
        # 0 in the configuration means: not said.
        forgetting_ratio=own.forgetting_ratio or learning.forgetting_ratio or None,
    )


def eta_of(job: Job, learning: LearningConfig) -> float:
    """Return the weight of energy in a job's cost, 0 to 1; the rest is that of time."""
    return learning.eta if job.settings.eta is None else job.settings.eta


def study_of(
    job: Job,
    trials: Sequence[Trial],
    eta: float,
    now_s: float,
    *,
    hardware: Hardware | None = None,
    recurrence: int | None = None,
) -> Study:
    """Return what is known of a job.

    A trial that has ended is an observation, unless nobody knows how many epochs it trained; of a lost one no more is
    taken than how long its epochs took. A batch size that did not fit the memory when it was timed has failed, too. One
    that has failed on another GPU model than that of the newest end may fit there: it has not.

    Args:
        job: the job.
        trials: all of its trials.
        eta: the weight of energy, 0 to 1.
        now_s: Unix time, which decides whose lease has run out [s].
        hardware: the GPUs that costs are to be of; None: those of the newest measured end.
        recurrence: the one that is to run; None: the next one.
    """
    ends = sorted((trial for trial in trials if trial.state in ENDED), key=_order)
    fits, powers_w = hardware or newest_hardware(ends), max_powers_w(trials)
    own = hardware or measured_hardware(trials)
    costs = epoch_costs(trials, eta, own)
    seen = [
        _observation(trial, _cost(own, trial, run_cost(trial, eta, powers_w[trial.result.n_gpus]), costs))
        for trial in ends
        if trial.state != "failed" or fits.may_have_model_of(trial)
    ]
    # At the end: those have no place in the order, and take none from the age of the others.
    seen += [Observation(batch_size=size, outcome="failed") for size in too_large(trials)]
    return Study(
        candidates=job.batch_sizes,
        default=job.default_batch_size,
        observations=tuple(observation for observation in seen if observation is not None),
        epoch_costs=costs,
        epoch_times=epoch_times(trials, costs, hardware),
        in_flight=tuple(trial.batch_size for trial in trials if is_in_flight(trial, now_s)),
        n_stopped=_n_stopped(trials, next_recurrence(trials, now_s) if recurrence is None else recurrence),
    )


def _n_stopped(trials: Sequence[Trial], recurrence: int) -> int:
    """Return how often a recurrence has been stopped so far."""
    return sum(
        trial.recurrence == recurrence and trial.state == "stopped" and not _is_stopped_by_mistake(trial)
        for trial in trials
    )


def _is_stopped_by_mistake(trial: Trial) -> bool:
    """Return whether a run was told to stop by a bound that was not of its GPUs, which it said only later.

    That says nothing against its batch size.
    """
    return trial.state == "stopped" and trial.stop_ordered_at_s is not None and is_bound_for_other_gpus(trial)


def _cost(hardware: Hardware, trial: Trial, cost: float | None, costs: Mapping[int, float]) -> float | None:
    """Return what a run would have cost on some GPUs: if it was on others, as its epochs do there, or None."""
    if hardware.may_be_of(trial):
        return cost
    epoch_cost = costs.get(trial.batch_size)
    return epoch_cost * n_epochs(trial) if epoch_cost and n_epochs(trial) else None


def run_cost(trial: Trial, eta: float, known_power_w: float | None) -> float | None:
    """Return what a run has cost to its target, or to its end where it was not reached; None where nobody measured it.

    Energy and time are known for its `epochs`: what it trained on after the target is taken off in proportion, and what
    it trained before somebody measured is added so.

    Args:
        trial: the trial.
        eta: the weight of energy, 0 to 1.
        known_power_w: P_max where the trial does not say its own [W].
    """
    cost = cost_so_far(trial, eta, known_power_w)
    measured, counted = trial.result.epochs, n_epochs(trial)
    if cost is None or measured is None or counted == measured:
        return cost
    if not measured:
        return None
    return cost * counted / measured


def cost_so_far(trial: Trial, eta: float, known_power_w: float | None) -> float | None:
    """Return η·E + (1 - η)·P_max·T of all that a run has used; None where what has a weight was not measured."""
    result = trial.result
    power_w = result.max_power_w or known_power_w
    if (eta > 0 and result.energy_j is None) or (eta < 1 and (result.duration_s is None or power_w is None)):
        return None
    return eta * (result.energy_j or 0.0) + (1 - eta) * (power_w or 0.0) * (result.duration_s or 0.0)


def epoch_costs(trials: Sequence[Trial], eta: float, hardware: Hardware | None = None) -> Mapping[int, float]:
    """Return the cost of an epoch at each batch size that was measured, on such GPUs, else those of the newest end.

    It is the mean over the trials on as many GPUs of that model, weighted by their epochs: what a run used in the epoch
    that it did not finish weighs less in a long run.
    """
    powers_w = max_powers_w(trials)
    costs: dict[int, float] = defaultdict(float)
    epochs: dict[int, int] = defaultdict(int)
    hardware = hardware or measured_hardware(trials)
    for trial in trials:
        cost = cost_so_far(trial, eta, powers_w[trial.result.n_gpus])
        trained = n_epochs(trial) if trial.result.epochs is None else trial.result.epochs
        if trial.state in {"reached", "stopped"} and cost and trained and hardware.may_be_of(trial):
            costs[trial.batch_size] += cost
            epochs[trial.batch_size] += trained
    return _sound({batch_size: cost / epochs[batch_size] for batch_size, cost in costs.items()})


def epoch_times(
    trials: Sequence[Trial], costs: Mapping[int, float], hardware: Hardware | None = None
) -> Mapping[int, float]:
    """Return how long an epoch takes at each batch size, on the GPUs of the newest end, where that says more [s].

    It does where a batch size was timed before a training, which leaves out the unit (`timings.joined`); or by a run
    that still goes on, or was lost, but its cost is not known: such runs are half-way through an epoch on average.
    Otherwise there are none.

    Args:
        trials: all of the job.
        costs: the epoch costs that are known.
        hardware: the GPUs that it is to be of; None: those of the newest measured end.
    """
    timed = [trial for trial in trials if trial.result.duration_s and trial.result.epochs]
    sample_times_s = sample_times(trials, hardware)
    if not sample_times_s and all(trial.batch_size in costs for trial in timed):
        return {}
    times_s: dict[int, float] = defaultdict(float)
    epochs: dict[int, float] = defaultdict(float)
    hardware = hardware or measured_hardware(trials)
    for trial in filter(hardware.may_be_of, timed):
        times_s[trial.batch_size] += trial.result.duration_s or 0.0
        epochs[trial.batch_size] += (trial.result.epochs or 0) + (0.0 if trial.state == "reached" else 0.5)
    means_s = _sound({batch_size: time_s / epochs[batch_size] for batch_size, time_s in times_s.items()})
    return _sound(joined(_sound(sample_times_s), means_s))


def stop_reason(trial: Trial, cost: float | None, eta: float) -> str | None:
    """Return why a run is to stop, in a sentence; None: it may go on.

    It is to stop when it costs more than its bound and has not reached its target. A run that was told to stop once is
    told again for as long as it goes on. A bound of other GPUs than the run's own is no bound for it: the same epochs
    cost something else there.

    Args:
        trial: the trial.
        cost: what it has cost so far; None: nobody knows.
        eta: the weight of energy in that cost: a bound with another weight is in another unit, and binds nothing.
    """
    bound = trial.cost_bound
    if (
        bound is None
        or trial.state in ENDED
        or trial.result.reached_epochs is not None
        or is_bound_for_other_gpus(trial)
    ):
        return None
    if trial.stop_ordered_at_s is None and (cost is None or cost <= bound or trial.bound_eta != eta):
        return None
    spent = "more than" if cost is None else f"{cost:.4g} J so far, above"
    return f"batch size {trial.batch_size} costs {spent} the bound of {bound:.4g} J: another is tried in its place"


def _order(trial: Trial) -> tuple[float, int]:
    return trial.ended_at_s or 0.0, trial.number


def _sound(values: Mapping[int, float]) -> Mapping[int, float]:
    """Return the values that can be reckoned with, so that one that cannot does not spoil the others."""
    return {batch_size: value for batch_size, value in values.items() if LEAST < value < math.inf}


def _observation(trial: Trial, cost: float | None) -> Observation | None:
    epochs = float(n_epochs(trial))
    if cost is not None and cost <= LEAST:  # else the bound that it makes would stop every later run
        cost = None
    match trial.state:
        case "failed":
            return Observation(batch_size=trial.batch_size, outcome="failed", cost=cost)
        case "stopped" if _is_stopped_by_mistake(trial):
            return None
        case "reached" if trial.has_lost_count:
            return None
        case "reached" | "stopped" if epochs or _is_stopped_at_once(trial):
            return Observation(batch_size=trial.batch_size, outcome=trial.state, epochs=epochs, cost=cost)
        case _:
            return None


def _is_stopped_at_once(trial: Trial) -> bool:
    """Return whether a run was stopped within its first epoch, rather than that nobody knows how long it trained."""
    return trial.state == "stopped" and (trial.result.epochs == 0 or trial.stop_ordered_at_s is not None)
