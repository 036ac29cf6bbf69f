"""Ports: the protocols through which the workers use GPUs, the bus, the signal, and each other.

A worker gets its ports as constructor arguments. It does not know what implements them: NVML, a simulation, a fake.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final, Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Meta

from controller.errors import ControllerError
from policies.vocabulary.profile import LIMIT_TOLERANCE_W
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import Values
from publishers.messages.codec import Message, TimeS, encode
from publishers.messages.topics import RunKey
from publishers.mqtt.receiving.quotas import MessageQuotas
from publishers.shared.printable import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRange:
    """What a GPU accepts as power limit, read live: it changes with drivers and resets.

    Attributes:
        min_power_limit_w, max_power_limit_w: the bounds [W].
        default_power_limit_w: what a reloaded driver sets, or None where that cannot be read [W].
    """

    min_power_limit_w: float
    max_power_limit_w: float
    default_power_limit_w: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveLimit:
    """The power limit in force: what was requested last, and what the job really gets after every other limiter."""

    requested_power_limit_w: float
    enforced_power_limit_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A sample of a GPU's meters.

    Attributes:
        time_ns: when it was taken, on the monotonic clock of the node [ns].
        energy_j: the cumulative energy counter since the driver was loaded, or None where the GPU has none [J].
        power_w: the present draw, or None where it cannot be read, or is not believed [W].
        utilization_ratio: the share of time in which a kernel ran (0 to 1), or None.
        temperature_c: the GPU's temperature [°C], or None.
        unmeasured_s: of a meter, for how long of the time until then no reading was believed [s].
    """

    time_ns: int
    power_w: float | None
    energy_j: float | None = None
    utilization_ratio: float | None = None
    temperature_c: float | None = None
    unmeasured_s: float = 0.0


UNLISTED: Final = -1
"""The index of a GPU that the driver has listed and lists no more; it is never published."""


class Gpu(Protocol):
    """One GPU. Every call ends within its deadline; failures are `GpuError`s."""

    @property
    def uuid(self) -> str:
        """Return the identity of the GPU."""

    @property
    def index(self) -> int:
        """Return its index on this node: for people, and for claims by index; or `UNLISTED`."""

    @property
    def model(self) -> str:
        """Return its model, such as `NVIDIA A40`."""

    async def read_range(self) -> LimitRange:
        """Return what it accepts as power limit."""

    async def read_limit(self) -> LiveLimit:
        """Return the power limit in force."""

    async def set_power_limit(self, power_limit_w: float) -> None:
        """Request a power limit [W].

        Raises:
            GpuLimitError: it lies outside what the GPU accepts.
            GpuPermissionError: this process may not write.
        """

    async def read_sample(self) -> Sample:
        """Return a sample of its meters."""

    async def read_processes(self) -> frozenset[int] | None:
        """Return the ids of the processes that compute on it, or None where that cannot be seen."""

    async def read_mig(self) -> bool:
        """Return whether it is partitioned (MIG), so that a limit would affect several tenants."""

    async def read_persistence(self) -> bool | None:
        """Return whether the driver keeps the limit when its last client leaves, or None where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """What the operating system knows of a process.

    Attributes:
        pid: its id as this process counts.
        parent_pid: that of its parent; 0 where it has none that can be seen.
        uid: its user.
        name: its short name, for people.
        namespace_pids: its id in each pid namespace that it is in, its own innermost last.
        pid_namespace: the number of the innermost one, or None where that cannot be read.
        container: what tells its container from others: its control group; "" outside of any pid namespace but ours.
        marks: the marks of its threads: the runs to which the process itself says that it belongs.
    """

    pid: int
    parent_pid: int
    uid: int
    name: str
    namespace_pids: tuple[int, ...]
    pid_namespace: int | None = None
    container: str = ""
    marks: frozenset[str] = frozenset()


Lineage = tuple[ProcessIdentity, ...]
"""A process and its ancestors, nearest first."""


class ProcessTable(Protocol):
    """The processes of this machine."""

    @property
    def sees_all(self) -> bool:
        """Return whether every process of the machine has an id here: else a driver's list may be of other ids."""

    async def read(self, pids: Iterable[int]) -> Mapping[int, Lineage | None]:
        """Return each process with its ancestors; None: it cannot be seen. One that has ended is left out."""

    async def uid_of(self, user: str) -> int | None:
        """Return the id of the local account of a name; None where there is none."""


class Backend(Protocol):
    """The GPUs of this node."""

    @property
    def driver(self) -> str:
        """Return the driver and its version, for people."""

    @property
    def faults(self) -> Sequence[ControllerError]:
        """Return why GPUs of the node, or all of them, do not answer yet; empty if there are none."""

    async def open(self) -> Sequence[Gpu]:
        """Return the GPUs that answer.

        Raises:
            DriverUnavailableError: there is no driver, or no library, or it does not answer.
            BackendError: it is the wrong Python package.
        """

    async def open_late(self) -> Sequence[Gpu]:
        """Return the GPUs that answer now, and did not before; does not fail: `faults` tells of the others."""

    async def close(self) -> None:
        """Close the driver."""


class Bus(Protocol):
    """The message bus. Neither call waits, and neither fails while the broker is away."""

    @property
    def connected(self) -> bool:
        """Return whether the broker is connected now."""

    @property
    def last_error(self) -> str | None:
        """Return why the broker is not connected, or what it rejected, in a sentence; None while all is well."""

    @property
    def quotas(self) -> MessageQuotas | None:
        """Return how many messages of each sender are read; None: all."""

    def subscribe(
        self,
        topic_filter: str,
        handler: Callable[[str, bytes], None],
        *,
        qos: int = 0,
        on_retained: Callable[[str, bytes], None] | None = None,
    ) -> None:
        """Call `handler(topic, payload)` for each message under `topic_filter`, now and after every reconnection.

        What the broker had retained goes to `on_retained` instead, where that is given.
        """

    def unsubscribe(self, topic_filter: str, handler: Callable[[str, bytes], None]) -> None:
        """Undo one `subscribe`."""

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> None:
        """Send a message, or keep it until the broker is back; a full outbox drops its oldest."""


M = TypeVar("M", bound=Message)


class TopicPublisher(Generic[M]):
    """Publishes messages of one kind on one topic; `ids` are the fields that name what the topic names."""

    def __init__(self, bus: Bus, topic: str, *, qos: int, **ids: str | int) -> None:
        self._bus = bus
        self._ids = ids
        self._topic = topic
        self._qos = qos

    def publish(self, message: M) -> None:
        """Publish a message; the broker retains the latest."""
        self._bus.publish(
            self._topic, encode(msgspec.structs.replace(message, **self._ids)), qos=self._qos, retain=True
        )


class Hold(StrEnum):
    """Who holds a GPU's power limit."""

    FREE = "free"
    """No run holds it: it has its prior limit."""
    HELD = "held"
    """A run holds it, and the limit is the one we wrote."""
    YIELDED = "yielded"
    """Another writer changed it: it is left alone until the hold ends."""
    OBSERVING = "observing"
    """It must not be written (no permission, MIG): it is only measured."""
    SUSPECT = "suspect"
    """It does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The power limit that a run asks for, and why.

    `speed_ratio` is the rate of the run at that limit over its rate at the highest one; None: its curve is not known,
    or it is to wait. `pause_why` is why its training is to wait, and until when, in a sentence for its owner; "": it is
    to iterate.
    """

    power_limit_w: float
    reason: str
    detail: str
    job: str
    signal: str | None = None
    speed_ratio: float | None = None
    pause_why: str = ""


class Blocked(NamedTuple):
    """Why a run may have no limit: a stable code, and a sentence."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitState:
    """A GPU's power limit as its limiter knows it.

    Attributes:
        hold: who holds it.
        prior_power_limit_w: what will be restored [W].
        floor_power_limit_w, ceiling_power_limit_w: targets are clamped to these [W].
        requested_power_limit_w: the requested limit that is read back [W].
        enforced_power_limit_w: what the job gets since `since_ns` [W].
        since_ns: when the limit last changed, on the monotonic clock of the node [ns].
        asked_power_limit_w: what was asked for, where that was seen to take effect: boards may make another limit of
            it [W].
        reason, detail: why it is as it is: a stable code, and a sentence; "" before anything was done.
    """

    hold: Hold
    prior_power_limit_w: float
    floor_power_limit_w: float
    ceiling_power_limit_w: float
    requested_power_limit_w: float
    enforced_power_limit_w: float
    since_ns: int
    asked_power_limit_w: float | None = None
    reason: str = ""
    detail: str = ""

    @property
    def asked_for_w(self) -> float:
        """Return the limit that was asked for, or that is in force without our having asked for it [W]."""
        asked_w = self.asked_power_limit_w
        return self.requested_power_limit_w if asked_w is None else asked_w

    def enforces(self, target: Target) -> bool:
        """Return whether the job gets the limit of a target."""
        return abs(self.enforced_power_limit_w - target.power_limit_w) <= LIMIT_TOLERANCE_W


class PowerLimiter(Protocol):
    """The power limiter of one GPU, as a run sees it. One run holds it at a time."""

    @property
    def gpu(self) -> Gpu:
        """Return the GPU behind it, for its identity."""

    @property
    def state(self) -> LimitState | None:
        """Return the state of the limit; None before it was first read."""

    def request(self, target: Target) -> None:
        """Ask for a limit; only the latest counts."""

    def release(self, *, reason: str, detail: str) -> None:
        """End the hold: the prior limit is restored."""


class EnergyMeter(Protocol):
    """The energy meter of one GPU, as a run sees it."""

    @property
    def latest(self) -> Sample | None:
        """Return the newest sample; None before the first."""

    def samples_since(self, time_ns: int, *, until_ns: int | None = None) -> Sequence[Sample]:
        """Return the samples from one moment to another [ns], oldest first, with the nearest ones outside of them.

        The first is the last one at or before `time_ns`, the last is the first one at or past `until_ns`, where there
        are such; None: to the newest. Each has `energy_j` (integrated where no counter is).
        """

    def counter_at_j(self, time_ns: int) -> float | None:
        """Return the value of the GPU's own counter, which outlives the controller, at a moment [J].

        None where it has none, or one that is not believed, or nothing was read yet.
        """

    def most_j(self, duration_s: float) -> float:
        """Return the most energy that the counter can show for a time of the board [J]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseState:
    """What is known of the pauses of a run.

    Attributes:
        state: `running`, `asked` (it was asked to pause, and has not stopped yet) or `paused`: the training says so.
        pausable: whether it can be paused now.
        max_pause_s: how long the training lets a pause last [s]; None: it is not pausable.
        paused_for_s: for how long it has been paused now [s].
        ends_in_s: when the pause ends, or is withdrawn where it has not begun [s].
        paused_s: for how long it was paused before [s].
        why, by: why it is to pause, and who asks for it.
        ended_because: why the last pause has ended.
    """

    state: Literal["running", "asked", "paused"]
    pausable: bool
    max_pause_s: float | None
    paused_for_s: float | None
    ends_in_s: float | None
    paused_s: float
    why: str
    by: str
    ended_because: str


class Pauses(Protocol):
    """The pauses of the runs of this node, as people ask for them. Calls about one run may raise PauseRefusedError."""

    def runs(self) -> Mapping[RunKey, PauseState]:
        """Return the runs that train on this node now."""

    def pause(self, key: RunKey, *, why: str, by: str, for_s: float | None) -> PauseState:
        """Ask a run to pause, or change until when and why it does."""

    def resume(self, key: RunKey, *, why: str, by: str) -> PauseState:
        """End the pause of a run, if it has one."""

    def state_of(self, key: RunKey) -> PauseState:
        """Return what is known of a run's pauses."""


MAX_POWER_W: Final = 1e6
MaxSlowdownRatio = Annotated[float, Meta(ge=1, le=10)]
PinnedW = Annotated[float, Meta(gt=0, le=MAX_POWER_W)]


def moment(time_s: float) -> str:
    """Return a time [Unix s] in words."""
    return f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%d %H:%M} UTC"


class StandingOrder(Protocol):
    """What a person has ordered of a run until a time [Unix s], or until it ends; when, why, and who."""

    @property
    def set_at_s(self) -> float:
        """Return when it was ordered [Unix s]."""

    @property
    def until_s(self) -> float | None:
        """Return when it ends [Unix s]; None: with the run."""

    @property
    def why(self) -> str:
        """Return why."""

    @property
    def by(self) -> str:
        """Return who has ordered it."""

    @property
    def detail(self) -> str:
        """Return all of this in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A power limit at which a person holds all GPUs of a run, or of whichever run has one GPU, whatever its plan says.

    Attributes:
        power_limit_w: what was asked for [W]; no GPU gets more than its prior limit, nor what it does not take. None:
            the run is exempt, and has the prior limit.
        set_at_s: when it was asked for [Unix s].
        until_s: when it ends [Unix s].
        why, by: why, and by whom.
    """

    power_limit_w: PinnedW | None
    set_at_s: TimeS
    until_s: TimeS
    why: Annotated[str, Meta(max_length=120)]
    by: Annotated[str, Meta(max_length=256)]

    @property
    def detail(self) -> str:
        """Return the reason for the limit, a sentence."""
        what = "exempt, at its prior limit," if self.power_limit_w is None else f"pinned to {self.power_limit_w:g} W"
        return f"{what} by {printable(self.by)} until {moment(self.until_s)}: {printable(self.why)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PinState:
    """What is known of the pin of a run.

    Attributes:
        state: `none`; `asked`: it is not confirmed yet; `waiting`: it is for a GPU that no run has now; `done`: all
            GPUs of the run on this node have been read back; `failed`: one cannot be set, or was not read back in time.
        power_limit_w: the limit that was asked for [W]; None: the run is exempt, and has its prior limit.
        applied_power_limit_w: the limit that is set, clamped to what each GPU may have [W].
        enforced_power_limit_w: the least limit that was read back from a GPU [W]; None: not all are confirmed.
        n_gpus: how many GPUs of this node it holds.
        set_at_s, until_s: from when to when [Unix s].
        why, by: why, and by whom.
        detail: why it is not in force, a sentence; "" where it is, and where there is none.
        ended_because: why the last pin has ended.
    """

    state: Literal["none", "asked", "waiting", "done", "failed"]
    power_limit_w: float | None = None
    applied_power_limit_w: float | None = None
    enforced_power_limit_w: float | None = None
    n_gpus: int = 0
    set_at_s: float | None = None
    until_s: float | None = None
    why: str = ""
    by: str = ""
    detail: str = ""
    ended_because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinPreview:
    """What a pin will do, before it is set.

    Attributes:
        power_limit_w: the limit that would be set, clamped to what each GPU may have [W].
        n_gpus: how many GPUs of this node the run has.
        speed_ratio: the speed of the run there, as a share of full speed; None: not known yet.
        power_w: the power of its GPUs of this node there [W]; None: not known yet.
        slowdown_ratio: how many times as long as at full speed the run will have been active at the end of the pin;
            None: not known yet.
        slowdown_ci90_ratio: the half-width of its 90 % interval.
        max_slowdown_ratio: how many times its plan allows; None: its objective is another one.
        sentence: all of this, in words.
    """

    power_limit_w: float
    n_gpus: int = 0
    speed_ratio: float | None = None
    power_w: float | None = None
    slowdown_ratio: float | None = None
    slowdown_ci90_ratio: float | None = None
    max_slowdown_ratio: float | None = None
    sentence: str = ""


MAX_PIN_S: Final = 7 * 86_400.0
"""No limit is pinned for longer."""
MAX_WHY: Final = 120
"""Characters of a reason."""


def pin_fault(power_limit_w: float | None, until_s: float, *, now_s: float) -> tuple[str, str] | None:
    """Return what is wrong with a limit [W] and a time [Unix s] in themselves; None: nothing.

    >>> pin_fault(205.0, 3_600.0, now_s=0.0)
    >>> pin_fault(205.0, 0.0, now_s=3_600.0)[0]
    'bad_time'
    """
    if power_limit_w is not None and not 0 < power_limit_w <= MAX_POWER_W:
        return "bad_limit", f"power_limit_w = {power_limit_w:g}: must be above 0, and {MAX_POWER_W:g} W at most"
    left_s = until_s - now_s
    if not 0 < left_s <= MAX_PIN_S:
        which = "has passed" if left_s <= 0 else f"is {left_s / 86_400:.3g} days ahead"
        return "bad_time", f"until_s = {until_s:.0f} {which}: a pin ends within {MAX_PIN_S / 86_400:g} days"
    return None


def why_fault(why: str) -> tuple[str, str] | None:
    """Return what is wrong with a reason; None: nothing.

    >>> why_fault("the room is hot")
    >>> why_fault(" ")[0]
    'bad_why'
    """
    if not why.strip():
        return "bad_why", "why is missing: say it for the people who wait for this run"
    if len(why) > MAX_WHY:
        return "bad_why", f"why has {len(why)} characters: {MAX_WHY} at most"
    return None if why.isprintable() else ("bad_why", "why has a character that is not printable, as a line break")


def sentence_of(seen: PinPreview) -> str:
    """Return what a pin will do, in words.

    >>> sentence_of(PinPreview(power_limit_w=205.0, n_gpus=2, speed_ratio=0.947, power_w=363.0))
    'at 205 W this run goes at 94.7 % of full speed and its 2 GPUs draw 363 W'
    >>> sentence_of(PinPreview(power_limit_w=205.0, n_gpus=1))
    'at 205 W: how fast this run is there, and what its GPU draws, is not known yet'
    """
    gpus = "its GPU draws" if seen.n_gpus == 1 else f"its {seen.n_gpus} GPUs draw"
    if seen.speed_ratio is None or seen.power_w is None:
        return f"at {seen.power_limit_w:g} W: how fast this run is there, and what {gpus}, is not known yet"
    words = (
        f"at {seen.power_limit_w:g} W this run goes at {100 * seen.speed_ratio:.1f} % of full speed and {gpus}"
        f" {seen.power_w:.0f} W"
    )
    if seen.max_slowdown_ratio is None:
        return words
    if seen.slowdown_ratio is None or seen.slowdown_ci90_ratio is None:
        return f"{words}; what that does to its time budget is not known yet"
    ends = [100 * (seen.slowdown_ratio - 1 + sign * seen.slowdown_ci90_ratio) for sign in (-1, 1)]
    allowed, over = 100 * (seen.max_slowdown_ratio - 1), 100 * (seen.slowdown_ratio - seen.max_slowdown_ratio)
    told = f"{words}; when the pin ends, it will have been slower by between {ends[0]:.1f} and {ends[1]:.1f} %"
    if over > 0:
        return f"{told}, over its budget of {allowed:.1f} % by {over:.1f} points"
    return f"{told}; its budget is {allowed:.1f} %"


PinOwner = RunKey | str
"""What is pinned: a run, or a GPU by its UUID, with each run that has it."""


class Pins(Protocol):
    """The pins of the runs and GPUs of this node, as people ask for them. Each call may raise OrderRefusedError."""

    def gpu_pins(self) -> Mapping[str, PinState]:
        """Return the GPUs that are pinned, by UUID."""

    def pin(self, owner: PinOwner, *, power_limit_w: float | None, until_s: float, why: str, by: str) -> PinState:
        """Hold all GPUs of a run at a limit [W] until a time [Unix s]; None: at the prior limit."""

    def preview(self, owner: PinOwner, *, power_limit_w: float, until_s: float) -> PinPreview:
        """Return what a pin would do; nothing is changed."""

    def release(self, owner: PinOwner, *, why: str, by: str) -> PinState:
        """End a pin, if there is one."""

    def state_of(self, owner: PinOwner) -> PinState:
        """Return what is known of a pin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a person wants of the plan of a run instead of its configured objective: a time budget, or a deadline.

    Attributes:
        max_slowdown_ratio: how many times as long as at full speed the run may be active, counted from `set_at_s`.
        deadline_s: by when it is to end [Unix s]; the other one is None.
        set_at_s: when it was asked for [Unix s].
        until_s: when it ends [Unix s]; None: with the run.
        why, by: why, and by whom.
    """

    max_slowdown_ratio: MaxSlowdownRatio | None = None
    deadline_s: TimeS | None = None
    set_at_s: TimeS
    until_s: TimeS | None = None
    why: Annotated[str, Meta(max_length=120)]
    by: Annotated[str, Meta(max_length=256)]

    @property
    def words(self) -> str:
        """Return what is wanted."""
        if self.max_slowdown_ratio is not None:
            return f"a time budget of {100 * (self.max_slowdown_ratio - 1):.3g} %"
        return f"a deadline at {moment(self.deadline_s or 0.0)}"

    @property
    def detail(self) -> str:
        """Return all of it in a sentence."""
        until = "" if self.until_s is None else f" until {moment(self.until_s)}"
        return f"{self.words} by {printable(self.by)}{until}: {printable(self.why)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalState:
    """What is known of the goal that a person has set for a run.

    Attributes:
        state: `none`: the configured one holds; `asked`: no plan follows it yet; `waiting`: it counts once a pin has
            ended, or the curve is measured; `done`: the plan follows it, and its limit was read back; `failed`: a GPU
            cannot be set, or was not read back in time.
        max_slowdown_ratio, deadline_s, set_at_s, until_s, why, by: as in `Goal`.
        enforced_power_limit_w: the least limit that was read back from a GPU [W]; None: not all are confirmed.
        detail: why it is not in force, a sentence; "" where it is, and where there is none.
        ended_because: why the last one has ended.
    """

    state: Literal["none", "asked", "waiting", "done", "failed"]
    max_slowdown_ratio: float | None = None
    deadline_s: float | None = None
    set_at_s: float | None = None
    until_s: float | None = None
    why: str = ""
    by: str = ""
    enforced_power_limit_w: float | None = None
    detail: str = ""
    ended_because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalPreview:
    """What the plan of a run will do with another goal, before that is set; what is not known yet is None.

    Attributes:
        power_limit_w: the limit that is requested now [W].
        planned_power_limit_w, second_power_limit_w: the first one of the new plan, and another one that shares its time
            [W].
        speed_ratio: the mean speed there, as a share of full speed.
        reason, planned_reason: the reason codes of the limits now, and then.
        expected_end_s, planned_end_s: when the run will have ended, by the plan now, and then [Unix s].
        planned_slowdown_ratio: how many times as long as at full speed it will have been active from now to its end.
        planned_slowdown_ci90_ratio: the half-width of its 90 % interval.
        sentence: all of this, in words.
    """

    power_limit_w: float | None = None
    planned_power_limit_w: float | None = None
    second_power_limit_w: float | None = None
    speed_ratio: float | None = None
    reason: str | None = None
    planned_reason: str | None = None
    expected_end_s: float | None = None
    planned_end_s: float | None = None
    planned_slowdown_ratio: float | None = None
    planned_slowdown_ci90_ratio: float | None = None
    sentence: str = ""


class Goals(Protocol):
    """The goals of the runs of this node, as people set them. Each call may raise OrderRefusedError."""

    def aim(
        self,
        key: RunKey,
        *,
        max_slowdown_ratio: float | None = None,
        deadline_s: float | None = None,
        until_s: float | None = None,
        why: str,
        by: str,
    ) -> GoalState:
        """Have the plan of a run keep to a time budget or a deadline, instead of a goal that it may have."""

    def preview(
        self,
        key: RunKey,
        *,
        max_slowdown_ratio: float | None = None,
        deadline_s: float | None = None,
        until_s: float | None = None,
    ) -> GoalPreview:
        """Return what that would do; nothing is changed."""

    def reset(self, key: RunKey, *, why: str, by: str) -> GoalState:
        """End a goal, if there is one: the configured one holds again."""

    def state_of(self, key: RunKey) -> GoalState:
        """Return what is known of a goal."""


class GoalSource(Protocol):
    """The goals, as runs see them."""

    def goal_of(self, key: RunKey) -> Goal | None:
        """Return the goal of a run that is in force now; None: the configured one."""

    def on_run_end(self, key: RunKey) -> None:
        """End the goal of a run that has ended."""


class PinSource(Protocol):
    """The pins, as runs see them."""

    def pin_of(self, key: RunKey) -> Pin | None:
        """Return the pin of a run that is in force now; None: its plan decides."""

    def on_run_end(self, key: RunKey) -> None:
        """End the pin of a run that has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where the signal comes from now, and what is wrong with it.

    Attributes:
        source: such as `neso GB` or `forecast from neso GB, last known 3.2 h ago`.
        reason: the reason code of decisions while the signal is degraded; "" while it is fresh from its first provider.
        detail: what is wrong, and what is done about it; "" if nothing is.
    """

    source: str
    reason: str = ""
    detail: str = ""


class SignalSource(Protocol):
    """The grid signal, as runs and meters see it."""

    @property
    def kind(self) -> str:
        """Return `carbon`, `price` or `energy`."""

    def history(self) -> Signal | None:
        """Return the signal up to now, the present value included if it can be trusted; None if none is known."""

    def value_at(self, time_s: float) -> float | None:
        """Return the value at a time [Unix s]; the last known one replaces a missing one."""

    def forecast(self) -> Signal | None:
        """Return the forecast from now on, or None."""

    def forecast_errors(self) -> Values | None:
        """Return the root mean square errors of forecasts 1, 2, … hours ahead, in its unit; None where unknown."""

    def provenance(self) -> Provenance:
        """Return where it comes from now."""
