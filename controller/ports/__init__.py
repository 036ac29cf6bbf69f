"""Ports: the protocols through which the workers use GPUs, the bus, the signal, and each other.

A worker gets its ports as constructor arguments. It does not know what implements them: NVML, a simulation, a fake.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from controller.errors import ControllerError
from policies.vocabulary.profile import LIMIT_TOLERANCE_W
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import Values
from publishers.messages.codec import Message, encode
from publishers.mqtt.receiving.quotas import MessageQuotas


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
        instant_power_w: the draw at this moment alone, or None where the GPU tells a mean of the last second; of a
            meter, scaled to what its energy counter shows in the long run [W].
        utilization_ratio: the share of time in which a kernel ran (0 to 1), or None.
        temperature_c: the GPU's temperature [°C], or None.
        read_s: how long the reading of the energy took [s]: it shows some moment in that time.
        unmeasured_s: of a meter, for how long of the time until then no reading was believed [s].
        uncounted_j: of a meter, what was used since the energy counter moved last; None where that is not known [J].
        n_instants: of a meter, how many instant readings there were until then, without those that came twice.
    """

    time_ns: int
    power_w: float | None
    energy_j: float | None = None
    instant_power_w: float | None = None
    utilization_ratio: float | None = None
    temperature_c: float | None = None
    read_s: float = 0.0
    unmeasured_s: float = 0.0
    uncounted_j: float | None = None
    n_instants: int = 0


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

    async def read_power(self) -> Sample:
        """Return a sample without its energy counter, which takes by far the longest to read on some boards."""

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

    def read_closely(self, until_ns: int) -> None:
        """Read the energy counter at each sample until a moment [ns]: what is measured begins or ends there."""


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
        """Return the errors of past forecasts 1, 2, … hours ahead, in its unit, shape (n, 24); None where unknown."""

    def provenance(self) -> Provenance:
        """Return where it comes from now."""
