"""Fakes that obey the ports of the controller and record what was done to them. Each is usable in five lines."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from controller.errors import ControllerError, GpuError, GpuLimitError, GpuLostError
from controller.ports import LimitRange, LimitState, Lineage, LiveLimit, ProcessIdentity, Provenance, Sample, Target
from controller.runtime.clock import NS_PER_S
from controller.signal.history_store import HistoryStore
from policies.vocabulary.signal import Signal, SignalKind
from publishers.messages.codec import Outgoing
from publishers.messages.topics import DEFAULT_ROOT, RunKey, Topics
from publishers.mqtt.receiving.quotas import MessageQuotas

MIDNIGHT_S = 1_700_006_400.0
USER = "alice"
"""The login name of the tests, see `conftest.py`."""
KEY = RunKey(USER, "resnet50", "run-1")
"""The run that most tests are about."""
MAX_SLEEP_S = 60.0


class LoopClock:
    """The virtual time of the event loop, as a `Clock` that starts at midnight."""

    def __init__(self, start_s: float = MIDNIGHT_S) -> None:
        self.start_s = start_s

    def now_s(self) -> float:
        return self.start_s + asyncio.get_running_loop().time()

    def monotonic_ns(self) -> int:
        return int(asyncio.get_running_loop().time() * NS_PER_S)

    async def sleep_until(self, time_s: float) -> None:
        # The virtual loop takes one sleep of a day for a deadlock, so it sleeps a minute at a time.
        while (left_s := time_s - self.now_s()) > 1e-6:  # noqa: ASYNC110 — a time is waited for, not an event
            await asyncio.sleep(min(left_s, MAX_SLEEP_S))
        await asyncio.sleep(0)


class SteppedClock(LoopClock):
    """A wall clock that can be stepped; it sleeps as that of the system does."""

    def __init__(self) -> None:
        super().__init__()
        self.step_s = 0.0

    def now_s(self) -> float:
        return super().now_s() + self.step_s

    async def sleep_until(self, time_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + time_s - self.now_s()
        while (left_s := min(time_s - self.now_s(), deadline_s - loop.time())) > 1e-6:  # noqa: ASYNC110 — see `LoopClock`
            await asyncio.sleep(min(left_s, MAX_SLEEP_S))
        await asyncio.sleep(0)


class FakeGpu:
    """A GPU that checks limits as hardware does, and records every one that took effect in `history`.

    `errors[operation]` is raised by that operation (`read_range`, `read_limit`, `set_power_limit`, `read_sample`);
    a write waits for `write_gate`. Accepted writes take effect after `write_delay_s`, in their order; the next
    `n_ignored_writes` never do; the board makes `board_limit_w(limit)` of each. Of a true sample it `tells` another.
    """

    def __init__(self, uuid: str = "GPU-fake-0", *, index: int = 0, clock: LoopClock | None = None) -> None:
        self.uuid = uuid
        self.index = index
        self.model = "Fake 300"
        self.clock = clock or LoopClock()
        self.range = LimitRange(min_power_limit_w=100.0, max_power_limit_w=300.0, default_power_limit_w=300.0)
        self.out_of_band_power_limit_w = 1_000.0
        self.history: list[tuple[float, float]] = []
        self.errors: dict[str, GpuError] = {}
        self.write_gate: asyncio.Event | None = None
        self.write_delay_s = 0.0
        self.n_ignored_writes = 0.0
        self.board_limit_w: Callable[[float], float] = lambda power_limit_w: power_limit_w
        self.mig = False
        self.pids: frozenset[int] | None = None
        self.has_counter = True
        self.tells: Callable[[Sample], Sample] = lambda sample: sample
        self.draw_w: Callable[[float], float] = lambda power_limit_w: power_limit_w
        self._requested_power_limit_w = 300.0
        self._late_writes: deque[tuple[float, float]] = deque()
        self._energy_j = 0.0
        self._read_ns: int | None = None

    @property
    def requested_power_limit_w(self) -> float:
        """Return the requested limit that is in force now [W]."""
        while self._late_writes and self._late_writes[0][0] <= self.clock.now_s():
            self._take_effect(*self._late_writes.popleft())
        return self._requested_power_limit_w

    @requested_power_limit_w.setter
    def requested_power_limit_w(self, power_limit_w: float) -> None:
        self._requested_power_limit_w = power_limit_w

    async def read_range(self) -> LimitRange:
        self._fail("read_range")
        return self.range

    async def read_limit(self) -> LiveLimit:
        self._fail("read_limit")
        requested_w = self.requested_power_limit_w
        enforced_w = min(requested_w, self.out_of_band_power_limit_w)
        return LiveLimit(requested_power_limit_w=requested_w, enforced_power_limit_w=enforced_w)

    async def set_power_limit(self, power_limit_w: float) -> None:
        if self.write_gate is not None:
            await self.write_gate.wait()
        self._fail("set_power_limit")
        if not self.range.min_power_limit_w <= power_limit_w <= self.range.max_power_limit_w:
            raise GpuLimitError(f"{power_limit_w:g} W", gpu_uuid=self.uuid, operation="set_power_limit", code=2)
        if self.n_ignored_writes > 0:
            self.n_ignored_writes -= 1
            return
        due_s, limit_w = self.clock.now_s() + self.write_delay_s, self.board_limit_w(power_limit_w)
        if self.write_delay_s or self._late_writes:
            self._late_writes.append((due_s, limit_w))
        else:
            self._take_effect(due_s, limit_w)

    async def read_sample(self) -> Sample:
        self._fail("read_sample")
        self._integrate()
        sample = Sample(
            time_ns=self.clock.monotonic_ns(),
            power_w=self.power_w,
            energy_j=self._energy_j if self.has_counter else None,
            utilization_ratio=1.0,
            temperature_c=float(round(30 + 0.1 * self.power_w)),  # it warms at once
        )
        return self.tells(sample)

    async def read_power(self) -> Sample:
        return replace(await self.read_sample(), energy_j=None)

    async def read_processes(self) -> frozenset[int] | None:
        return self.pids

    async def read_mig(self) -> bool:
        return self.mig

    async def read_persistence(self) -> bool | None:
        return True

    @property
    def power_w(self) -> float:
        """Return the present draw [W]."""
        return self.draw_w(min(self.requested_power_limit_w, self.out_of_band_power_limit_w))

    def set_externally(self, power_limit_w: float) -> None:
        """Set the limit as another writer would: it is not in `history`."""
        self._integrate()
        self._requested_power_limit_w = power_limit_w

    def _take_effect(self, time_s: float, power_limit_w: float) -> None:
        self._integrate()
        self._requested_power_limit_w = power_limit_w
        self.history.append((time_s, power_limit_w))

    def _integrate(self) -> None:
        now_ns = self.clock.monotonic_ns()
        if self._read_ns is not None:
            power_w = self.draw_w(min(self._requested_power_limit_w, self.out_of_band_power_limit_w))
            self._energy_j += power_w * (now_ns - self._read_ns) / NS_PER_S
        self._read_ns = now_ns

    def _fail(self, operation: str) -> None:
        if operation in self.errors:
            raise self.errors[operation]


class FakeProcessTable:
    """The processes of a machine: each is of user 1000, as everybody is, and without a mark."""

    def __init__(self) -> None:
        self.known: dict[int, Lineage | None] = {}
        self.uids: dict[str, int | None] = {}
        self.sees_all = True

    async def read(self, pids: Iterable[int]) -> Mapping[int, Lineage | None]:
        return {pid: self.known[pid] if pid in self.known else (fake_process(pid),) for pid in pids}

    async def uid_of(self, user: str) -> int | None:
        return self.uids.get(user, 1_000)


def fake_process(pid: int, *, uid: int = 1_000, marks: frozenset[str] = frozenset()) -> ProcessIdentity:
    """Return a process of the host."""
    return ProcessIdentity(pid=pid, parent_pid=1, uid=uid, name="python", namespace_pids=(pid,), marks=marks)


class FakeBackend:
    """A node with these GPUs."""

    driver = "fake driver 1.0"

    def __init__(self, gpus: Sequence[FakeGpu]) -> None:
        self.gpus = gpus
        self.absent: set[str] = set()
        """The UUIDs of the GPUs that do not answer yet."""
        self.unlisted: set[str] = set()
        """The UUIDs of the GPUs that the driver does not list yet."""
        self.n_late_tries = 0
        self.is_open = False
        self.opened_late = asyncio.Event()
        self._opened: list[FakeGpu] = []

    @property
    def faults(self) -> Sequence[ControllerError]:
        absent = [gpu for gpu in self.gpus if gpu not in self._opened and gpu.uuid not in self.unlisted]
        return [GpuLostError("it is not ready", gpu_uuid=f"GPU {gpu.index}", operation="open") for gpu in absent]

    async def open(self) -> Sequence[FakeGpu]:
        self.is_open = True
        self._opened = self._answering()
        return self._opened

    async def open_late(self) -> Sequence[FakeGpu]:
        self.n_late_tries += 1
        late = [gpu for gpu in self._answering() if gpu not in self._opened]
        self._opened = [*self._opened, *late]
        if late:
            self.opened_late.set()
        return late

    async def close(self) -> None:
        self.is_open = False

    def _answering(self) -> list[FakeGpu]:
        return [gpu for gpu in self.gpus if gpu.uuid not in self.absent | self.unlisted]


class FakeBus:
    """A bus in one process: messages are recorded in `sent`, and delivered to subscribers.

    As an async context manager it is the broker too: it retains messages, and publishes the birth on entering.
    """

    def __init__(
        self,
        will: Outgoing | None = None,
        birth: Callable[[], Iterable[Outgoing]] | None = None,
        quotas: MessageQuotas | None = None,
    ) -> None:
        self.connected = True
        self.last_error: str | None = None
        self.sent: list[Outgoing] = []
        self.retained: dict[str, bytes] = {}
        self.is_dropping = False
        """As a broker does with what its access rules forbid: nobody is told."""
        self.will = will
        self.birth = birth
        self.quotas = quotas
        self._handlers: list[tuple[str, Callable[[str, bytes], None]]] = []

    async def __aenter__(self) -> Self:
        self.connected = True
        for message in self.birth() if self.birth else ():
            self.publish(message.topic, message.payload, qos=message.qos, retain=message.retain)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connected = False
        self._handlers.clear()

    def subscribe(
        self,
        topic_filter: str,
        handler: Callable[[str, bytes], None],
        *,
        qos: int = 0,
        on_retained: Callable[[str, bytes], None] | None = None,
    ) -> None:
        del qos
        self._handlers.append((topic_filter, handler))
        for topic, payload in list(self.retained.items()):
            if _matches(topic_filter, topic):
                (on_retained or handler)(topic, payload)

    def unsubscribe(self, topic_filter: str, handler: Callable[[str, bytes], None]) -> None:
        self._handlers.remove((topic_filter, handler))

    @property
    def filters(self) -> list[str]:
        """Return the topic filters that are subscribed to, in their order."""
        return [topic_filter for topic_filter, _ in self._handlers]

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> None:
        self.sent.append(Outgoing(topic=topic, payload=payload, qos=qos, retain=retain))
        if self.is_dropping:
            return
        if retain and payload:
            self.retained[topic] = payload
        elif retain:
            self.retained.pop(topic, None)
        if self.quotas is not None and not self.quotas.allows(topic.encode(), asyncio.get_running_loop().time()):
            return
        for topic_filter, handler in list(self._handlers):
            if _matches(topic_filter, topic):
                handler(topic, payload)

    def payloads(self, topic: str) -> list[bytes]:
        """Return what was published on a topic, oldest first."""
        return [message.payload for message in self.sent if message.topic == topic]

    topics = Topics(DEFAULT_ROOT)


@lru_cache(maxsize=4_096)
def _matches(topic_filter: str, topic: str) -> bool:
    levels, parts = topic_filter.split("/"), topic.split("/")
    return len(parts) == len(levels) and all(level in {"+", part} for level, part in zip(levels, parts, strict=True))


class FakeLimiter:
    """A power limiter that only records its orders; `state` is set by the test."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self.state: LimitState | None = None
        self.targets: list[Target] = []
        self.releases: list[str] = []

    def request(self, target: Target) -> None:
        self.targets.append(target)

    def release(self, *, reason: str, detail: str) -> None:
        self.releases.append(reason)
        del detail


class FixedSignal:
    """A signal that the test sets."""

    def __init__(self, value: float | None = None, *, kind: str = "carbon") -> None:
        self.kind = kind
        self.series = None if value is None else flat_signal(value)

    def history(self) -> Signal | None:
        return self.series

    def forecast(self) -> Signal | None:
        return None

    def forecast_errors(self) -> None:
        return None

    def value_at(self, time_s: float) -> float | None:
        return None if self.series is None else self.series.last_value_at(time_s)

    def provenance(self) -> Provenance:
        return Provenance(source="test")


class FakeHistoryStore(HistoryStore):
    """A store of signal histories in memory."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))
        self.saved: dict[str, Signal] = {}

    async def load(self, key: str, *, since_s: float) -> Signal | None:
        saved = self.saved.get(key)
        return saved.between(since_s, math.inf) if saved else None

    def save(self, key: str, series: Signal, *, now_s: float) -> None:
        del now_s
        self.saved[key] = self.saved[key].revised(series) if key in self.saved else series


def _ends_s(series: Signal, past: Signal) -> float:
    """Return when the last past value ceases to hold: no value is cut in two."""
    later = series.starts_s[series.starts_s > past.starts_s[-1]]
    return float(later[0]) if len(later) else series.ends_s


def flat_signal(value: float, *, start_s: float = MIDNIGHT_S - 86_400, hours: int = 240) -> Signal:
    """Return a carbon intensity that never changes [g/kWh]."""
    return Signal(
        kind="average",
        zone="XX",
        source="test",
        unit="g/kWh",
        starts_s=start_s + 3_600.0 * np.arange(hours, dtype=np.float64),
        values=np.full(hours, value),
        ends_s=start_s + 3_600.0 * hours,
        issued_at_s=start_s,
    )


class FixedProvider:
    """A provider whose whole history is one signal; what lies ahead stays unknown. `error` is raised by both calls."""

    step_s = 3_600.0

    def __init__(self, series: Signal | None) -> None:
        self.name = "fixed"
        self.series = series
        self.kind: SignalKind = series.kind if series else "average"
        self.error: Exception | None = None
        self.losses = ""
        self.n_asked = 0

    async def fetch_history(self, *, since_s: float, now_s: float) -> Signal | None:
        self.n_asked += 1
        if self.error is not None:
            raise self.error
        past = self.series.between(since_s, now_s) if self.series else None
        return self.series.between(since_s, _ends_s(self.series, past)) if self.series and past else None

    async def fetch_forecast(self, *, now_s: float, until_s: float) -> Signal | None:
        if self.error is not None:
            raise self.error
        del now_s, until_s
        return None
