"""The newest message of each node, GPU, run and zone, as the pages show them: bounded, whatever anybody publishes."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from publishers.messages.reports import (
    GpuDescription,
    GpuEnergy,
    GridSignal,
    LimitChange,
    NodeStatus,
    ProfileReport,
    RunEnergy,
    RunSchedule,
)
from publishers.messages.topics import ParsedTopic, RunKey

MAX_NODES: Final = 1_024
MAX_GPUS: Final = 4_096
MAX_RUNS: Final = 4_096
MAX_DECISIONS: Final = 500
"""The newest changes of limits since the start; older ones are in the history."""
Shown = NodeStatus | GpuEnergy | LimitChange | RunEnergy | ProfileReport | RunSchedule | GridSignal


class GpuKey(NamedTuple):
    """A GPU: the node, and its UUID there."""

    node: str
    gpu_uuid: str


@dataclass(kw_only=True)
class NodeState:
    """A node: its newest status, and when that arrived here [Unix s]."""

    status: NodeStatus
    heard_s: float


@dataclass(kw_only=True)
class GpuState:
    """A GPU: what it draws, its limit and why, and when either arrived here last [Unix s]."""

    energy: GpuEnergy | None = None
    limit: LimitChange | None = None
    heard_s: float = 0.0


@dataclass(kw_only=True)
class RunState:
    """A run: what it has used, its curve, its plan; `parts` are the energies of its nodes, where it has several."""

    energy: RunEnergy | None = None
    profile: ProfileReport | None = None
    schedule: RunSchedule | None = None
    parts: dict[str, RunEnergy] = field(default_factory=dict)
    heard_s: float = 0.0


class SiteState:
    """Folds checked messages; what would be one too many is counted, and not taken.

    Attributes:
        nodes: by name.
        gpus: by node and UUID.
        runs: by user, job and run.
        grid: by zone, and "carbon" or "price"; with history and forecast.
        decisions: the newest changes of limits, the newest last.
        n_refused: how many messages were about one node, GPU or run too many.
        version: grows with each message that changed anything.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, NodeState] = {}
        self.gpus: dict[GpuKey, GpuState] = {}
        self.runs: dict[RunKey, RunState] = {}
        self.grid: dict[tuple[str, str], GridSignal] = {}
        self.decisions: deque[LimitChange] = deque(maxlen=MAX_DECISIONS)
        self.n_refused = 0
        self.version = 0

    def take(self, topic: ParsedTopic, message: Shown, now_s: float) -> None:
        """Keep a message that is valid and speaks for the names in its topic; `now_s` is when it arrived [Unix s]."""
        raise NotImplementedError

    def clear(self, topic: ParsedTopic) -> None:
        """Forget what a topic had retained: its newest message was empty."""
        raise NotImplementedError

    def forget(self, now_s: float) -> None:
        """Drop what has ended or fallen silent for so long that no page shows it any more."""
        raise NotImplementedError

    def description_of(self, key: GpuKey) -> GpuDescription | None:
        """Return what the status of its node says of a GPU; None: nothing, or no status."""
        raise NotImplementedError
