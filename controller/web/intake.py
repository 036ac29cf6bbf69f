"""What a site's process takes from the bus into its history: energies of runs and GPUs, changes of limits, the grid.

Anybody may publish anything: what is too long, invalid, of another topic than it says, of the future, or older than
what is kept is counted and dropped before it waits for the disk.
"""

from typing import Final

import msgspec

from controller.history.energy_history.plausibility import FUTURE_S
from controller.history.energy_history.recorder import HistoryRecorder
from controller.ports import Bus
from controller.runtime.clock import Clock
from publishers.messages.codec import DecodeError, decode, encode
from publishers.messages.reports import GpuEnergy, GridSignal, LimitChange, RunEnergy
from publishers.messages.topics import ParsedTopic, Topics
from publishers.shared.log_once import InvalidMessages

MAX_RECORD_BYTES: Final = 8 << 10
"""Of a record; those of runs have some 1,500 bytes. A signal of the grid is as long as messages may be."""
MAX_GPU_INDEX: Final = 1_023
Heard = RunEnergy | GpuEnergy | LimitChange | GridSignal


class SiteIntake:
    """Takes the messages of all nodes.

    Args:
        topics: those below the configured root.
        recorder: takes what is valid.
        clock: the time.
        retention_s: what is older is not kept [s].

    Attributes:
        invalid_messages: counts the rest.
        n_heard: how many messages were taken.
        heard_s: when the last one was [Unix s]; None: none was.
    """

    def __init__(self, topics: Topics, recorder: HistoryRecorder, *, clock: Clock, retention_s: float) -> None:
        self.invalid_messages = InvalidMessages(clock.now_s)
        self.n_heard = 0
        self.heard_s: float | None = None
        self._topics = topics
        self._recorder = recorder
        self._clock = clock
        self._retention_s = retention_s

    def subscribe(self, bus: Bus) -> None:
        """Subscribe to all that is recorded: before the bus connects, which sends all filters at once."""
        topics = self._topics
        for topic_filter in (
            topics.run_filter("energy"),
            topics.part_filter("energy"),
            topics.gpu(None, None, "energy"),
            topics.gpu(None, None, "limit"),
            topics.grid(None, "carbon"),
            topics.grid(None, "price"),
        ):
            bus.subscribe(topic_filter, self.take, qos=1)

    def take(self, topic: str, payload: bytes) -> None:
        """Take a message; an empty one clears what was retained, and says nothing."""
        if not payload:
            return
        try:
            kept = self._checked(topic, payload)
        except (DecodeError, ValueError) as error:
            self.invalid_messages.add(topic, str(error))
            return
        self.n_heard += 1
        self.heard_s = self._clock.now_s()
        self._recorder.record(topic, kept)

    def _checked(self, topic: str, payload: bytes) -> bytes:
        """Return what to keep of a message.

        Raises:
            ValueError: it is not believed, and why; DecodeError is one.
        """
        parsed = self._topics.parse(topic)
        kind = None if parsed is None else _kind_of(parsed)
        if parsed is None or kind is None:
            raise ValueError("is no topic of the history")
        if kind is not GridSignal and len(payload) > MAX_RECORD_BYTES:
            raise ValueError(f"{len(payload)} bytes: must be at most {MAX_RECORD_BYTES}")
        if b"\\u0000" in payload:  # PostgreSQL would refuse it, with all that is written beside it
            raise ValueError("holds a NUL")
        message = decode(payload, kind)
        if (getattr(message, "gpu_index", None) or 0) > MAX_GPU_INDEX:
            raise ValueError(f"gpu_index: must be at most {MAX_GPU_INDEX}")
        if not _speaks_for_itself(message, parsed):
            raise ValueError("names another run, node or GPU than its topic")
        ahead_s = (message.time_s or 0.0) - self._clock.now_s()
        if not -self._retention_s <= ahead_s <= FUTURE_S:
            raise ValueError(f"is {ahead_s:.0f} s ahead of the clock here")
        if isinstance(message, GridSignal):  # of which the value of now is kept
            return encode(msgspec.structs.replace(message, values=[]))
        return payload


def _kind_of(topic: ParsedTopic) -> type[Heard] | None:
    if topic.zone is not None:
        return GridSignal
    if topic.run is not None:
        return RunEnergy if topic.leaf == "energy" else None
    if topic.gpu_uuid is None or topic.leaf not in {"energy", "limit"}:
        return None
    return GpuEnergy if topic.leaf == "energy" else LimitChange


def _speaks_for_itself(message: Heard, topic: ParsedTopic) -> bool:
    """Return whether the names in a message are those of its topic, where it has any."""
    expected: dict[str, str | None] = {"node": topic.node, "gpu_uuid": topic.gpu_uuid}
    if isinstance(message, RunEnergy) and topic.run is not None:
        expected = {"node": topic.node, **topic.run._asdict()}
    return all(getattr(message, name, None) in {None, value} for name, value in expected.items())
