"""The job on a simulated GPU: which of its iterations end when, as its publisher tells it."""

from typing import Final

import numpy as np

from controller.gpu.simulation.noise import Noise
from controller.gpu.simulation.timeline import GpuTimeline
from controller.runtime.clock import NS_PER_S
from publishers.messages.training import Iterations, RankStatus

HEARTBEAT_S: Final = 10.0
BOOT_ID: Final = "simulated"
PID: Final = 1


class SimulatedJob:
    """A training process of one rank: it works on a GPU from the start of its timeline until all is done.

    Args:
        timeline: the GPU.
        noise: the work of its iterations.
        work_iterations: how much there is to do in all [nominal iterations].
        run: the name of the run.
        started_at_s: when it starts [Unix s].
        tells_length: whether it says how many iterations it will do.
    """

    def __init__(
        self,
        timeline: GpuTimeline,
        noise: Noise,
        *,
        work_iterations: float,
        run: str,
        started_at_s: float,
        tells_length: bool,
    ) -> None:
        self._timeline, self._noise, self._work = timeline, noise, work_iterations
        self._told_ns = self._end_ns = timeline.start_ns
        self._n_iterations = self._n_messages = self._n_chunks = 0
        self._ends = np.zeros(0)
        """The work that is done at the end of each iteration that is drawn, but not told yet."""
        self._drawn = 0.0
        """The work of all iterations that are drawn."""
        self.status = RankStatus(
            run=run,
            state="running",
            host=BOOT_ID,
            boot_id=BOOT_ID,
            pid=PID,
            gpus=[0],
            world_size=1,
            started_at_s=started_at_s,
            heartbeat_s=HEARTBEAT_S,
            total_iterations=round(work_iterations) if tells_length else None,
        )

    def finishes_ns(self, now_ns: int) -> int:
        """Return when all is done at the present limit, on the monotonic clock [ns].

        Raises:
            ValueError: it never is: the GPU is not loaded.
        """
        time_ns = self._timeline.reached_ns(self._work, not_before_ns=now_ns)
        if time_ns is None:
            raise ValueError("the job makes no progress: its GPU must be loaded")
        return time_ns

    def next_message(self, now_ns: int) -> Iterations | None:
        """Return the iterations that have ended since the last call; None where there are none.

        Args:
            now_ns: the present, on the monotonic clock; since the last call the limit was the same [ns].
        """
        segment = self._timeline.at(self._told_ns)
        self._told_ns = now_ns
        done = self._timeline.done_iterations(now_ns)
        while self._drawn <= done:
            self._draw()
        n = int(np.searchsorted(self._ends, done, side="right"))
        if not n:
            return None
        passed_s = (self._ends[:n] - segment.done_iterations) / segment.iterations_per_s
        ends_ns = segment.start_ns + np.ceil(passed_s * NS_PER_S).astype("<i8")
        message = Iterations(
            run=self.status.run,
            seq=self._n_messages,
            first=self._n_iterations,
            begin_ns=self._end_ns,
            end_ns=ends_ns.tobytes(),
            epoch=0,
            dropped=0,
        )
        self._ends, self._end_ns = self._ends[n:], int(ends_ns[-1])
        self._n_iterations, self._n_messages = self._n_iterations + n, self._n_messages + 1
        return message

    def _draw(self) -> None:
        ends = self._drawn + np.cumsum(self._noise.work_of_chunk(self._n_chunks))
        self._ends, self._drawn = np.concatenate((self._ends, ends)), float(ends[-1])
        self._n_chunks += 1
