"""A training process without the process: it computes on a simulated GPU, and publishes on a bus as a real one does."""

from array import array
from collections.abc import Generator, Iterator
from typing import Literal

import msgspec

from controller.demo.day.workload import Training, Workload
from publishers.messages.codec import Message, encode
from publishers.messages.topics import RunKey, Topics
from publishers.messages.training import Iterations, RankStatus, pack_ends
from tests.fakes import FakeBus


class VirtualTraining:
    """The only rank of a run.

    Args:
        training: computes; its time is that of the GPU's timeline.
        workload: what it computes.
        status: what the rank says of itself while it runs.
        key: whose run it is, and of which job.
        bus: where it publishes.
    """

    def __init__(
        self, training: Training, workload: Workload, *, status: RankStatus, key: RunKey, bus: FakeBus
    ) -> None:
        self._training, self._workload = training, workload
        self._status, self._key, self._bus = status, key, bus
        self._begin_ns, self._ends_ns = 0, array("q")
        self._n_sent = self._n_messages = self._epoch = 0

    def compute(self) -> Generator[int, int, None]:
        """Return the job as `Training.run` does: it yields until when it computes, and takes what time it is [ns]."""
        return self._training.run(self._workload, self)

    def __iter__(self) -> Iterator[int]:
        """Note when the iterations of a pass end, as a published loader does."""
        self._begin_ns = self._training.time_ns
        for batch in range(self._workload.iterations_per_epoch):
            yield batch
            self._ends_ns.append(self._training.time_ns)
        self.send()
        self._epoch += 1

    def say(self, state: Literal["running", "finished"]) -> None:
        """Publish the state of the rank."""
        reached = True if state == "finished" else None
        self._publish("status", msgspec.structs.replace(self._status, state=state, reached=reached), retain=True)

    def send(self) -> None:
        """Publish the iterations that have ended since the last message."""
        if not self._ends_ns:
            return
        message = Iterations(
            run=self._key.run,
            seq=self._n_messages,
            first=self._n_sent,
            begin_ns=self._begin_ns,
            end_ns=pack_ends(self._ends_ns),
            epoch=self._epoch,
            dropped=0,
        )
        self._begin_ns = self._ends_ns[-1]
        self._n_messages, self._n_sent = self._n_messages + 1, self._n_sent + len(self._ends_ns)
        self._ends_ns = array("q")
        self._publish("iterations", message, retain=False)

    def _publish(self, leaf: str, message: Message, *, retain: bool) -> None:
        topic = Topics().rank(self._status.boot_id, self._key, 0, leaf)
        self._bus.publish(topic, encode(message), qos=int(retain), retain=retain)
