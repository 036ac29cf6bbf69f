"""The newest message of each node, GPU, run and zone, as the pages show them: bounded, whatever anybody publishes."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

import msgspec

from policies.vocabulary.units import DAY_S
from publishers.messages.reports import (
    GpuDescription,
    GpuEnergy,
    GridSignal,
    JobPosterior,
    LimitChange,
    NodeStatus,
    ProfileReport,
    RunEnergy,
    RunSchedule,
)
from publishers.messages.topics import PROBE, JobName, ParsedTopic, RunKey

MAX_NODES: Final = 1_024
MAX_GPUS: Final = 4_096
MAX_RUNS: Final = 4_096
MAX_PARTS: Final = 4_096
"""Of all runs together."""
MAX_SIGNALS: Final = 128
MAX_JOBS: Final = 4_096
MAX_DECISIONS: Final = 500
"""The newest changes of limits; older ones are in the history."""
ENDED_S: Final = DAY_S
"""For so long an ended or silent run is known here; then the history alone has it."""
GONE_S: Final = 7 * DAY_S
"""For so long nodes and GPUs are missed."""
SILENT_S: Final = 180.0
"""After this, what a GPU or a run said last does not hold any more, if it used to say so more often [s]."""
SILENT_PERIODS: Final = 3.0
"""Otherwise after so many of its periods."""
MAX_PERIOD_S: Final = 3_600.0
"""Longer ones are of a clock that was set, or of an outage [s]."""
Shown = NodeStatus | GpuEnergy | LimitChange | RunEnergy | ProfileReport | RunSchedule | GridSignal | JobPosterior


class GpuKey(NamedTuple):
    """A GPU: the node, and its UUID there."""

    node: str
    gpu_uuid: str

    def __str__(self) -> str:
        """Return how logs name it."""
        return "/".join(self)


Subject = RunKey | GpuKey
"""What an order is about: a run, or a GPU with each run that has it."""


Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(kw_only=True)
class NodeState:
    """A node: its newest status, and when that arrived here [Unix s]."""

    status: NodeStatus
    heard_s: float


@dataclass(kw_only=True)
class Speaker:
    """Who publishes energies, periodically.

    Attributes:
        heard_s: when any message about it arrived here last [Unix s].
        spoke_s: when a new energy arrived, by the clock here, since its node's may be wrong; the first one, which the
            broker may have kept for long, counts as of its own time [Unix s].
        period_s: between the times of the last two energies [s]; 0: there was one. A clock that was set back makes it
            negative.
    """

    heard_s: float = 0.0
    spoke_s: float = 0.0
    period_s: float = 0.0

    def on_energy(self, known: GpuEnergy | RunEnergy | None, new: GpuEnergy | RunEnergy, now_s: float) -> None:
        """Note an energy that arrives [Unix s]; the known one may be sent again, which says nothing."""
        if known is None:
            self.spoke_s = min(new.time_s or now_s, now_s)
        elif known.time_s != new.time_s:
            self.spoke_s = now_s
            self.period_s = min((new.time_s or 0.0) - (known.time_s or 0.0), MAX_PERIOD_S)

    def is_heard(self, now_s: float) -> bool:
        """Return whether what it said last still holds: not where the clock was set back since, either."""
        return abs(now_s - self.spoke_s) <= max(SILENT_S, SILENT_PERIODS * self.period_s)


@dataclass(kw_only=True)
class GpuState(Speaker):
    """A GPU: what it draws, its limit and why; the newest of each."""

    energy: GpuEnergy | None = None
    limit: LimitChange | None = None


@dataclass(kw_only=True)
class RunState(Speaker):
    """A run: what it has used, its curve, its plan; `parts` are the energies of its nodes, where it has several."""

    energy: RunEnergy | None = None
    profile: ProfileReport | None = None
    schedule: RunSchedule | None = None
    parts: dict[str, RunEnergy] = field(default_factory=dict)


class SiteState:
    """Folds checked messages; what would be one too many is counted, and not taken.

    Attributes:
        nodes: by name.
        gpus: by node and UUID.
        runs: by user, job and run.
        grid: by zone, and "carbon" or "price"; with history and forecast.
        jobs: what is learnt of their batch sizes, until that is cleared.
        decisions: the newest changes of limits, the newest last; those from before the start are the history's.
        n_refused: how many messages were about one node, GPU, run or job too many.
        version: grows with each message that changed anything.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, NodeState] = {}
        self.gpus: dict[GpuKey, GpuState] = {}
        self.runs: dict[RunKey, RunState] = {}
        self.grid: dict[tuple[str, str], GridSignal] = {}
        self.jobs: dict[JobName, JobPosterior] = {}
        self.decisions: deque[LimitChange] = deque(maxlen=MAX_DECISIONS)
        self.n_refused = 0
        self.version = 0
        self._n_parts = 0

    def take(self, topic: ParsedTopic, message: Shown, now_s: float) -> None:
        """Keep a message that is valid and speaks for the names in its topic; `now_s` is when it arrived [Unix s]."""
        if _is_probe(topic):
            return
        match message:
            case NodeStatus() if topic.node is not None:
                self._take_status(msgspec.structs.replace(message, node=topic.node), now_s)
            case GpuEnergy() | LimitChange() if topic.node is not None and topic.gpu_uuid is not None:
                self._take_of_gpu(GpuKey(topic.node, topic.gpu_uuid), message, now_s)
            case RunEnergy() | ProfileReport() | RunSchedule() if topic.run is not None:
                self._take_of_run(topic.run, topic.node, message, now_s)
            case JobPosterior() if topic.job is not None:
                self._take_of_job(topic.job, message)
            case GridSignal() if topic.zone is not None:
                self._is_taken(self.grid, (topic.zone, topic.leaf), message, MAX_SIGNALS)
            case _:
                return

    def _take_status(self, status: NodeStatus, now_s: float) -> None:
        self._is_taken(self.nodes, status.node or "", NodeState(status=status, heard_s=now_s), MAX_NODES)

    def _take_of_gpu(self, key: GpuKey, message: GpuEnergy | LimitChange, now_s: float) -> None:
        gpu = self.gpus.get(key) or GpuState()
        if not self._is_taken(self.gpus, key, gpu, MAX_GPUS):
            return
        message = msgspec.structs.replace(message, node=key.node, gpu_uuid=key.gpu_uuid)
        gpu.heard_s = now_s
        if isinstance(message, GpuEnergy):
            gpu.on_energy(gpu.energy, message, now_s)
            gpu.energy = message
        elif message != gpu.limit:  # else the broker has sent the retained one again
            gpu.limit = message
            self._add_decision(message)

    def _take_of_job(self, job: JobName, message: JobPosterior) -> None:
        """Keep what is learnt of a job; of too many, which do not end as runs do, that heard of longest ago goes."""
        if self.jobs.pop(job, None) is None and len(self.jobs) >= MAX_JOBS:
            del self.jobs[next(iter(self.jobs))]
            self.n_refused += 1
        self.jobs[job] = message
        self.version += 1

    def take_past(self, changes: Sequence[LimitChange]) -> None:
        """Take the changes of limits that the history has, newest first; what was heard of them stays."""
        known = {_change_of(change) for change in self.decisions}
        for change in reversed(changes):
            if _change_of(change) not in known:
                self._add_decision(change)
                self.version += 1

    def _add_decision(self, change: LimitChange) -> None:
        """Put a change where its time says: retained ones come in any order, and may be known from the history."""
        later = []
        while self.decisions and self.decisions[-1].time_s >= change.time_s:
            newer = self.decisions.pop()
            if _change_of(newer) != _change_of(change):
                later.append(newer)
        same_time = [newer for newer in later if newer.time_s == change.time_s]
        if len(self.decisions) + len(later) < MAX_DECISIONS or self.decisions or same_time:
            later.insert(len(later) - len(same_time), change)
        self.decisions.extend(reversed(later))

    def _take_of_run(
        self, key: RunKey, node: str | None, message: RunEnergy | ProfileReport | RunSchedule, now_s: float
    ) -> None:
        run = self.runs.get(key) or RunState()
        is_part = node is not None and isinstance(message, RunEnergy)
        if is_part and node not in run.parts and self._n_parts >= MAX_PARTS:
            self.n_refused += 1
            return
        if not self._is_taken(self.runs, key, run, MAX_RUNS):
            return
        run.heard_s = now_s
        match message:
            case RunEnergy() if node is not None:
                self._n_parts += node not in run.parts
                run.parts[node] = msgspec.structs.replace(message, node=node, **key._asdict())
            case RunEnergy():
                run.on_energy(run.energy, message, now_s)
                run.energy = msgspec.structs.replace(message, **key._asdict())
            case ProfileReport():
                run.profile = msgspec.structs.replace(message, **key._asdict())
            case RunSchedule():
                run.schedule = msgspec.structs.replace(message, **key._asdict())

    def _is_taken(self, known: dict[Key, Value], key: Key, value: Value, n_most: int) -> bool:
        """Keep a value, if there is room, and return whether."""
        if key not in known and len(known) >= n_most:
            self.n_refused += 1
            return False
        known[key] = value
        self.version += 1
        return True

    def clear(self, topic: ParsedTopic) -> None:
        """Forget what a topic had retained: its newest message was empty."""
        if topic.zone is not None:
            is_known = self.grid.pop((topic.zone, topic.leaf), None) is not None
        elif topic.job is not None:
            is_known = self.jobs.pop(topic.job, None) is not None
        elif topic.run is not None:
            is_known = self._clear_of_run(topic.run, topic.node, topic.leaf)
        elif topic.gpu_uuid is not None and topic.node is not None:
            is_known = self._clear_of_gpu(GpuKey(topic.node, topic.gpu_uuid), topic.leaf)
        else:
            is_known = topic.leaf == "status" and self.nodes.pop(topic.node or "", None) is not None
        self.version += is_known

    def _clear_of_gpu(self, key: GpuKey, leaf: str) -> bool:
        gpu = self.gpus.get(key)
        if gpu is None or leaf not in {"energy", "limit"}:
            return False
        setattr(gpu, leaf, None)
        if gpu.energy is None and gpu.limit is None:
            del self.gpus[key]
        return True

    def _clear_of_run(self, key: RunKey, node: str | None, leaf: str) -> bool:
        run = self.runs.get(key)
        if run is None or leaf not in {"energy", "profile", "schedule"}:
            return False
        if node is None:
            setattr(run, leaf, None)
        elif leaf == "energy" and run.parts.pop(node, None) is not None:
            self._n_parts -= 1
        if run.energy is None and run.profile is None and run.schedule is None and not run.parts:
            del self.runs[key]
        return True

    def forget(self, now_s: float) -> None:
        """Drop what has ended or fallen silent for so long that no page shows it any more."""
        ended = [key for key, run in self.runs.items() if now_s - _run_said_s(run) > ENDED_S]
        self._n_parts -= sum(len(self.runs[key].parts) for key in ended)
        self._drop(self.runs, ended)
        said_s = {name: _node_said_s(node) for name, node in self.nodes.items()}
        for key, gpu in self.gpus.items():  # a last will is as old as its connection, which may have lasted for weeks
            said_s[key.node] = max(said_s.get(key.node, 0.0), _gpu_said_s(gpu))
        gone = [name for name in self.nodes if not self.is_online(name) and now_s - said_s[name] > GONE_S]
        self._drop(self.nodes, gone)
        silent = [key for key, gpu in self.gpus.items() if now_s - _gpu_said_s(gpu) > GONE_S]
        self._drop(self.gpus, [key for key in silent if not self.is_online(key.node)])
        self._drop(self.grid, [key for key, signal in self.grid.items() if now_s - (signal.time_s or 0.0) > GONE_S])

    def _drop(self, known: dict[Key, Value], keys: Iterable[Key]) -> None:
        for key in keys:
            del known[key]
            self.version += 1

    def is_online(self, node: str) -> bool:
        """Return whether the controller of a node is connected; what its GPUs said holds only while it is."""
        known = self.nodes.get(node)
        return known is not None and known.status.state == "online"

    def description_of(self, key: GpuKey) -> GpuDescription | None:
        """Return what the status of its node says of a GPU; None: nothing, or no status."""
        node = self.nodes.get(key.node)
        return next((gpu for gpu in node.status.gpus if gpu.uuid == key.gpu_uuid), None) if node else None


def _change_of(change: LimitChange) -> tuple[object, ...]:
    """Return what no two changes of limits share: of which GPU it is, and its time."""
    return change.node, change.gpu_uuid, change.time_s


def _run_said_s(run: RunState) -> float:
    messages = (run.energy, run.profile, run.schedule, *run.parts.values())
    return _said_s(run.heard_s, *(message.time_s for message in messages if message is not None))


def _gpu_said_s(gpu: GpuState) -> float:
    return _said_s(gpu.heard_s, *(message.time_s for message in (gpu.energy, gpu.limit) if message is not None))


def _node_said_s(node: NodeState) -> float:
    return _said_s(node.heard_s, node.status.time_s)


def _said_s(heard_s: float, *times_s: float | None) -> float:
    """Return when the newest of some messages was published [Unix s]: retained ones arrive late."""
    known = [time_s for time_s in times_s if time_s is not None]
    return min(max(known), heard_s) if known else heard_s


def _is_probe(topic: ParsedTopic) -> bool:
    """Return whether a topic only tests the broker."""
    names = (topic.run.job if topic.run else None, topic.job.job if topic.job else None, topic.gpu_uuid, topic.zone)
    return any(name is not None and name.startswith(PROBE) for name in names)
