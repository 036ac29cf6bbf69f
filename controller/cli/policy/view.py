"""The view of a job in `gridchase policy show`: texts and units of its table, plot and HTML page."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from policies.batch_size.study import Belief, best_reached
from policies.service.records import ENDED, IN_FLIGHT, Job, Posterior, Trial
from policies.service.trials.hardware import max_powers_w
from policies.service.trials.observations import run_cost
from policies.vocabulary.units import HOUR_S, JOULES_PER_KWH

_SCALES: Final = ((1e3 * JOULES_PER_KWH, "MWh"), (JOULES_PER_KWH, "kWh"), (JOULES_PER_KWH / 1e3, "Wh"), (1.0, "J"))
NO_COST: Final = "no cost is known: no GPU was measured for these runs (set gpus=, or CUDA_VISIBLE_DEVICES)"
_SHORTEST_HOURS_S: Final = 2 * HOUR_S
_SHORTEST_MINUTES_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A unit of energy for a column of costs; `size_j` is its value [J]."""

    size_j: float
    unit: str

    def text(self, cost: float | None) -> str:
        """Return a cost in this unit, with three digits."""
        return "-" if cost is None else f"{cost / self.size_j:.3g}" if cost < 1e3 * self.size_j else self._long(cost)

    def range_text(self, cost: float | None, lower: float | None, upper: float | None) -> str:
        """Return a cost with its interval, as in `1.2 (1.1-1.3)`."""
        if cost is None or lower is None or upper is None:
            return self.text(cost)
        return f"{self.text(cost)} ({self.text(lower)}-{self.text(upper)})"

    def _long(self, cost: float) -> str:
        return f"{cost / self.size_j:,.0f}" if cost < 1e6 * self.size_j else f"{cost / self.size_j:.0e}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job with its posterior and last runs.

    Attributes:
        job, posterior: the records of the service.
        trials: the last runs, newest first.
        costs: the cost of each measured run, by run.
    """

    job: Job
    posterior: Posterior
    trials: tuple[Trial, ...]
    costs: dict[str, float]

    @property
    def scale(self) -> Scale:
        """Return the unit for every cost and energy of this job."""
        believed = [belief.cost for belief in self.posterior.beliefs if belief.cost is not None]
        return scale_of([*believed, *self.costs.values()])

    @property
    def best(self) -> Belief | None:
        """Return the batch size of least expected cost among those that have reached the target and can run."""
        return best_reached(self.posterior.beliefs)

    @property
    def n_ended(self) -> int:
        """Return how many of these runs have ended; a timing is no run."""
        return sum(trial.state in ENDED for trial in self.trials)

    @property
    def n_in_flight(self) -> int:
        """Return how many of these runs are in flight."""
        return sum(trial.state in IN_FLIGHT for trial in self.trials)


def view_of(job: Job, posterior: Posterior, trials: Sequence[Trial]) -> JobView:
    """Return the view of a job; `trials` are newest first."""
    powers_w = max_powers_w(trials)
    ends = [trial for trial in trials if trial.state in ENDED]
    costs = {trial.run: run_cost(trial, posterior.eta, powers_w[trial.result.n_gpus]) for trial in ends}
    return JobView(
        job=job,
        posterior=posterior,
        trials=tuple(trials),
        costs={run: cost for run, cost in costs.items() if cost},
    )


def scale_of(costs: Iterable[float]) -> Scale:
    """Return the unit in which the median of some costs has one to three digits before the point."""
    ordered = sorted(costs)
    middle = ordered[len(ordered) // 2] if ordered else JOULES_PER_KWH
    for size_j, unit in _SCALES:
        if middle >= size_j:
            return Scale(size_j=size_j, unit=unit)
    return Scale(size_j=1.0, unit="J")


def epochs_text(belief: Belief) -> str:
    """Return the epochs to the target with their interval."""
    if belief.epochs is None:
        return "-"
    low, high = belief.epochs_lower, belief.epochs_upper
    interval = "" if low is None or high is None else f" ({low:.3g}-{high:.3g})"
    return f"{belief.epochs:.3g}{interval}"


def marks_of(view: JobView, belief: Belief) -> str:
    """Return the remarks on a batch size."""
    size, best = belief.batch_size, view.best
    marks = {
        "next": size == view.posterior.next.batch_size,
        "cannot run": belief.is_pruned,
        "best": best is not None and size == best.batch_size,
        "default": size == view.job.default_batch_size,
    }
    return ", ".join(mark for mark, applies in marks.items() if applies)


def next_text(view: JobView) -> str:
    """Return the text of which batch size is next, and why."""
    choice = view.posterior.next
    bound = f" It would be stopped at {view.scale.text(choice.cost_bound)} {view.scale.unit}."
    sentence = choice.detail.rstrip(".")
    return f"{choice.batch_size} ({choice.reason}): {sentence}." + ("" if choice.cost_bound is None else bound)


def cost_text(eta: float) -> str:
    """Return the definition of a cost, for the note below a table."""
    return f"cost = η·energy + (1-η)·highest power·time, η = {eta:g}; intervals hold 90 %"


def spent_of(trial: Trial) -> tuple[float | None, float | None]:
    """Return the energy [J] and the time [s] to the target, like the cost: of the epochs of `epochs_of`.

    None: not measured. A controller without a GPU reports zero.
    """
    result, epochs = trial.result, epochs_of(trial)
    share_ratio = epochs / result.epochs if epochs and result.epochs else 1.0
    energy_j = share_ratio * result.energy_j if result.energy_j else None
    return energy_j, share_ratio * result.duration_s if result.duration_s else None


def cost_is_missing(view: JobView) -> bool:
    """Return whether runs have ended but none of them has a cost."""
    return view.n_ended > 0 and not view.costs


def ends_text(view: JobView) -> str:
    """Return the text of how many runs have ended."""
    n_ended = view.n_ended
    if view.trials and view.trials[-1].number > 0:
        return f"{n_ended} of the last {len(view.trials)} runs have ended"
    return "1 run has ended" if n_ended == 1 else f"{n_ended} runs have ended"


def time_text(time_s: float | None) -> str:
    """Return the text of a time, UTC."""
    return "-" if time_s is None else f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%d %H:%M}"


def duration_text(duration_s: float | None) -> str:
    """Return the text of a duration."""
    if duration_s is None:
        return "-"
    if duration_s >= _SHORTEST_HOURS_S:
        return f"{duration_s / HOUR_S:.3g} h"
    return f"{duration_s / 60:.3g} min" if duration_s >= _SHORTEST_MINUTES_S else f"{duration_s:.3g} s"


def end_text(trial: Trial) -> str:
    """Return the text of how a run ended, or of its state."""
    if trial.state == "running" and trial.stop_ordered_at_s is not None:
        return "ordered to stop"
    return trial.state


def epochs_of(trial: Trial) -> int | None:
    """Return the epochs to the target, or all epochs if that was not reached."""
    return trial.result.reached_epochs or trial.result.epochs


class EstimateTexts(NamedTuple):
    """The posterior of a batch size as texts."""

    epochs: str
    epoch_cost: str
    run_cost: str
    marks: str


class RunTexts(NamedTuple):
    """A run as texts."""

    recurrence: str
    asked: str
    batch_size: str
    end: str
    epochs: str
    energy: str
    duration: str
    cost: str


def estimate_texts(view: JobView, belief: Belief) -> EstimateTexts:
    """Return the posterior of a batch size as texts; an epoch cost that is not measured has a ~."""
    inferred = "" if belief.epoch_cost_is_known or belief.epoch_cost is None else "~"
    return EstimateTexts(
        epochs=epochs_text(belief),
        epoch_cost=inferred + view.scale.text(belief.epoch_cost),
        run_cost=view.scale.range_text(belief.cost, belief.cost_lower, belief.cost_upper),
        marks=marks_of(view, belief),
    )


def run_texts(view: JobView, trial: Trial) -> RunTexts:
    """Return a run as texts; epochs, energy, time and cost are to the target."""
    epochs, (energy_j, duration_s) = epochs_of(trial), spent_of(trial)
    return RunTexts(
        recurrence=str(trial.recurrence),
        asked=time_text(trial.requested_at_s),
        batch_size=str(trial.batch_size),
        end=end_text(trial),
        epochs="-" if epochs is None else str(epochs),
        energy=view.scale.text(energy_j),
        duration=duration_text(duration_s),
        cost=view.scale.text(view.costs.get(trial.run)),
    )


def as_dict(view: JobView) -> dict[str, Any]:
    """Return the view for scripts."""
    rows: Sequence[Any] = [
        msgspec.to_builtins(trial) | {"cost": view.costs.get(trial.run)} for trial in reversed(view.trials)
    ]
    return {
        "job": msgspec.to_builtins(view.job),
        "posterior": msgspec.to_builtins(view.posterior),
        "best_batch_size": view.best.batch_size if view.best else None,
        "trials": rows,
    }
