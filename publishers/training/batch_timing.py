"""Batch sizes timed before a training: how long an iteration takes at each, and which do not fit the memory.

Costs of batch sizes that never ran are what a young job lacks most; their ratios follow from how long an iteration
takes. The training code brings a callable that trains one iteration, and each size is timed once in the life of a job.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from publishers.messages.training import TrialTimes
from publishers.training.coerce import to_float, to_text, warn_once
from publishers.training.trial import LONGEST_TIMEOUT_S, BatchSizeTrial, is_out_of_memory

N_WARM_UPS: Final = 3
"""Calls that do not count: the first ones compile kernels, choose algorithms and fill caches."""
MIN_CALLS: Final = 3
MAX_CALLS: Final = 30
ENOUGH_S: Final = 3.0
"""A batch size is timed in at least `MIN_CALLS`, then until it was called `MAX_CALLS` times, or for this long."""
SHORTEST_S: Final = 1e-9
"""What an iteration takes at least, where the clock did not move."""
_LONGEST: Final = 200
_LOGGER: Final = logging.getLogger("publishers")
Probe = Callable[[int], object]
Clock = Callable[[], float]


@dataclass(slots=True, kw_only=True)
class BatchTimings:
    """What came of timing.

    Attributes:
        iteration_times_s: how long an iteration took at each batch size, their medians.
        too_large: the batch size that did not fit the memory; None: all that were tried did.
        fault: what else the callable has raised, which has ended it all; None: nothing.
    """

    iteration_times_s: dict[int, float] = field(default_factory=dict)
    too_large: int | None = None
    fault: str | None = None


class Told(Protocol):
    """Who publishes the times."""

    @property
    def run(self) -> str:
        """The id of the run."""
        ...

    @property
    def rank(self) -> int:
        """Which of the run's processes this is."""
        ...

    def add_times(self, times: TrialTimes) -> None:
        """Publish soon how long iterations take."""
        ...


class BatchSizeBenchmark:
    """Times what an answer asks for, and tells it.

    Args:
        probe: trains one iteration at a batch size; None: nothing is timed.
        timeout_s: for how long, in all; looked at between calls.
        told: who publishes the times; None: publishing is off.
        clock_s: a clock that never goes back [s].
    """

    def __init__(self, probe: object, timeout_s: object, *, told: Told | None, clock_s: Clock) -> None:
        self._probe = probe
        self._timeout_s = timeout_s
        self._told = told
        self._clock_s = clock_s

    def carry_out(self, trial: BatchSizeTrial, candidates: Sequence[int]) -> BatchSizeTrial:
        """Time the batch sizes that the service does not know; return the trial, of a size that fits the memory.

        Only rank 0 does: the others would say the same. What the callable raises ends it with a warning; an exception
        that ends the process, such as KeyboardInterrupt, goes on.
        """
        budget_s = to_float(self._timeout_s) or math.nan
        if self._told is None or self._told.rank or not trial.untimed or self._probe is None:
            return trial
        if not callable(self._probe) or not 0 < budget_s <= LONGEST_TIMEOUT_S:
            warn_once(
                f"no batch size is timed: probe must be a function, "
                f"and probe_timeout_s = {to_text(self._timeout_s, 40)} "
                f"above 0 and at most {LONGEST_TIMEOUT_S:g} s"
            )
            return trial
        timings = time_batch_sizes(self._probe, trial.untimed, budget_s=budget_s, clock_s=self._clock_s)
        if timings.fault is not None:
            warn_once(f"no more batch sizes are timed: the probe has failed: {timings.fault}")
        _LOGGER.info("batch sizes timed: %d of %d", len(timings.iteration_times_s), len(trial.untimed))
        fitting = largest_that_fits(trial, timings, candidates)
        self._tell(self._told, timings, None if fitting is trial else fitting.batch_size)
        return fitting

    def _tell(self, told: Told, timings: BatchTimings, batch_size: int | None) -> None:
        if timings.iteration_times_s or timings.too_large is not None:
            times = TrialTimes(
                run=told.run,
                batch_sizes=list(timings.iteration_times_s),
                iteration_times_s=list(timings.iteration_times_s.values()),
                too_large=timings.too_large,
                batch_size=batch_size,
            )
            told.add_times(times)


def time_batch_sizes(probe: Probe, batch_sizes: Sequence[int], *, budget_s: float, clock_s: Clock) -> BatchTimings:
    """Return how long an iteration takes at each batch size, the smallest first, as far as the time suffices.

    Where one does not fit the memory, no larger one is tried.

    Args:
        probe: trains one iteration at a batch size.
        batch_sizes: those to time.
        budget_s: for all of them [s].
        clock_s: a clock that never goes back [s].
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
                timings.fault = f"{type(error).__name__}: {to_text(error, _LONGEST)}"
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
    return max(sorted(times_s)[len(times_s) // 2], SHORTEST_S)  # importing `statistics` takes longer than it is worth


def largest_that_fits(trial: BatchSizeTrial, timings: BatchTimings, candidates: Sequence[int]) -> BatchSizeTrial:
    """Return the trial with a batch size that fits the memory, where its own was to be timed and does not.

    That is the largest candidate below what did not fit. Where there is none, nothing can be done here.
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
