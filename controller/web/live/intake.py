"""What a site's process takes from the bus into its history (energies, changes of limits, the grid) and its pages.

These show also the status of nodes, and the curves and plans of runs. Anybody may publish anything: what is too long,
invalid, of another topic than it says, of the future, or older than what is kept is counted and dropped before it
waits for the disk.
"""

from typing import Final

import msgspec

from controller.history.energy_history.plausibility import FUTURE_S
from controller.history.energy_history.recorder import HistoryRecorder
from controller.ports import Bus
from controller.runtime.clock import Clock
from controller.web.live.site_state import Shown, SiteState
from policies.vocabulary.units import DAY_S
from publishers.messages.codec import DecodeError, decode, encode
from publishers.messages.reports import (
    GpuEnergy,
    GridSignal,
    JobPosterior,
    LimitChange,
    NodeStatus,
    ProfileReport,
    RunEnergy,
    RunSchedule,
)
from publishers.messages.topics import ParsedTopic, Topics
from publishers.shared.log_once import InvalidMessages

MAX_RECORD_BYTES: Final = 8 << 10
"""Of a record; those of runs have some 1,500 bytes."""
MAX_BYTES: Final = {
    NodeStatus: 32 << 10,
    ProfileReport: 128 << 10,
    RunSchedule: 128 << 10,
    JobPosterior: 128 << 10,
    GridSignal: 256 << 10,
}
"""Of messages that are lists: of 64 GPUs, 512 points, 512 entries, 256 batch sizes, and 1,000 values of which 4,096 may
be."""
MAX_GPU_INDEX: Final = 1_023
MAX_ZONES: Final = 64
"""Of the grid, until the next start: each may fill a row a quarter-hour."""
MAX_SIGNAL_AGE_S: Final = DAY_S
REFUSED_S: Final = 300.0
"""Where nothing else came for so long, refused messages are trouble [s]."""
_FOREIGN: Final = "is no topic of the history or the pages"
_NOT_RECORDED: Final = (NodeStatus, ProfileReport, RunSchedule, JobPosterior)
_RUN_KINDS: Final[dict[str, type[Shown]]] = {"energy": RunEnergy, "profile": ProfileReport, "schedule": RunSchedule}
_GPU_KINDS: Final[dict[str, type[Shown]]] = {"energy": GpuEnergy, "limit": LimitChange}


def site_filters(topics: Topics) -> tuple[str, ...]:
    """Return the filters of all that is recorded or shown of a site."""
    return (
        topics.node_status(None),
        topics.run_filter("profile"),
        topics.run_filter("schedule"),
        topics.run_filter("energy"),
        topics.part_filter("energy"),
        topics.gpu(None, None, "energy"),
        topics.gpu(None, None, "limit"),
        topics.grid(None, "carbon"),
        topics.grid(None, "price"),
        topics.job(None, "posterior"),
    )


class SiteIntake:
    """Takes the messages of all nodes.

    Args:
        topics: those below the configured root.
        recorder: takes what is valid and of the history.
        state: takes all that is valid.
        clock: the time.
        retention_s: what is older is not kept [s].

    Attributes:
        invalid_messages: counts the rest.
        n_heard: how many messages were taken.
    """

    def __init__(
        self, topics: Topics, recorder: HistoryRecorder, state: SiteState, *, clock: Clock, retention_s: float
    ) -> None:
        self.invalid_messages = InvalidMessages(clock.now_s)
        self.n_heard = 0
        self._refused_s: list[float] = []  # since the last one was taken: the first and the last [Unix s]
        self._refusal = ""
        self._zones: set[str] = set()
        self._topics = topics
        self._recorder = recorder
        self._state = state
        self._clock = clock
        self._retention_s = retention_s

    def subscribe(self, bus: Bus) -> None:
        """Subscribe to all that is recorded or shown: before the bus connects, which sends all filters at once."""
        for topic_filter in site_filters(self._topics):
            bus.subscribe(topic_filter, self.take, qos=1)

    def unsubscribe(self, bus: Bus) -> None:
        """Undo `subscribe`."""
        for topic_filter in site_filters(self._topics):
            bus.unsubscribe(topic_filter, self.take)

    def take(self, topic: str, payload: bytes) -> None:
        """Take a message; an empty one clears what was retained."""
        parsed = self._topics.parse(topic)
        if not payload:
            if parsed is not None:
                self._state.clear(parsed)
            return
        try:
            if parsed is None:
                raise ValueError(_FOREIGN)  # noqa: TRY301 — counted as what is wrong with a message
            message = self._checked(parsed, payload)
        except (DecodeError, ValueError) as error:
            self.invalid_messages.add(topic, str(error))
            self._refusal = f"{topic} {error}"
            self._refused_s = [*self._refused_s[:1], self._clock.now_s()]
            return
        self.n_heard += 1
        self._refused_s = []
        self._state.take(parsed, message, self._clock.now_s())
        if isinstance(message, GridSignal):
            self._recorder.record(topic, encode(msgspec.structs.replace(message, values=[])))
        elif not isinstance(message, _NOT_RECORDED):
            self._recorder.record(topic, payload)

    @property
    def fault(self) -> str:
        """Return that all messages are refused, and why the last one was; "" while any is taken, or none comes."""
        now_s = self._clock.now_s()
        if not self._refused_s or now_s - self._refused_s[0] < REFUSED_S or now_s - self._refused_s[-1] > REFUSED_S:
            return ""
        return (
            f"no message was taken for {now_s - self._refused_s[0]:.0f} s, all were refused, the last: {self._refusal}"
        )

    def _checked(self, topic: ParsedTopic, payload: bytes) -> Shown:
        """Return a message.

        Raises:
            ValueError: it is not believed, and why; DecodeError is one.
        """
        kind = _kind_of(topic)
        if kind is None:
            raise ValueError(_FOREIGN)
        max_bytes = MAX_BYTES.get(kind, MAX_RECORD_BYTES)
        if len(payload) > max_bytes:
            raise ValueError(f"{len(payload)} bytes: must be at most {max_bytes}")
        if b"\\u0000" in payload:  # PostgreSQL would refuse it, with all that is written beside it
            raise ValueError("holds a NUL")
        message = decode(payload, kind)
        if (getattr(message, "gpu_index", None) or 0) > MAX_GPU_INDEX:
            raise ValueError(f"gpu_index: must be at most {MAX_GPU_INDEX}")
        if not _speaks_for_itself(message, topic):
            raise ValueError("names another run, node, GPU or zone than its topic")
        self._check_time(message)
        return message

    def _check_time(self, message: Shown) -> None:
        if isinstance(message, NodeStatus) and message.time_s is None:
            return  # as of an older controller
        ahead_s = (message.time_s or 0.0) - self._clock.now_s()
        if not -self._retention_s <= ahead_s <= FUTURE_S:
            raise ValueError(f"is {ahead_s:.0f} s ahead of the clock here")
        if isinstance(message, GridSignal):
            self._check_signal(message, ahead_s)

    def _check_signal(self, signal: GridSignal, ahead_s: float) -> None:
        if ahead_s < -MAX_SIGNAL_AGE_S:
            raise ValueError(f"is {-ahead_s:.0f} s old: must be at most {MAX_SIGNAL_AGE_S:.0f} s")
        if signal.zone not in self._zones and len(self._zones) == MAX_ZONES:
            raise ValueError(f"is of one zone more than {MAX_ZONES}")
        self._zones.add(signal.zone)


def _kind_of(topic: ParsedTopic) -> type[Shown] | None:
    """Return what a topic carries; None: nothing that is taken."""
    if topic.zone is not None:
        return GridSignal
    if topic.job is not None:
        return JobPosterior
    if topic.run is not None:
        return _RUN_KINDS.get(topic.leaf) if topic.node is None or topic.leaf == "energy" else None
    if topic.gpu_uuid is not None:
        return _GPU_KINDS.get(topic.leaf)
    return NodeStatus if topic.leaf == "status" else None


def _speaks_for_itself(message: Shown, topic: ParsedTopic) -> bool:
    """Return whether the names in a message are those of its topic, where it has any."""
    if isinstance(message, GridSignal):
        return (message.zone, message.kind == "price") == (topic.zone, topic.leaf == "price")
    expected: dict[str, str | None] = {"node": topic.node, "gpu_uuid": topic.gpu_uuid}
    if topic.run is not None:
        expected = {"node": topic.node, **topic.run._asdict()}
    if topic.job is not None:
        expected = {**topic.job._asdict()}
    return all(getattr(message, name, None) in {None, value} for name, value in expected.items())
