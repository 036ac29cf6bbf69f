"""What runs have timed before their training: how fast each batch size is, which do not fit, which are to be timed.

An iteration that takes t seconds at batch size b takes t/b for each sample; an epoch takes that many times its samples,
which nobody says. So these times and those of whole epochs are in different units, unless one batch size has both.
"""

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from policies.batch_size import Study
from policies.service.trials.hardware import UNKNOWN_HARDWARE, Hardware, newest_hardware
from policies.service.trials.records import Job, Timing, Trial


def faults_of(timing: Timing, job: Job) -> list[str]:
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


def merged(known: Timing | None, news: Timing) -> Timing:
    """Return what a run has timed after it has timed once more, as after a restart: what is newer counts."""
    if known is None:
        return news
    limit = news.too_large
    if limit is None and known.too_large is not None and all(one.batch_size < known.too_large for one in news.times):
        limit = known.too_large
    times = {one.batch_size: one for one in (*known.times, *news.times)}
    fitting = tuple(one for one in times.values() if limit is None or one.batch_size < limit)
    return replace(news, times=fitting, too_large=limit)


def sample_times(trials: Sequence[Trial], hardware: Hardware | None = None) -> Mapping[int, float]:
    """Return how long a sample takes at each batch size that was timed, on such GPUs, else those of the newest end [s].

    Of several times of one batch size the newest counts.
    """
    times = (one for timing in _timings(trials, hardware) for one in timing.times)
    return {one.batch_size: one.iteration_time_s / one.batch_size for one in times}


def too_large(trials: Sequence[Trial]) -> Sequence[int]:
    """Return the batch sizes that did not fit the memory when they were to be timed, ascending.

    What has run, and all that is smaller, fits: then the probe was mistaken.
    """
    found = {timing.too_large for timing in _timings(trials)} - {None}
    if not found:
        return []
    ran = {trial.batch_size for trial in trials if trial.state in {"reached", "stopped"}}
    return sorted(size for size in found if size is not None and size > max(ran, default=0))


def joined(sample_times_s: Mapping[int, float], epoch_times_s: Mapping[int, float]) -> Mapping[int, float]:
    """Return what is known of the time of an epoch at each batch size, in one unit; only ratios mean anything.

    Times of iterations go before those of epochs, in which there are pauses, and epochs that did not end. Both are
    returned where at least one batch size has both, which gives their ratio.
    """
    if not sample_times_s:
        return epoch_times_s
    ratios = [epoch_times_s[size] / time_s for size, time_s in sample_times_s.items() if size in epoch_times_s]
    if not ratios:
        return sample_times_s
    samples = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return {**epoch_times_s, **{size: samples * time_s for size, time_s in sample_times_s.items()}}


def untimed(study: Study, trials: Sequence[Trial]) -> tuple[int, ...]:
    """Return the batch sizes that the next run should time: those that can run, and of whose speed nothing is known.

    Where there are times, and costs of epochs, but none of the same batch size, the one with a cost that is nearest to
    the default is to be timed, too: else the two could not be compared.
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
    """Return what was timed on such GPUs, None: those of the trial that ended last; or where nobody has said which."""
    timed = [trial for trial in trials if trial.timing is not None]
    hardware = hardware or (newest_hardware(trials) if timed else UNKNOWN_HARDWARE)
    return [trial.timing for trial in timed if trial.timing is not None and hardware.may_be_of(trial)]
