"""A job's trials as observations: the study from which its next batch size is chosen, and the costs of its runs.

The cost of a run is that of Zeus (arXiv:2208.06102, eq. 1 over a whole run): η·E + (1 - η)·P_max·T, with E [J] the
energy and T [s] the time it used, and P_max [W] the maximum power of its GPUs. Only E, T and epochs are stored, never
costs, so that a change of η applies to past runs, too.

An iteration of t seconds at batch size b takes t/b per sample; an epoch takes that many times its samples, a number
that is not reported. So the times that runs measure before they train and those of whole epochs are in different units,
unless one batch size has both.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from policies.batch_size import Observation, Study
from policies.service.records import ENDED, Job, Timing, Trial
from policies.service.trials.hardware import (
    UNKNOWN_HARDWARE,
    Hardware,
    is_bound_for_other_gpus,
    max_powers_w,
    measured_hardware,
    newest_hardware,
)
from policies.service.trials.lifecycle import is_in_flight, n_epochs, next_recurrence

MIN_MEASURED: Final = 1e-12
"""Costs and times at or below this were not measured, and are left out."""


def study_of(
    job: Job,
    trials: Sequence[Trial],
    eta: float,
    now_s: float,
    *,
    hardware: Hardware | None = None,
    recurrence: int | None = None,
) -> Study:
    """Return what is known of a job, for the choice of a batch size.

    A trial that has ended is an observation, unless the number of its epochs is unknown; a lost one contributes
    only the time of its epochs. A batch size that did not fit the memory when it was timed has failed. A failure on
    another GPU model than that of the newest end does not count, since the size may fit there.

    Args:
        job: the job.
        trials: all of its trials.
        eta: the weight of energy, 0 to 1.
        now_s: Unix time, which decides whose lease has run out [s].
        hardware: the GPUs the costs are for; None: those of the newest measured end.
        recurrence: the one to run; None: the next one.
    """
    ends = sorted((trial for trial in trials if trial.state in ENDED), key=_order)
    fits, powers_w = hardware or newest_hardware(ends), max_powers_w(trials)
    own = hardware or measured_hardware(trials)
    costs = epoch_costs(trials, eta, own)
    seen = [
        _observation(trial, _cost(own, trial, run_cost(trial, eta, powers_w[trial.result.n_gpus]), costs))
        for trial in ends
        if trial.state != "failed" or fits.matches_model(trial)
    ]
    # Last: they have no place in the order of time, and do not age the others.
    seen += [Observation(batch_size=size, outcome="failed") for size in sizes_too_large(trials)]
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
    """Return whether a run was stopped by a bound for other GPUs, because it reported its own only later.

    That says nothing against its batch size.
    """
    return trial.state == "stopped" and trial.stop_ordered_at_s is not None and is_bound_for_other_gpus(trial)


def _cost(hardware: Hardware, trial: Trial, cost: float | None, costs: Mapping[int, float]) -> float | None:
    """Return the cost of a run on some GPUs: its own cost, or that of as many epochs there; None: not known."""
    if hardware.matches(trial):
        return cost
    epoch_cost = costs.get(trial.batch_size)
    return epoch_cost * n_epochs(trial) if epoch_cost and n_epochs(trial) else None


def run_cost(trial: Trial, eta: float, known_power_w: float | None) -> float | None:
    """Return the cost of a run up to its target, or to its end where it was not reached; None: not measured.

    Energy and time are known for its `epochs`. Epochs after the target are subtracted in proportion, and epochs before
    the measurement began are added in proportion.

    Args:
        trial: the trial.
        eta: the weight of energy, 0 to 1.
        known_power_w: P_max where the trial does not report its own [W].
    """
    cost = cost_so_far(trial, eta, known_power_w)
    measured, counted = trial.result.epochs, n_epochs(trial)
    if cost is None or measured is None or counted == measured:
        return cost
    if not measured:
        return None
    return cost * counted / measured


def cost_so_far(trial: Trial, eta: float, known_power_w: float | None) -> float | None:
    """Return η·E + (1 - η)·P_max·T of a run so far [J]; None where a term with a weight was not measured."""
    result = trial.result
    power_w = result.max_power_w or known_power_w
    if (eta > 0 and result.energy_j is None) or (eta < 1 and (result.duration_s is None or power_w is None)):
        return None
    return eta * (result.energy_j or 0.0) + (1 - eta) * (power_w or 0.0) * (result.duration_s or 0.0)


def epoch_costs(trials: Sequence[Trial], eta: float, hardware: Hardware | None = None) -> Mapping[int, float]:
    """Return the mean cost of an epoch at each measured batch size, weighted by the epochs of the trials.

    An epoch that was not finished thus weighs less in a long run. Only trials on the given GPUs count; None: those of
    the newest end.
    """
    powers_w = max_powers_w(trials)
    costs: dict[int, float] = defaultdict(float)
    epochs: dict[int, int] = defaultdict(int)
    hardware = hardware or measured_hardware(trials)
    for trial in trials:
        cost = cost_so_far(trial, eta, powers_w[trial.result.n_gpus])
        trained = n_epochs(trial) if trial.result.epochs is None else trial.result.epochs
        if trial.state in {"reached", "stopped"} and cost and trained and hardware.matches(trial):
            costs[trial.batch_size] += cost
            epochs[trial.batch_size] += trained
    return _positive({batch_size: cost / epochs[batch_size] for batch_size, cost in costs.items()})


def epoch_times(
    trials: Sequence[Trial], costs: Mapping[int, float], hardware: Hardware | None = None
) -> Mapping[int, float]:
    """Return the time of an epoch at each batch size where that says more than the costs, else nothing [s].

    That is the case where a batch size was timed before a training (in another unit, `combine_times`), or where
    a run that goes on, or was lost, has a batch size of unknown cost: on average it is half-way through an epoch.

    Args:
        trials: all of the job.
        costs: the epoch costs that are known.
        hardware: the GPUs the times are for; None: those of the newest measured end.
    """
    timed = [trial for trial in trials if trial.result.duration_s and trial.result.epochs]
    sample_times_s = sample_times(trials, hardware)
    if not sample_times_s and all(trial.batch_size in costs for trial in timed):
        return {}
    times_s: dict[int, float] = defaultdict(float)
    epochs: dict[int, float] = defaultdict(float)
    hardware = hardware or measured_hardware(trials)
    for trial in filter(hardware.matches, timed):
        times_s[trial.batch_size] += trial.result.duration_s or 0.0
        epochs[trial.batch_size] += (trial.result.epochs or 0) + (0.0 if trial.state == "reached" else 0.5)
    means_s = _positive({batch_size: time_s / epochs[batch_size] for batch_size, time_s in times_s.items()})
    return _positive(combine_times(_positive(sample_times_s), means_s))


def sample_times(trials: Sequence[Trial], hardware: Hardware | None = None) -> Mapping[int, float]:
    """Return the time of a sample at each timed batch size, the newest of several [s].

    Args:
        trials: all of the job.
        hardware: the GPUs the times are for; None: those of the newest end.
    """
    times = (one for timing in _timings(trials, hardware) for one in timing.times)
    return {one.batch_size: one.iteration_time_s / one.batch_size for one in times}


def sizes_too_large(trials: Sequence[Trial]) -> Sequence[int]:
    """Return the batch sizes that did not fit the memory when they were timed, ascending.

    A size that has run, and every smaller one, fits: then the probe was mistaken.
    """
    found = {timing.too_large for timing in _timings(trials)} - {None}
    if not found:
        return []
    ran = {trial.batch_size for trial in trials if trial.state in {"reached", "stopped"}}
    return sorted(size for size in found if size is not None and size > max(ran, default=0))


def combine_times(sample_times_s: Mapping[int, float], epoch_times_s: Mapping[int, float]) -> Mapping[int, float]:
    """Return the relative time of an epoch at each batch size, in one unit of no meaning.

    Timed iterations take precedence over epochs, which contain pauses and may be incomplete. Epochs are added where at
    least one batch size has both, which gives the ratio of the units.
    """
    if not sample_times_s:
        return epoch_times_s
    ratios = [epoch_times_s[size] / time_s for size, time_s in sample_times_s.items() if size in epoch_times_s]
    if not ratios:
        return sample_times_s
    samples = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return {**epoch_times_s, **{size: samples * time_s for size, time_s in sample_times_s.items()}}


def batch_sizes_to_time(study: Study, trials: Sequence[Trial]) -> tuple[int, ...]:
    """Return the batch sizes that the next run should time: those that can run and whose speed is not known.

    Where no batch size has both a time and an epoch cost, the one with a cost nearest to the default is added, because
    the two could not be compared otherwise.
    """
    if len(study.open_candidates) < 2:  # noqa: PLR2004 — there is nothing to choose from
        return ()
    timed, costs = {*sample_times(trials)}, {*study.epoch_costs}
    wanted = {size for size in study.open_candidates if size not in timed | costs}
    comparable = costs & {*study.open_candidates}
    if comparable and (wanted or timed) and not costs & timed:
        wanted.add(min(comparable, key=lambda size: (abs(math.log(size / study.default)), size)))
    return tuple(sorted(wanted))


def _timings(trials: Sequence[Trial], hardware: Hardware | None = None) -> list[Timing]:
    """Return the timings of some GPUs (None: of the newest end's), and those whose GPUs are not reported."""
    timed = [trial for trial in trials if trial.timing is not None]
    hardware = hardware or (newest_hardware(trials) if timed else UNKNOWN_HARDWARE)
    return [trial.timing for trial in timed if trial.timing is not None and hardware.matches(trial)]


def stop_reason(trial: Trial, cost: float | None, eta: float, *, has_ended_epoch: bool = False) -> str | None:
    """Return why a run is to stop, in a sentence; None: it may go on.

    It is to stop before the epoch that would exceed its bound, as far as its epochs so far tell; within an epoch, as
    soon as it has exceeded it; unless it has reached its target. The order is repeated for as long as the run goes on.
    A bound for other GPUs does not apply, because the same epochs cost something else there.

    Args:
        trial: the trial.
        cost: what it has cost so far; None: unknown.
        eta: the weight of energy in that cost; a bound with another weight does not apply.
        has_ended_epoch: whether the cost is that of whole epochs: the last one has just ended.
    """
    bound = trial.cost_bound
    if (
        bound is None
        or trial.state in ENDED
        or trial.result.reached_epochs is not None
        or is_bound_for_other_gpus(trial)
    ):
        return None
    n_ended = (trial.result.epochs or 0) if has_ended_epoch else 0
    next_cost = cost * (1 + 1 / n_ended) if cost is not None and n_ended else cost
    if trial.stop_ordered_at_s is None and (next_cost is None or next_cost <= bound or trial.bound_eta != eta):
        return None
    spent = "more than"
    if cost is not None and next_cost is not None:
        spent = f"{cost:.4g} J so far, above" if cost > bound else f"{next_cost:.4g} J with its next epoch, above"
    return f"batch size {trial.batch_size} costs {spent} the bound of {bound:.4g} J: another is tried in its place"


def _order(trial: Trial) -> tuple[float, int]:
    return trial.ended_at_s or 0.0, trial.number


def _positive(values: Mapping[int, float]) -> Mapping[int, float]:
    return {batch_size: value for batch_size, value in values.items() if MIN_MEASURED < value < math.inf}


def _observation(trial: Trial, cost: float | None) -> Observation | None:
    epochs = float(n_epochs(trial))
    if cost is not None and cost <= MIN_MEASURED:  # or its bound would stop every later run
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
    """Return whether a run was stopped within its first epoch, as opposed to after an unknown number of epochs."""
    return trial.state == "stopped" and (trial.result.epochs == 0 or trial.stop_ordered_at_s is not None)
