"""What runs time before they train: how fast each batch size is, which do not fit the memory, which to time next.

An iteration of t seconds at batch size b takes t/b per sample; an epoch takes that many times its samples, a number
that nobody reports. So these times and those of whole epochs are in different units, unless one batch size has both.
"""

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from policies.batch_size import Study
from policies.service.records import Job, Timing, Trial
from policies.service.trials.hardware import UNKNOWN_HARDWARE, Hardware, newest_hardware


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


def merge_timings(known: Timing | None, news: Timing) -> Timing:
    """Return a run's timing after it has timed again, as after a restart: the newer times count."""
    if known is None:
        return news
    limit = news.too_large
    if limit is None and known.too_large is not None and all(one.batch_size < known.too_large for one in news.times):
        limit = known.too_large
    times = {one.batch_size: one for one in (*known.times, *news.times)}
    fitting = tuple(one for one in times.values() if limit is None or one.batch_size < limit)
    return replace(news, times=fitting, too_large=limit)


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
