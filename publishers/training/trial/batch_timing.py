"""Batch sizes timed before a training: how long an iteration takes at each, and which do not fit the memory.

A new job mostly lacks the costs of batch sizes that have never run; their ratios follow from the iteration times. The
training code passes a function that trains one iteration, and each size is timed once per job and GPU model.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from msgspec import Struct, field

from publishers.messages.training import TrialTimes
from publishers.training.coerce import to_float, to_text, warn_once
from publishers.training.trial.policy_client import MAX_TIMEOUT_S, BatchSizeTrial

N_WARM_UPS: Final = 3
"""Calls that do not count: the first ones compile kernels, choose algorithms and fill caches."""
MIN_CALLS: Final = 3
MAX_CALLS: Final = 30
ENOUGH_S: Final = 3.0
"""A batch size is timed in at least `MIN_CALLS`, then until it was called `MAX_CALLS` times, or for this long."""
MIN_ITERATION_TIME_S: Final = 1e-9
"""What an iteration takes at least, where the clock did not move."""
_MAX_SHOWN: Final = 200
_LOGGER: Final = logging.getLogger("publishers")
Probe = Callable[[int], object]
Clock = Callable[[], float]


class BatchTimings(Struct, kw_only=True):
    """The result of timing.

    Attributes:
        iteration_times_s: the median time of an iteration, by batch size.
        too_large: the batch size that did not fit the memory; None: all that were tried did.
        fault: what else the function has raised, which ended the timing; None: nothing.
    """

    iteration_times_s: dict[int, float] = field(default_factory=dict)
    too_large: int | None = None
    fault: str | None = None


def time_untimed(
    trial: BatchSizeTrial, candidates: Sequence[int], *, run: str, probe: object, timeout_s: object, clock_s: Clock
) -> tuple[BatchSizeTrial, TrialTimes | None]:
    """Time the batch sizes that the policy service asks for; return a trial that fits the memory, and what to publish.

    An exception of the probe ends the timing with a warning; one that ends the process, such as KeyboardInterrupt,
    goes on.

    Args:
        trial: the answer of the policy service.
        candidates: the batch sizes to choose from.
        run: the id of the run.
        probe: trains one iteration at a batch size; None: nothing is timed.
        timeout_s: for how long, in all [s]; looked at between calls.
        clock_s: a monotonic clock [s].
    """
    budget_s = to_float(timeout_s) or math.nan
    if not trial.untimed or probe is None:
        return trial, None
    if not callable(probe) or not 0 < budget_s <= MAX_TIMEOUT_S:
        warn_once(
            f"no batch size is timed: probe must be a function, and probe_timeout_s = {to_text(timeout_s, 40)} "
            f"above 0 and at most {MAX_TIMEOUT_S:g} s"
        )
        return trial, None
    timings = time_batch_sizes(probe, trial.untimed, budget_s=budget_s, clock_s=clock_s)
    times_s = timings.iteration_times_s
    if timings.fault is not None:
        warn_once(f"no more batch sizes are timed: the probe has failed: {timings.fault}")
    _LOGGER.info("timed %d of %d batch sizes", len(times_s), len(trial.untimed))
    fitting = largest_that_fits(trial, timings, candidates)
    if not times_s and timings.too_large is None:
        return fitting, None
    return fitting, TrialTimes(
        run=run,
        batch_sizes=list(times_s),
        iteration_times_s=list(times_s.values()),
        too_large=timings.too_large,
        batch_size=None if fitting is trial else fitting.batch_size,
    )


def time_batch_sizes(probe: Probe, batch_sizes: Sequence[int], *, budget_s: float, clock_s: Clock) -> BatchTimings:
    """Return how long an iteration takes at each batch size, the smallest first, as far as the time suffices.

    Where one does not fit the memory, no larger one is tried.

    Args:
        probe: trains one iteration at a batch size.
        batch_sizes: those to time.
        budget_s: for all of them [s].
        clock_s: a monotonic clock [s].
    """
    timings, until_s = BatchTimings(), math.inf
    for size in sorted(batch_sizes):
        try:  # the clock is somebody else's, too
            until_s = min(until_s, clock_s() + budget_s)
            took_s = iteration_time_s(probe, size, until_s=until_s, clock_s=clock_s)
        except Exception as error:  # noqa: BLE001 — somebody else's code may raise anything, and training must go on
            if is_out_of_memory(type(error)):
                timings.too_large = size
            else:
                timings.fault = f"{type(error).__name__}: {to_text(error, _MAX_SHOWN)}"
            return timings
        if took_s is None:
            return timings
        timings.iteration_times_s[size] = took_s
    return timings


def iteration_time_s(probe: Probe, batch_size: int, *, until_s: float, clock_s: Clock) -> float | None:
    """Return how long an iteration takes, the median of several; None where the time is over before it is known [s]."""
    for _ in range(N_WARM_UPS):
        if clock_s() >= until_s:
            return None
        probe(batch_size)
    times_s: list[float] = []
    begun_s = now_s = clock_s()
    while len(times_s) < MIN_CALLS or (len(times_s) < MAX_CALLS and now_s < begun_s + ENOUGH_S and now_s < until_s):
        if now_s >= until_s:
            return None
        probe(batch_size)
        before_s, now_s = now_s, clock_s()
        times_s.append(now_s - before_s)
    return max(sorted(times_s)[len(times_s) // 2], MIN_ITERATION_TIME_S)  # importing `statistics` takes too long


def largest_that_fits(trial: BatchSizeTrial, timings: BatchTimings, candidates: Sequence[int]) -> BatchSizeTrial:
    """Return the trial with the largest candidate that fits the memory, where its own was to be timed and does not.

    Where none is smaller than what did not fit, nothing can be done here.
    """
    too_large = timings.too_large
    if too_large is None or trial.batch_size < too_large or trial.batch_size not in trial.untimed:
        return trial
    smaller = [size for size in candidates if size < too_large]
    if not smaller:
        warn_once(f"batch size {too_large} does not fit the memory, and is the smallest of the candidates")
        return trial
    detail = f"{too_large} does not fit the memory: {max(smaller)} is the largest candidate that does"
    warn_once(f"the batch size is {max(smaller)} instead of {trial.batch_size}: {detail}")
    return replace(trial, batch_size=max(smaller), reason="too_large", detail=detail)


def is_out_of_memory(kind: type[BaseException]) -> bool:
    """Return whether an exception means that memory ran out: Python's own, or one named so, such as PyTorch's."""
    return issubclass(kind, MemoryError) or is_out_of_device_memory(kind)


def is_out_of_device_memory(kind: type[BaseException]) -> bool:
    """Return whether an exception is named as PyTorch's for the memory of a GPU.

    Python's own is left out: it is about the host, not about the batch size.
    """
    return any(base.__name__ == "OutOfMemoryError" for base in kind.__mro__)
