"""The training side: `publish_iterations` around a loader, or a `Publisher` for loops that are not iterables.

A training loop's publisher: what the loop calls, and the honest end of the run.

Nothing here raises or prints, and nothing blocks but `batch_size` and `close`, whose waits are bounded. What is wrong
is logged once, to the logger `publishers`.

The training side: `publish_iterations` around a loader, or a `Publisher` for loops that are not iterables.

What counts as an iteration is said in `passes.py`. Publishing never raises, blocks or prints: what is wrong is logged
once, to the logger `publishers`. A forked child does not publish for its parent.
"""

import copyreg
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Literal, Self, TypeVar

from publishers.messages.training import Metric
from publishers.training.batch_timing import BatchSizeBenchmark
from publishers.training.coerce import to_bool, to_float, warn_once
from publishers.training.paho_client import PahoConnection
from publishers.training.policy_client import put_question
from publishers.training.progress import (
    LARGEST_METRIC,
    RunProgress,
    TargetMetric,
    epochs_or_warn,
    first_or_warn,
    go_through,
)
from publishers.training.published_iterable import PublishedIterable, PublishedSized, own_batch_size, published
from publishers.training.recorder import CHUNK, Recorder
from publishers.training.run_end import RunSlot, end_replaced_runs, end_run, end_with_owner, run_slot
from publishers.training.settings import MAX_BATCH_SIZE, Settings, SettingsReader, resolve, resolve_or_warn, to_int
from publishers.training.trial import BatchSizeTrial
from publishers.training.worker import CLOSE_TIMEOUT_S, Connect, PublisherWorker

T = TypeVar("T")


class Publisher:
    """Publishes the iterations of a training loop, and asks the policy service for its batch size.

    For a loop that is not an iterable call `iteration()` at the end of each. The arguments are those of
    `publish_iterations`. As a context manager it closes itself; else it says `finished` when it is collected, when its
    thread begins another run of the job on its GPUs, or when the interpreter exits. One thread calls `iteration`,
    `begin`, `pause`, `epoch`, and goes through `epochs` and `iterations`.

    Attributes:
        trial: what the policy service has answered; None before, and where the batch size is the default.
    """

    trial: BatchSizeTrial | None

    def __init__(
        self,
        *,
        job: str | None = None,
        run: str | None = None,
        broker: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        gpus: Sequence[str | int] | None = None,
        batch_size: int | None = None,
        username: str | None = None,
        password: str | None = None,
        ca_file: str | None = None,
        root: str | None = None,
        flush_s: float = 0.25,
        heartbeat_s: float = 10.0,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        clock_s: Callable[[], float] = time.time,
        boot_id: str | None = None,
        total_iterations: int | None = None,
        first_epoch: int = 0,
        connect: Connect = PahoConnection,
    ) -> None:
        settings = resolve_or_warn(
            lambda: resolve(
                job=job,
                run=run,
                broker=broker,
                rank=rank,
                world_size=world_size,
                gpus=gpus,
                batch_size=batch_size,
                username=username,
                password=password,
                ca_file=ca_file,
                root=root,
                flush_s=flush_s,
                heartbeat_s=heartbeat_s,
                boot_id=boot_id,
            )
        )
        place = run_slot(settings) if settings is not None else None
        end_replaced_runs(place)
        self._open(settings, clock_ns, clock_s, connect, to_int(world_size), total_iterations, place)
        self.recorder.go_on_at(first_or_warn(first_epoch, "first_epoch"))

    def iteration(self) -> None:
        """End an iteration, and begin the next; the first call, and the first after a pause, only begins one.

        In a hot loop bind it: `step = publisher.iteration`.
        """
        recorder = self.recorder
        marks = recorder.chunk.marks
        marks.append(recorder.clock_ns())
        if len(marks) > CHUNK:
            recorder.rotate(recorder.chunk)

    def begin(self) -> None:
        """Begin an iteration now: at the start of the loop, or after a pause, so that the next one is not missed."""
        self.recorder.begin()

    def pause(self) -> None:
        """Say that what follows (validation, a checkpoint) is no iteration, until `begin` or the next `iteration`."""
        self.recorder.pause()

    def epoch(self) -> None:
        """End the epoch: iterations from here on belong to the next one, as after a pause."""
        self.recorder.next_epoch()

    def batch_size(
        self,
        candidates: Sequence[int],
        *,
        default: int,
        target: float | None = None,
        target_mode: Literal["max", "min"] = "max",
        timeout_s: float = 10.0,
        probe: Callable[[int], object] | None = None,
        probe_timeout_s: float = 60.0,
    ) -> int:
        """Return the batch size that the policy service wants to be used, or the default; never raises.

        Waits for the service, `timeout_s` at most; about a second where no broker was ever there. Why it is the default
        is logged. Every rank gets the same answer; where there are many, ask on rank 0 and broadcast what it returns.

        Args:
            candidates: the batch sizes to choose from.
            default: one of them: what is used without a service, and what the others are compared with.
            target: the value that the metric is to reach: `metric` then tells by itself whether it has.
            target_mode: whether the metric is to be at least (`max`) or at most (`min`) that.
            timeout_s: how long to wait for the service [s].
            probe: trains one iteration with a batch of that size, on throw-away copies, and returns once the GPU is
                done (`torch.cuda.synchronize()`); called, on rank 0, for sizes whose speed the service does not know.
            probe_timeout_s: for how long that is done [s]; it is over when the call under way then returns.
        """
        faults = self._goal.aim(target, target_mode)
        clock_ns = self.recorder.clock_ns
        probing = BatchSizeBenchmark(probe, probe_timeout_s, told=self._sender, clock_s=lambda: clock_ns() / 1e9)
        self.trial, batch_size, why = put_question(self._sender, candidates, default, timeout_s, faults, probing)
        if batch_size is not None:
            self.set_batch_size(batch_size)
        if self.trial is not None:
            return self.trial.batch_size
        warn_once(why)
        return default

    def epochs(self, n_epochs: float | None, *, first: int = 0) -> Iterator[int]:
        """Yield `first` to `n_epochs - 1`, or without an end (None, infinity), each an epoch; ends where `should_stop`.

        `first` is where a run goes on that was broken off, under its old id: the epochs before it have been trained.
        With the lengths of the loaders gone through in them, or of the epochs so far, they tell how long the run is.

        Of several ranks none ends early by itself, since the others would wait for it for ever: let one rank broadcast
        `should_stop`, and all of them `break`.
        """
        return go_through(self, n_epochs, first, n_ranks=self._n_ranks)

    def iterations(self, iterable: Iterable[T]) -> PublishedIterable[T]:
        """Return `iterable` (a data loader), publishing the iterations of each pass over it: each is an epoch."""
        if self._sender is not None and self._sender.batch_size is None:
            batch_size = own_batch_size(iterable)
            if batch_size is not None:
                self._sender.set_batch_size(batch_size)
        return published(iterable, self)

    def metric(self, value: float, *, reached: bool | None = None) -> None:
        """Publish a validation metric of the present epoch, and whether it has reached its target; on one rank.

        `reached`: None: the target given to `batch_size` tells; not a number, or infinity, never reaches it.
        """
        plain = to_float(value)
        if plain is None:
            warn_once(f"a metric is not published: a {type(value).__name__} is no number")
            return
        is_reached = self._goal.note(plain, said=to_bool(reached))
        if self._sender is None:
            return
        self._sender.set_reached(self._goal.reached)
        if abs(plain) <= LARGEST_METRIC:
            self._sender.add_metric(Metric(run=self._run, epoch=self.recorder.epoch, value=plain, reached=is_reached))
        else:
            warn_once(f"a metric is not published: {plain} is not from -{LARGEST_METRIC:g} to {LARGEST_METRIC:g}")

    @property
    def should_stop(self) -> bool:
        """Return whether the training should end early: the target is reached, or the policy service says so.

        Ranks hear it at different times: where there are many, let one tell the others.
        """
        return self.stop_reason is not None

    @property
    def stop_reason(self) -> str | None:
        """Return why the training should end early, in a sentence; None where it should not."""
        if self._goal.reason is not None or self._sender is None:
            return self._goal.reason
        self._sender.conversation.listen()
        return self._sender.conversation.stop_reason

    def fail(self, reason: str = "out_of_memory", detail: str = "") -> None:
        """Say that the run cannot run at its batch size, so that the policy service proposes it no more.

        As a context manager the publisher says so by itself where the first epoch runs out of a GPU's memory.
        """
        if self._sender is not None and not self._sender.add_failure(reason, detail):
            warn_once("a failure is not published: no batch size was said")

    def close(self, reached: bool | None = None) -> None:
        """Publish what is left and `finished`; wait for that 2 s at most. `reached`: whether the target was reached."""
        if self._sender is not None:
            self._sender.request_close(reached=to_bool(reached))
            self._sender.wait_closed(CLOSE_TIMEOUT_S)

    @property
    def run(self) -> str:
        """Return the id of the run, or nothing where publishing is off."""
        return self._run

    @property
    def closed(self) -> bool:
        """Return whether nothing is published: closed, off, or in a forked child."""
        return self._sender is None or self._sender.closed

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        """Close it, and say of an exception what it means for the run (`farewell`); it goes on."""
        if self._sender is not None:
            end_run(self._sender, error)
            self._sender.wait_closed(CLOSE_TIMEOUT_S)

    @classmethod
    def opened(
        cls, settings: Settings | None, *, clock_ns: Callable[[], int], clock_s: Callable[[], float]
    ) -> "Publisher":
        """Return a publisher with settings that are resolved already; None: it is off."""
        publisher = cls.__new__(cls)
        publisher._open(settings, clock_ns, clock_s)  # noqa: SLF001 — the same class
        return publisher

    def set_batch_size(self, batch_size: int) -> None:
        """Say a new batch size."""
        to_float = to_int(batch_size)
        if to_float is None or not 1 <= to_float <= MAX_BATCH_SIZE:
            warn_once(f"a batch size is not published: must be a whole number from 1 to {MAX_BATCH_SIZE}")
        elif self._sender is not None:
            self._sender.set_batch_size(to_float)

    def _open(
        self,
        settings: Settings | None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        clock_s: Callable[[], float] = time.time,
        connect: Connect = PahoConnection,
        n_ranks: int | None = None,
        total_iterations: object = None,
        place: RunSlot | None = None,
    ) -> None:
        self._run = settings.run if settings else ""
        self._n_ranks = settings.world_size if settings else n_ranks or SettingsReader(os.environ).world_size(None)
        self._goal = TargetMetric()
        self.trial = None
        self.recorder = recorder = Recorder(clock_ns)
        self.length = RunProgress(total_iterations, lambda: recorder.n_ended)
        self._sender: PublisherWorker | None = None
        if settings is None:
            return
        try:
            sender = PublisherWorker(settings, recorder, self.length, connect=connect, started_at_s=float(clock_s()))
            sender.start()
        except Exception as error:  # noqa: BLE001 — a clock that fails, no thread left: training goes on whatever it is
            warn_once(f"publishing is off: {error}")
            return
        self._sender = sender
        end_with_owner(self, sender, place)


def _off() -> Publisher:
    """Return a publisher that publishes nothing: what a copy in another process becomes."""
    return Publisher.opened(None, clock_ns=time.monotonic_ns, clock_s=time.time)


copyreg.pickle(Publisher, lambda _: (_off, ()))


__all__ = ["PublishedIterable", "PublishedSized", "Publisher", "publish_iterations"]

_Key = tuple[str, str, int]


def publish_iterations(
    iterable: Iterable[T],
    *,
    job: str | None = None,
    run: str | None = None,
    broker: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    gpus: Sequence[str | int] | None = None,
    batch_size: int | None = None,
    username: str | None = None,
    password: str | None = None,
    ca_file: str | None = None,
    root: str | None = None,
    flush_s: float = 0.25,
    heartbeat_s: float = 10.0,
    clock_ns: Callable[[], int] = time.monotonic_ns,
    clock_s: Callable[[], float] = time.time,
    boot_id: str | None = None,
    epochs: int | None = None,
    total_iterations: int | None = None,
    first_epoch: int = 0,
) -> PublishedIterable[T]:
    """Return `iterable` (a data loader), publishing the iterations of each pass over it.

    One process has one publisher for each job, run and rank: wrapped anew in each epoch, a loader still is one run.

    Args:
        iterable: what the training loop runs over; asked for one batch at a time, like the bare one.
        job: the name under which this training recurs; else `GRIDCHASE_JOB`.
        run: the id of this recurrence, the same for all ranks; else `GRIDCHASE_RUN`, the launcher's, or random.
        broker: `mqtt://host:port` or `mqtts://…`; else `GRIDCHASE_BROKER`, else this machine.
        rank: this process among the `world_size`; else `RANK` or `SLURM_PROCID`, else 0.
        world_size: how many processes train together; else `WORLD_SIZE` or `SLURM_NTASKS`, else 1.
        gpus: the GPUs of this process, by UUID or NVML's index; else those of `CUDA_VISIBLE_DEVICES`; else, once the
            process has loaded CUDA, index `LOCAL_RANK` or 0.
        batch_size: samples an iteration; else the iterable's own `batch_size`.
        username: who we are to the broker; else as in its URL.
        password: and its proof; else as in the URL, else in the file `GRIDCHASE_PASSWORD_FILE`.
        ca_file: the authorities that a broker with TLS is checked against; else `GRIDCHASE_CA_FILE`, or the system's.
        root: the root of the topics; else `GRIDCHASE_ROOT`, else `gridchase/v1`.
        flush_s: how often iterations are sent [s].
        heartbeat_s: how often the status is sent [s].
        clock_ns: the monotonic clock of the iterations [ns].
        clock_s: the time of day [s, Unix, UTC].
        boot_id: within what `clock_ns` is comparable; else the machine's boot.
        epochs: how many passes the training makes over the iterable: with its length, how long the run is. What else is
            published in between (a validation) belongs to its epochs; pass it for one iterable.
        total_iterations: how long the run is, else: how many iterations this process publishes in all; those that an
            earlier process of a resumed run has published are not among them.
        first_epoch: the number of the first pass: 0, or how many epochs of a resumed run were trained before.
    """
    samples = batch_size if batch_size is not None else own_batch_size(iterable)
    settings = resolve_or_warn(
        lambda: resolve(
            job=job,
            run=run,
            broker=broker,
            rank=rank,
            world_size=world_size,
            gpus=gpus,
            batch_size=samples,
            username=username,
            password=password,
            ca_file=ca_file,
            root=root,
            flush_s=flush_s,
            heartbeat_s=heartbeat_s,
            boot_id=boot_id,
        )
    )
    publisher = _shared_publisher(settings, clock_ns, clock_s)
    if total_iterations is not None:
        publisher.length.say(total_iterations)
    publisher.recorder.go_on_at(first_or_warn(first_epoch, "first_epoch"))
    return published(iterable, publisher, epochs_or_warn(epochs))


_publishers: dict[_Key, Publisher] = {}
_lock = threading.Lock()


def _shared_publisher(
    settings: Settings | None, clock_ns: Callable[[], int], clock_s: Callable[[], float]
) -> Publisher:
    """Return this process's publisher for a job, run and rank; a new one where there is none that is open."""
    if settings is None:
        return Publisher.opened(None, clock_ns=clock_ns, clock_s=clock_s)
    key = (settings.job, "" if settings.run_is_random else settings.run, settings.rank)
    with _lock:
        publisher = _publishers.get(key)
        if publisher is None or publisher.closed:
            publisher = _publishers[key] = Publisher.opened(settings, clock_ns=clock_ns, clock_s=clock_s)
    if settings.batch_size is not None:
        publisher.set_batch_size(settings.batch_size)
    return publisher


def _forget_inherited() -> None:
    """Begin afresh in a forked child: the parent may have held the lock."""
    global _lock  # noqa: PLW0603 — a lock that another thread held at the fork can never be had
    _lock = threading.Lock()
    _publishers.clear()


os.register_at_fork(after_in_child=_forget_inherited)
