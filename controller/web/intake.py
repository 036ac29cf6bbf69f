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
from policies.vocabulary.units import DAY_S
from publishers.messages.codec import DecodeError, decode, encode
from publishers.messages.reports import GpuEnergy, GridSignal, LimitChange, RunEnergy
from publishers.messages.topics import ParsedTopic, Topics
from publishers.shared.log_once import InvalidMessages

MAX_RECORD_BYTES: Final = 8 << 10
"""Of a record; those of runs have some 1,500 bytes. A signal of the grid is as long as messages may be."""
MAX_GPU_INDEX: Final = 1_023
MAX_ZONES: Final = 64
"""Of the grid, until the next start: each may fill a row a quarter-hour."""
MAX_SIGNAL_AGE_S: Final = DAY_S
REFUSED_S: Final = 300.0
"""Where nothing else came for so long, refused messages are trouble [s]."""
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
    """

    def __init__(self, topics: Topics, recorder: HistoryRecorder, *, clock: Clock, retention_s: float) -> None:
        self.invalid_messages = InvalidMessages(clock.now_s)
        self.n_heard = 0
        self._refused_s: list[float] = []  # since the last one was taken: the first and the last [Unix s]
        self._refusal = ""
        self._zones: set[str] = set()
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
            self._refusal = f"{topic} {error}"
            self._refused_s = [*self._refused_s[:1], self._clock.now_s()]
            return
        self.n_heard += 1
        self._refused_s = []
        self._recorder.record(topic, kept)

    @property
    def fault(self) -> str:
        """Return that all messages are refused, and why the last one was; "" while any is taken, or none comes."""
        now_s = self._clock.now_s()
        if not self._refused_s or now_s - self._refused_s[0] < REFUSED_S or now_s - self._refused_s[-1] > REFUSED_S:
            return ""
        return (
            f"no message was taken for {now_s - self._refused_s[0]:.0f} s, all were refused, the last: {self._refusal}"
        )

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
            raise ValueError("names another run, node, GPU or zone than its topic")
        ahead_s = (message.time_s or 0.0) - self._clock.now_s()
        if not -self._retention_s <= ahead_s <= FUTURE_S:
            raise ValueError(f"is {ahead_s:.0f} s ahead of the clock here")
        if isinstance(message, GridSignal):
            return self._checked_signal(message, ahead_s)
        return payload

    def _checked_signal(self, signal: GridSignal, ahead_s: float) -> bytes:
        """Return a signal with its value of now alone."""
        if ahead_s < -MAX_SIGNAL_AGE_S:
            raise ValueError(f"is {-ahead_s:.0f} s old: must be at most {MAX_SIGNAL_AGE_S:.0f} s")
        if signal.zone not in self._zones and len(self._zones) == MAX_ZONES:
            raise ValueError(f"is of one zone more than {MAX_ZONES}")
        self._zones.add(signal.zone)
        return encode(msgspec.structs.replace(signal, values=[]))


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
    if isinstance(message, GridSignal):
        return (message.zone, message.kind == "price") == (topic.zone, topic.leaf == "price")
    expected: dict[str, str | None] = {"node": topic.node, "gpu_uuid": topic.gpu_uuid}
    if isinstance(message, RunEnergy) and topic.run is not None:
        expected = {"node": topic.node, **topic.run._asdict()}
    return all(getattr(message, name, None) in {None, value} for name, value in expected.items())
