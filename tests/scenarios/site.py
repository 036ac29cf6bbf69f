"""A whole node on virtual time: fake GPUs, the real controller, a bus with its broker, training that obeys limits."""

import asyncio
import math
import re
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from controller.app import NodeContext, run_controller
from controller.config import load_config
from controller.history.energy_history.file_store import FileStore
from controller.history.energy_history.recorder import HistoryRecorder
from controller.signal.history_store import HistoryStore
from policies.providers.base import Provider
from policies.providers.catalogue import Source
from policies.providers.sources.constant import ConstantProvider
from publishers.messages.codec import Message, Outgoing, decode, encode
from publishers.messages.reports import LimitChange, ProfileReport, RunEnergy, RunSchedule
from publishers.messages.topics import RunKey, Topics
from publishers.messages.training import CountedBy, Iterations, RankStatus, pack_ends
from tests.fakes import MIDNIGHT_S, USER, FakeBackend, FakeBus, FakeGpu, FakeProcessTable, LoopClock

BOOT_ID = "this-boot"
NODE = "node-a"
HOUR_S = 3_600.0
PRIOR_W = 280.0
LADDER_W = [280.0, 225.0, 180.0, 145.0, 115.0, 100.0]
"""What the first sweep measures, each limit four fifths of the one above, in multiples of 5 W, down to the floor."""
POWER_RATIO = 0.9
"""A fake GPU draws nine tenths of its limit."""
TOPICS = Topics()
FINE = "energy.period_s=5"
"""For what is said to the second. Else a node of a `Site` acts every 20 s, and a day takes a few seconds."""
ANY_PROVIDER = 'signal.provider=[{name="constant", value=300.0}]'
"""What a configuration with a signal must name; the providers of a `Site` are used instead."""
DRAW_S = 0.002
"""How long one of several batches of a step takes to draw."""
RESOLUTION_S = 1e-5
"""Unix time in a float is good to less than a microsecond."""


def rate_per_s(power_limit_w: float) -> float:
    """Return how many iterations a second a training process does at a limit: half a one at 280 W."""
    return 0.5 * math.pow(power_limit_w / PRIOR_W, 0.3)


def prior_gpu(uuid: str = "GPU-fake-0", index: int = 0) -> FakeGpu:
    """Return a GPU whose prior limit, 280 W, is not its default, 300 W."""
    gpu = FakeGpu(uuid, index=index)
    gpu.requested_power_limit_w = PRIOR_W
    gpu.draw_w = lambda power_limit_w: POWER_RATIO * power_limit_w
    return gpu


class Site:
    """A node: its GPUs, its broker, and the controllers that run on it one after the other."""

    def __init__(
        self,
        state_dir: Path,
        gpus: Sequence[FakeGpu],
        *overrides: str,
        providers: Sequence[Provider] = (),
        store: HistoryStore | None = None,
        history: Path | None = None,
        waits_for_driver: bool = False,
    ) -> None:
        self._waits_for_driver = waits_for_driver
        self.gpus = list(gpus)
        self.bus = FakeBus()
        self._store = store
        self._history = history
        self.clock = LoopClock()
        self.backend = FakeBackend(self.gpus)
        self.processes = FakeProcessTable()
        self.providers = list(providers) or [ConstantProvider(1.0, kind="energy", unit="1")]
        fixed = (
            *("gpu.backend=simulation", "http.port=-1", f"node.name={NODE}", f"node.state_dir={state_dir}"),
            "bus.username=node",  # a site, whose broker knows its users
        )
        quick = ("profiler.settle_s=20", "profiler.window_s=100", "profiler.block_s=40", "profiler.n_blocks=0")
        coarse = ("energy.period_s=20", "signal.period_s=300")
        self.config = load_config(None, [*fixed, *quick, *coarse, *overrides])

    def node(self) -> NodeContext:
        """Return what a controller is given."""
        return NodeContext(
            config=self.config,
            boot_id=BOOT_ID,
            version="0.0.test",
            backend=self.backend,
            sources=[Source(provider=provider) for provider in self.providers],
            clock=self.clock,
            connect=self._connect,
            store=self._store,
            history=self._recorder(),
            processes=self.processes,
            waits_for_driver=self._waits_for_driver,
            restore_command=f"gridchase restore --set {self.config.node.state_dir}",
        )

    @asynccontextmanager
    async def controlled(self) -> AsyncIterator[None]:
        """Run a controller; it is stopped, as by SIGTERM, at the end."""
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(run_controller(self.node(), stop=stop), name="controller")
            await asyncio.sleep(1)
            yield
            stop.set()

    def limits(self, gpu: FakeGpu) -> list[LimitChange]:
        """Return what was published of a GPU's limit."""
        payloads = self.bus.payloads(TOPICS.gpu(NODE, gpu.uuid, "limit"))
        return [decode(payload, LimitChange) for payload in payloads]

    def profiles(self, job: str = "resnet50", run: str = "run-1") -> list[ProfileReport]:
        """Return what was published of a run's curve."""
        return [
            decode(payload, ProfileReport)
            for payload in self.bus.payloads(TOPICS.run(RunKey(USER, job, run), "profile"))
            if payload
        ]

    def schedules(self, job: str = "resnet50", run: str = "run-1") -> list[RunSchedule | None]:
        """Return what was published of a run's schedule; None: it was cleared."""
        payloads = self.bus.payloads(TOPICS.run(RunKey(USER, job, run), "schedule"))
        return [decode(payload, RunSchedule) if payload else None for payload in payloads]

    def energies(self, job: str = "resnet50", run: str = "run-1") -> list[RunEnergy]:
        """Return what was published of a run's energy."""
        return [
            decode(payload, RunEnergy)
            for payload in self.bus.payloads(TOPICS.run(RunKey(USER, job, run), "energy"))
            if payload
        ]

    def _recorder(self) -> HistoryRecorder | None:
        if self._history is None:
            return None
        return HistoryRecorder(
            FileStore(self._history, topics=TOPICS, config=self.config.history, session_s=self.clock.now_s()),
            clock=self.clock,
        )

    def _connect(self, will: Outgoing, birth: Callable[[], Iterable[Outgoing]]) -> FakeBus:
        self.bus.will, self.bus.birth = will, birth
        return self.bus


class Training:
    """One training process: each iteration takes as long as its GPU needs at the limit that it has at the beginning.

    Attributes:
        registers: whether the driver lists it on its GPUs.
        draws: how many batches it draws at once for each step; of a loader alone each draw is a mark.
        counted_by: what marks its iterations; of steps it tells the requests, too.
        all_reduce: what a step waits for before it ends.
        after_step: what it does after a step, before it asks for the next batch, in a loop that does not tell of it.
    """

    registers = True
    draws = 1
    counted_by: CountedBy = "loader"
    all_reduce: Callable[[], Awaitable[object]] | None = None
    after_step: Callable[[], Awaitable[None]] | None = None

    def __init__(
        self,
        site: Site,
        gpus: Sequence[FakeGpu] | None = None,
        *,
        job: str = "resnet50",
        run: str = "run-1",
        rank: int = 0,
        rate: Callable[[float], float] = rate_per_s,
        references: Sequence[str | int] | None = None,
        **status: Any,  # noqa: ANN401 — the record checks them
    ) -> None:
        self.gpus = list(gpus or site.gpus[:1])
        self.n_iterations = 0
        self.begin_s: float | None = None
        self.end_s = 0.0
        self._bus, self._clock = site.bus, site.clock
        self._period_s = site.config.energy.period_s
        self._job, self._run, self._rank, self._rate = job, run, rank, rate
        fields: dict[str, Any] = {"boot_id": BOOT_ID, "pid": 100 + rank, "world_size": 1, "batch_size": 256} | status
        self._status = RankStatus(
            run=run,
            state="running",
            host=NODE,
            gpus=[gpu.uuid for gpu in self.gpus] if references is None else list(references),
            started_at_s=MIDNIGHT_S,
            heartbeat_s=10.0,
            **fields,
        )
        self._seq = 0
        self._published_s = float("-inf")
        self._ends_ns: list[int] = []
        self._requests_ns: list[int] = []
        self._n_marks = 0
        self._begin_ns = 0

    def moves_to(self, site: Site) -> None:
        """Go on under another controller, of other settings."""
        self._bus, self._clock = site.bus, site.clock

    async def train(self, duration_s: float, *, flush_s: float | None = None, epoch: int = 0) -> None:
        """Do iterations for some time; the last one begins within it."""
        flush_s = flush_s or self._period_s
        until_s = self._clock.now_s() + duration_s
        self._begin_ns = self._clock.monotonic_ns()
        self.begin_s = self.begin_s or self._clock.now_s()
        flushed_s = self._clock.now_s()
        while until_s - self._clock.now_s() > RESOLUTION_S:
            await self._step()
            if self.end_s - flushed_s >= flush_s:
                flushed_s = self.end_s
                self.flush(epoch)
        self.flush(epoch)

    async def train_steps(self, n_steps: int) -> None:
        """Do so many iterations: ranks that wait for each other do the same number."""
        self._begin_ns = self._clock.monotonic_ns()
        self.begin_s = flushed_s = self._clock.now_s()
        for _ in range(n_steps):
            await self._step()
            if self.end_s - flushed_s >= self._period_s:
                flushed_s = self.end_s
                self.flush()
        self.flush()

    async def _step(self) -> None:
        """Draw batches, work on them, and do what comes after a step."""
        if self.counted_by != "loader":
            await self.pause(DRAW_S)  # the loop's own
            self._requests_ns.append(self._clock.monotonic_ns())
        slowest_w = min(gpu.requested_power_limit_w for gpu in self.gpus)
        for _ in range(self.draws - 1):
            await self.pause(DRAW_S)
            if self.counted_by == "loader":
                self._ends_ns.append(self._clock.monotonic_ns())
        await self.pause(1 / self._rate(slowest_w))
        if self.all_reduce is not None:
            await self.all_reduce()
        self.n_iterations += 1
        self.end_s = self._clock.now_s()
        if self.counted_by != "loader":
            self._ends_ns.append(self._clock.monotonic_ns())
        if self.after_step is not None:
            await self.after_step()
        if self.counted_by == "loader":  # it marks the next request
            self._ends_ns.append(self._clock.monotonic_ns())

    async def pause(self, duration_s: float) -> None:
        """Compute, validate, or write a checkpoint: no iteration ends, but the heart beats."""
        if duration_s < 10.0:  # an iteration: nearly all the time of a scenario is spent in this line
            self.publish_status()
            await asyncio.sleep(duration_s)
            return
        until_s = self._clock.now_s() + duration_s
        while until_s - self._clock.now_s() > RESOLUTION_S:
            self.publish_status()
            await self._clock.sleep_until(min(until_s, self._clock.now_s() + 10.0))

    def say(self, **changes: Any) -> None:  # noqa: ANN401 — the record checks them
        """Publish the status with these fields, now and from now on."""
        self._status = msgspec.structs.replace(self._status, **changes)
        self._published_s = float("-inf")
        self.publish_status()

    def publish_status(self, state: str | None = None) -> None:
        """Publish the status: every 10 s, or now where it is a new state."""
        if state is None and self._clock.now_s() - self._published_s < self._status.heartbeat_s:
            return
        self._published_s = self._clock.now_s()
        for gpu in self.gpus if self.registers else ():  # as NVML lists whoever has initialised CUDA, until it ends
            others = (gpu.pids or frozenset()) - {self._status.pid}
            gpu.pids = others | {self._status.pid} if state is None else others
        fields = {name: getattr(self._status, name) for name in self._status.__struct_fields__}
        status = RankStatus(**(fields | {"state": state or "running"}))
        self._publish("status", status, retain=True)

    def set(self, **status: Any) -> None:  # noqa: ANN401 — the record checks them
        """Change the status, and publish it."""
        self._status = msgspec.structs.replace(self._status, **status)
        self._published_s = float("-inf")
        self.publish_status()

    def flush(self, epoch: int = 0) -> None:
        """Publish the iterations that have ended."""
        if not self._ends_ns:
            return
        message = Iterations(
            run=self._run,
            seq=self._seq,
            first=self._n_marks,
            begin_ns=self._begin_ns,
            end_ns=pack_ends(array("q", self._ends_ns)),
            epoch=epoch,
            dropped=0,
            counted_by=self.counted_by,
            request_ns=b"" if self.counted_by == "loader" else pack_ends(array("q", self._requests_ns)),
        )
        self._n_marks += len(self._ends_ns)
        self._begin_ns = self._ends_ns[-1]
        self._ends_ns, self._requests_ns = [], []
        self._seq += 1
        self._publish("iterations", message, retain=False)

    def _publish(self, leaf: str, message: Message, *, retain: bool) -> None:
        topic = TOPICS.rank(self._status.boot_id, RunKey(USER, self._job, self._run), self._rank, leaf)
        self._bus.publish(topic, encode(message), qos=int(retain), retain=retain)


def energy_j(gpu: FakeGpu, begin_s: float, end_s: float, *, first_w: float = PRIOR_W) -> float:
    """Return what a GPU has used between two moments, by the limits that it had [J]."""
    return sum(
        POWER_RATIO * limit_w * max(0.0, min(b_s, end_s) - max(a_s, begin_s))
        for a_s, b_s, limit_w in _stands(gpu, first_w)
    )


def without_looks(history: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return what was written to a GPU, but for looks at the prior limit, after which another limit follows."""
    kept: list[tuple[float, float]] = []
    for number, (time_s, limit_w) in enumerate(history, start=1):
        is_look = limit_w == PRIOR_W and number < len(history)
        if not is_look and (not kept or kept[-1][1] != limit_w):
            kept.append((time_s, limit_w))
    return kept


def told_saving(log: str) -> tuple[float, float]:
    """Return the interval of what the log says, once, that a run has saved, with what is rounded off, as shares."""
    ((lower, upper),) = re.findall(r"saved \S+ % \(90 %: (\S+) to (\S+) %\)", log)
    return float(lower) / 100 - 0.0005, float(upper) / 100 + 0.0005


def _stands(gpu: FakeGpu, first_w: float) -> Iterator[tuple[float, float, float]]:
    marks = [(0.0, first_w), *gpu.history, (float("inf"), 0.0)]
    for (a_s, limit_w), (b_s, _) in pairwise(marks):
        yield a_s, b_s, limit_w
