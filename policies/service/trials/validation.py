"""Validation of jobs as runs describe them, and of imported jobs and trials."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from policies.service.errors import JobMismatchError, RequestError
from policies.service.records import IN_FLIGHT, Job, JobExport, JobKey, Timing, Trial
from policies.service.trials.lifecycle import check_result, n_epochs
from policies.vocabulary.units import DAY_S
from publishers.messages.topics import MAX_LABEL_BYTES, is_label, is_name

MAX_CANDIDATES: Final = 256
MAX_BATCH_SIZE: Final = 1 << 31
MAX_AHEAD_S: Final = DAY_S
"""How far the clock of an export's origin may be ahead; a lease renewed later than that would never expire."""
MAX_RECURRENCE: Final = 1 << 30
"""Half of what a record holds, so that as many recurrences can follow an import."""
_SHOWN: Final = 8


def new_job(
    key: JobKey, *, batch_sizes: Sequence[int], default_batch_size: int, now_s: float, run: str | None = None
) -> Job:
    """Return the job as a run describes it, its batch sizes sorted.

    Args:
        key: its user and name.
        batch_sizes: its candidates, in any order.
        default_batch_size: one of them.
        now_s: Unix time [s].
        run: the run whose name is to be checked, too; None: of an import.

    Raises:
        RequestError: a name is invalid; there are no batch sizes, or too many, or duplicates, or no valid numbers; the
            default is not among them. With every fault.
    """
    faults = [] if run is None else _name_faults("run", run)
    faults += [
        *_user_faults(key.user),
        *_name_faults("job", key.job),
        *_candidate_faults(batch_sizes, default_batch_size),
    ]
    if faults:
        raise RequestError(faults)
    return Job(
        user=key.user,
        name=key.job,
        batch_sizes=tuple(sorted(batch_sizes)),
        default_batch_size=default_batch_size,
        created_at_s=now_s,
    )


def check_same_job(known: Job, described: Job) -> None:
    """Check that a run describes the job that is known under its name.

    Raises:
        JobMismatchError: it has other batch sizes, or another default.
    """
    if (known.batch_sizes, known.default_batch_size) != (described.batch_sizes, described.default_batch_size):
        raise JobMismatchError(
            f"job {known.key} has batch sizes {_shown(known.batch_sizes)} and default {known.default_batch_size}, "
            f"this run offers {_shown(described.batch_sizes)} and {described.default_batch_size}: give it another job "
            f"name, or forget what was learned (gridchase policy forget {known.key})"
        )


def check_exports(exports: Sequence[JobExport], now_s: float) -> None:
    """Check that exports can be imported.

    Args:
        exports: the jobs with their trials.
        now_s: Unix time: nothing in them happened much later [s].

    Raises:
        RequestError: they cannot; with every fault.
    """
    faults = [fault for export in exports for fault in _export_faults(export, now_s)]
    keys = Counter(export.job.key for export in exports)
    faults += [f"job {key} comes {n} times: must come once" for key, n in keys.items() if n > 1]
    if faults:
        raise RequestError(faults)


def with_user(export: JobExport, user: str) -> JobExport:
    """Return an export that has a user: its own, else the given one."""
    if export.job.user:
        return export
    trials = tuple(replace(trial, user=trial.user or user) for trial in export.trials)
    return replace(export, job=replace(export.job, user=user), trials=trials)


def with_sorted_batch_sizes(job: Job) -> Job:
    """Return a job with its batch sizes ascending, which a file need not have."""
    return replace(job, batch_sizes=tuple(sorted(job.batch_sizes)))


def new_trials(trials: Sequence[Trial], known: Sequence[Trial]) -> list[Trial]:
    """Return the trials whose runs are not known, in their order, numbered after those that are."""
    runs, number = {trial.run for trial in known}, known[-1].number + 1 if known else 0
    new = sorted((trial for trial in trials if trial.run not in runs), key=lambda trial: trial.number)
    return [replace(_with_consistent_end(trial), number=number + i) for i, trial in enumerate(new)]


def timing_faults(timing: Timing, job: Job) -> list[str]:
    """Return what is wrong with what a run of a job has timed."""
    sizes = [one.batch_size for one in timing.times]
    named = {*sizes, timing.too_large, timing.batch_size}
    strange = [size for size in named if size is not None and size not in job.batch_sizes]
    faults = [f"batch size {size}: must be one of {list(job.batch_sizes)}" for size in sorted(strange)]
    if len(set(sizes)) < len(sizes):
        faults.append(f"times are of batch sizes {sizes}: must be of each once")
    faults += [
        f"iteration_time_s = {one.iteration_time_s} of batch size {one.batch_size}: must be finite, and above 0"
        for one in timing.times
        if not 0 < one.iteration_time_s < math.inf
    ]
    too_large = timing.too_large
    if too_large is not None and (reached := [size for size in (*sizes, timing.batch_size or 0) if size >= too_large]):
        faults.append(f"too_large = {too_large}: must be above what fits the memory, {max(reached)}")
    if timing.batch_size is not None and too_large is None:
        faults.append("batch_size: only where the run's own does not fit the memory, which too_large says")
    return faults


def _name_faults(what: str, name: str) -> list[str]:
    return [] if is_name(name) else [f"{what} = {name!r}: must be 1 to 64 characters of A-Z a-z 0-9 . _ -"]


def _user_faults(user: str) -> list[str]:
    return [] if is_label(user) else [f"user = {user!r}: must be 1 to {MAX_LABEL_BYTES} bytes of printable characters"]


def _candidate_faults(batch_sizes: Sequence[int], default_batch_size: int) -> list[str]:
    sizes = list(batch_sizes)
    if not 1 <= len(sizes) <= MAX_CANDIDATES:
        return [f"batch_sizes has {len(sizes)} entries: must have 1 to {MAX_CANDIDATES}"]
    faults = []
    if invalid := [size for size in sizes if not _is_batch_size(size)]:
        faults.append(f"batch_sizes has {_shown(invalid)}: must be whole numbers from 1 to {MAX_BATCH_SIZE}")
    elif duplicates := sorted({size for size in sizes if sizes.count(size) > 1}):
        faults.append(f"batch_sizes has {_shown(duplicates)} more than once: must be distinct")
    if default_batch_size not in sizes:
        faults.append(f"default_batch_size = {default_batch_size}: must be one of {_shown(sizes)}")
    return faults


def _is_batch_size(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= MAX_BATCH_SIZE


def _shown(sizes: Sequence[int]) -> str:
    more = [f"… ({len(sizes)} in all)"] if len(sizes) > _SHOWN else []
    return ", ".join([*(str(size) for size in sizes[:_SHOWN]), *more])


def _export_faults(export: JobExport, now_s: float) -> list[str]:
    job = export.job
    try:
        new_job(job.key, batch_sizes=job.batch_sizes, default_batch_size=job.default_batch_size, now_s=job.created_at_s)
        msgspec.convert(msgspec.to_builtins(export), JobExport)
    except RequestError as error:
        return [f"job {job.key}: {fault}" for fault in error.faults]
    except msgspec.ValidationError as error:
        return [f"job {job.key}: {error}"]
    runs = Counter(trial.run for trial in export.trials)
    faults = [f"job {job.key}: run {run} comes {n} times: must come once" for run, n in runs.items() if n > 1]
    for trial in export.trials:
        faults += [f"job {job.key}, run {trial.run}: {fault}" for fault in _trial_faults(export, trial, now_s)]
    return faults


def _trial_faults(export: JobExport, trial: Trial, now_s: float) -> list[str]:
    faults = []
    if (trial.user, trial.job) != export.job.key:
        faults.append(f"job = {trial.user}/{trial.job}: must be {export.job.key}")
    if trial.batch_size not in export.job.batch_sizes:
        faults.append(f"batch_size = {trial.batch_size}: must be one of {list(export.job.batch_sizes)}")
    if trial.recurrence > MAX_RECURRENCE:
        faults.append(f"recurrence = {trial.recurrence}: must be at most {MAX_RECURRENCE}")
    faults += [
        f"{name} = {at_s}: must be at most a day from now, {now_s + MAX_AHEAD_S:.0f}"
        for name, at_s in (("requested_at_s", trial.requested_at_s), ("heard_at_s", trial.heard_at_s))
        if at_s > now_s + MAX_AHEAD_S
    ]
    if "\0" in trial.detail:
        faults.append("detail: must not hold the character NUL")
    if trial.timing is not None:
        faults += timing_faults(trial.timing, export.job)
    try:
        check_result(trial.result, is_report=False)
    except RequestError as error:
        faults += error.faults
    return [*faults, *_end_faults(trial)]


def _end_faults(trial: Trial) -> Iterator[str]:
    """Yield contradictions between the state of a trial and its result; an inferred end has no outcome."""
    outcome = trial.result.outcome
    if outcome not in {None, trial.state}:
        yield f"state = {trial.state}: must be {outcome}, as result.outcome, or that must be left out"
    if trial.state == "reached" and not n_epochs(trial):
        yield "state = reached: the result must say after how many epochs, at least 1 (reached_epochs, or epochs)"


def _with_consistent_end(trial: Trial) -> Trial:
    """Set `ended_at_s` if and only if the state is terminal; the query for trials in flight relies on it."""
    if trial.state in IN_FLIGHT:
        return replace(trial, ended_at_s=None)
    return trial if trial.ended_at_s is not None else replace(trial, ended_at_s=trial.heard_at_s)
