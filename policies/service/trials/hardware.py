"""The GPUs that runs report: costs and times measured on other GPUs say nothing about the next run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from policies.service.records import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The GPUs of a run; None: not reported."""

    gpu_model: str | None = None
    n_gpus: int | None = None

    def matches(self, trial: Trial) -> bool:
        """Return whether a trial was on these GPUs, or does not report that it was on others."""
        n_gpus = trial.result.n_gpus or None
        return self._has_model(trial.result.gpu_model) and (None in {n_gpus, self.n_gpus} or n_gpus == self.n_gpus)

    def matches_model(self, trial: Trial) -> bool:
        """Return whether a trial was on GPUs of this model, however many, or does not report another model."""
        return self._has_model(trial.result.gpu_model)

    def _has_model(self, model: str | None) -> bool:
        return None in {model, self.gpu_model} or model == self.gpu_model


UNKNOWN_HARDWARE: Final = Hardware()


def is_bound_for_other_gpus(trial: Trial) -> bool:
    """Return whether a trial's cost bound was computed for other GPUs than those it reports."""
    return not Hardware(gpu_model=trial.bound_gpu_model, n_gpus=trial.bound_n_gpus).matches(trial)


def measured_hardware(trials: Sequence[Trial]) -> Hardware:
    """Return the GPUs of the newest measured end, else of any measured trial."""
    measured = [trial for trial in trials if trial.result.energy_j or trial.result.duration_s]
    ends = [trial for trial in measured if trial.state in {"reached", "stopped"} and trial.result.gpu_model is not None]
    return newest_hardware(ends or measured)


def newest_hardware(trials: Sequence[Trial]) -> Hardware:
    """Return the GPUs of the trial that ended last or, where none has ended, was requested last.

    Trials that do not report their model, because they were not measured, are left out.
    """
    reported = [trial for trial in trials if trial.result.gpu_model is not None]
    if not reported:
        return UNKNOWN_HARDWARE
    newest = max(reported, key=lambda trial: (trial.ended_at_s or 0.0, trial.number)).result
    return Hardware(gpu_model=newest.gpu_model, n_gpus=newest.n_gpus or None)


def max_power_w(trials: Sequence[Trial], n_gpus: int | None = None) -> float | None:
    """Return P_max for a trial that does not report it: the greatest of its job, else the greatest mean power [W].

    Args:
        trials: those of the job.
        n_gpus: how many GPUs the trial has, to which the power of others is scaled; None: not known.
    """
    limits_w = [_scaled_w(trial, power_w, n_gpus) for trial in trials if (power_w := trial.result.max_power_w)]
    if limits_w:
        return max(limits_w)
    means_w = (_scaled_w(trial, power_w, n_gpus) for trial in trials if (power_w := _mean_power_w(trial)) is not None)
    return max(means_w, default=None)


def max_powers_w(trials: Sequence[Trial]) -> Mapping[int | None, float | None]:
    """Return `max_power_w` for each number of GPUs that a trial has."""
    return {n_gpus: max_power_w(trials, n_gpus) for n_gpus in {trial.result.n_gpus for trial in trials}}


def _scaled_w(trial: Trial, power_w: float, n_gpus: int | None) -> float:
    own = trial.result.n_gpus
    return power_w * n_gpus / own if own and n_gpus else power_w


def _mean_power_w(trial: Trial) -> float | None:
    energy_j, duration_s = trial.result.energy_j, trial.result.duration_s
    return energy_j / duration_s if energy_j and duration_s else None
