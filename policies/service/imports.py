"""What an import may bring: exports that do not contradict themselves, and of their trials those that are not known."""

import math
from collections import Counter
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from policies.service.errors import RequestError
from policies.service.records import IN_FLIGHT, JobExport, Trial
from policies.service.registration import new_job
from policies.service.timings import faults_of
from policies.service.trials import check


def check_exports(exports: Sequence[JobExport]) -> None:
    """Check that exports can be taken in.

    Raises:
        RequestError: they cannot; with every fault.
    """
    faults = [fault for export in exports for fault in _faults(export)]
    names = Counter(export.job.name for export in exports)
    faults += [f"job {name} comes {n} times: must come once" for name, n in names.items() if n > 1]
    if faults:
        raise RequestError(faults)


def missing(trials: Sequence[Trial], known: Sequence[Trial]) -> list[Trial]:
    """Return the trials whose runs are not known, in their order, numbered after those that are."""
    runs, number = {trial.run for trial in known}, known[-1].number + 1 if known else 0
    new = sorted((trial for trial in trials if trial.run not in runs), key=lambda trial: trial.number)
    return [replace(_consistent(trial), number=number + i) for i, trial in enumerate(new)]


def _faults(export: JobExport) -> list[str]:
    job = export.job
    try:
        new_job(
            job.name,
            batch_sizes=job.batch_sizes,
            default_batch_size=job.default_batch_size,
            now_s=job.created_at_s,
        )
        msgspec.convert(msgspec.to_builtins(export), JobExport)
    except RequestError as error:
        return [f"job {job.name}: {fault}" for fault in error.faults]
    except msgspec.ValidationError as error:
        return [f"job {job.name}: {error}"]
    runs = Counter(trial.run for trial in export.trials)
    faults = [f"job {job.name}: run {run} comes {n} times: must come once" for run, n in runs.items() if n > 1]
    for trial in export.trials:
        faults += [f"job {job.name}, run {trial.run}: {fault}" for fault in _trial_faults(export, trial)]
    return faults


def _trial_faults(export: JobExport, trial: Trial) -> list[str]:
    faults = []
    if trial.job != export.job.name:
        faults.append(f"job = {trial.job}: must be {export.job.name}")
    if trial.batch_size not in export.job.batch_sizes:
        faults.append(f"batch_size = {trial.batch_size}: must be one of {list(export.job.batch_sizes)}")
    if not (math.isfinite(trial.lease_s) and trial.lease_s > 0):
        faults.append(f"lease_s = {trial.lease_s}: must be finite, and above 0")
    if "\0" in trial.detail:
        faults.append("detail: must not hold the character NUL")
    if trial.timing is not None:
        faults += faults_of(trial.timing, export.job)
    try:
        check(trial.result)
    except RequestError as error:
        faults += error.faults
    return faults


def _consistent(trial: Trial) -> Trial:
    """Return a trial that has an end exactly where its state is one: by that those in flight are found."""
    if trial.state in IN_FLIGHT:
        return replace(trial, ended_at_s=None)
    return trial if trial.ended_at_s is not None else replace(trial, ended_at_s=trial.heard_at_s)
