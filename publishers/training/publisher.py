"""The training side: a `Publisher`, which a loop that is not an iterable calls, and `publish_iterations` uses.

An iteration is an optimizer step: `iterations/` finds out when one has ended. Nothing here raises, and only
`batch_size` and `close` block, for a bounded time. Each fault is logged once, to the logger `publishers`, which shows
it on stderr unless the application has configured logging. A forked child publishes nothing unless it trains.
"""

import contextlib
import copyreg
import itertools
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self, TypeVar, Unpack

from publishers.messages.training import Metric
from publishers.mqtt.connection import Connect
from publishers.training.coerce import to_bool, to_float, to_int, to_text, warn_once
from publishers.training.iterations.data_loader import batch_size_of
from publishers.training.iterations.loader_pass import LoaderPasses
from publishers.training.iterations.progress import (
    MAX_METRIC,
    RunProgress,
    TargetMetric,
    first_epoch_or_warn,
    n_epochs_or_warn,
)
from publishers.training.iterations.published_loader import published
from publishers.training.iterations.recorder import Recorder
from publishers.training.iterations.steps.optimizer_hook import count_steps
from publishers.training.iterations.steps.output_waiter import OutputWaiter
from publishers.training.reporting.run_summary import RunSummary
from publishers.training.run.next_run import RunSplitter, after_each_cell, is_data_worker
from publishers.training.run.no_worker import NO_WORKER, NoWorker
from publishers.training.run.process_publishers import ProcessPublishers, key_of
from publishers.training.run.run_end import (
    RunSlot,
    end_former_run,
    end_replaced_runs,
    end_run,
    end_with_owner,
    run_slot,
)
from publishers.training.settings import MAX_BATCH_SIZE, PublisherOptions, Settings, resolve_or_warn
from publishers.training.trial.batch_timing import time_untimed
from publishers.training.trial.policy_client import BatchSizeTrial, read_options, wait_for_batch_size
from publishers.training.worker import CLOSE_TIMEOUT_S, PublisherWorker

I = TypeVar("I")  # noqa: E741 — an iterable of any kind
PUBLISHERS: "Final[ProcessPublishers[Publisher]]" = ProcessPublishers()


class Publisher:
    """Publishes the iterations of a training loop, and asks the policy service for its batch size.

    For a loop that is not an iterable call `iteration()` at the end of each. As a context manager it closes itself;
    else it publishes `finished` when it is garbage-collected, when its thread begins another run of the job on its
    GPUs, or when the interpreter exits. One thread calls `iteration`, `begin`, `pause`, `epoch`, and goes through
    `epochs` and `iterations`.

    Args:
        clock_ns: as for `publish_iterations`.
        clock_s: as for `publish_iterations`.
        total_iterations, total_work: as for `publish_iterations`.
        first_epoch: as for `publish_iterations`.
        connect: opens the connection to the broker; None: paho.
        options: who publishes, and where to: as for `publish_iterations`.

    Attributes:
        trial: what the policy service has answered; None before, and where the batch size is the default.
    """

    recorder: Recorder
    progress: RunProgress
    trial: BatchSizeTrial | None
    _is_over: bool
    _n_ranks: int | None = None

    def __init__(
        self,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        clock_s: Callable[[], float] = time.time,
        total_iterations: int | None = None,
        total_work: float | None = None,
        first_epoch: int = 0,
        connect: Connect | None = None,
        **options: Unpack[PublisherOptions],
    ) -> None:
        settings = resolve_or_warn(options, caller="Publisher")
        slot = run_slot(settings) if settings is not None else None
        end_replaced_runs(slot)
        self._n_ranks = to_int(options.get("world_size"))
        self._splitter = RunSplitter(is_on=False)
        self._open(settings, clock_ns, clock_s, connect, (total_iterations, total_work), slot)
        self.recorder.resume_at(first_epoch_or_warn(first_epoch, "first_epoch"))

    def iteration(self, *, work: float | None = None) -> None:
        """End an iteration, and begin the next; the first call, and the first after a pause, only begins one.

        `work` is how much work it was, where that varies: its tokens. A number that the host knows, as for
        `publish_iterations`; nothing waits for a device.

        From the first call on, only these calls count: neither the optimizers' steps nor the batches of a loader do.
        In a hot loop bind it: `step = publisher.iteration`.
        """
        recorder = self.recorder
        if work is None:
            for _ in recorder.marking:  # the hot path
                return
        if recorder.is_told:
            recorder.mark_told(work)
        elif self.opens():
            recorder = self.recorder
            recorder.tell_step("callback" if recorder.counted_by == "callback" else "caller", work)

    def wait_for(self, output: object, *, work: float | None = None) -> None:
        """End an iteration as soon as the output of its step has been computed; returns at once.

        For JAX, whose loop runs ahead of the device: call it with the loss after each step. A thread waits for it.
        `work` is as for `iteration`.
        """
        if self.opens():
            self._waiter.put(output, work)

    def begin(self) -> None:
        """Begin an iteration now: at the start of the loop, or after a pause, so that the next one is not missed."""
        self.opens()
        self.recorder.begin()

    def pause(self) -> None:
        """Say that what follows (validation, a checkpoint) is no iteration: until `begin`, or the next one of all.

        In a loop over a published loader the next iteration begins with the request for the next batch.
        """
        self.recorder.pause_with_batch()

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
        """Return the batch size that the policy service chooses, or the default; never raises.

        Waits for the service, `timeout_s` at most; about a second where no broker was ever there. Why it is the default
        is logged. Every rank gets the same answer; where there are many, ask on rank 0 and broadcast what it returns.

        Args:
            candidates: the batch sizes to choose from.
            default: one of them: what is used without a service, and what the others are compared with.
            target: the value that the metric is to reach: `metric` then decides by itself whether it has.
            target_mode: whether the metric is to be at least (`max`) or at most (`min`) that.
            timeout_s: how long to wait for the service [s].
            probe: trains one iteration with a batch of that size, on throw-away copies, and returns once the GPU is
                done (`torch.cuda.synchronize()`); called, on rank 0, for sizes whose speed the service does not know.
            probe_timeout_s: for how long that is done [s]; it is over when the call under way then returns.
        """
        options = read_options(candidates, default, timeout_s)
        faults = [*self._target_metric.set_target(target, target_mode), *options.faults]
        worker = self._worker
        self.trial, why = None, "; ".join(faults)
        if not faults:
            self.trial, why = wait_for_batch_size(worker.ask(options), options)
        if self.trial is None:
            if options.default is not None:
                self.set_batch_size(options.default)
            warn_once(f"the batch size is the default, {to_text(default, 40)}: {why}")
            return default
        if worker.rank == 0:  # the others would publish the same times
            clock_ns = self.recorder.clock_ns
            self.trial, times = time_untimed(
                self.trial,
                options.batch_sizes,
                run=worker.run,
                probe=probe,
                timeout_s=probe_timeout_s,
                clock_s=lambda: clock_ns() / 1e9,
            )
            if times is not None:
                worker.add_times(times)
        self.set_batch_size(self.trial.batch_size)
        return self.trial.batch_size

    def epochs(self, n_epochs: float | None, *, first: int = 0) -> Iterator[int]:
        """Yield `first` to `n_epochs - 1`, or without an end (None, infinity), each an epoch; ends where `should_stop`.

        `first` is where an interrupted run continues, under its old id: the epochs before it have been trained.
        With the lengths of the loaders gone through in them, or of the epochs so far, they give the length of the run.

        Of several ranks none ends early by itself, since the others would wait for it for ever: pass `early_stop=True`,
        or let one rank broadcast `should_stop`, and all of them `break`.
        """
        n, start = n_epochs_or_warn(n_epochs), first_epoch_or_warn(first, "first")
        self.recorder.resume_at(start)
        try:
            for epoch in itertools.count(start) if n is None else range(start, n):
                if self.should_stop:
                    if self._world_size == 1 or self._worker.commands.stop_together:
                        break
                    warn_once(f"epochs go on, since this is one of {self._world_size} ranks: pass early_stop=True")
                number_before = self.recorder.epoch
                self.progress.begin_epoch(None if n is None else n - epoch - 1)
                yield epoch
                self.epoch()
                if self.recorder.epoch == number_before:  # nothing was published in it; it was an epoch all the same
                    self.recorder.skip_epoch()
        finally:
            self.progress.end_epochs()

    def iterations(self, iterable: I, *, work: Callable[[Any], float] | None = None) -> I:
        """Return `iterable` (a data loader), publishing the iterations of each pass over it: each is an epoch.

        It is what it was, as with `publish_iterations`; `work` is as there.
        """
        if self._worker.needs_batch_size:
            batch_size = batch_size_of(iterable)
            if batch_size is not None:
                self._worker.set_batch_size(batch_size)
        return published(iterable, self, work_of=work)

    def metric(self, value: float, *, reached: bool | None = None) -> None:
        """Publish a validation metric of the present epoch, and whether it has reached its target; on one rank.

        `reached`: None: the target given to `batch_size` decides; a metric that is not finite never reaches it.
        """
        plain = to_float(value)
        if plain is None:
            warn_once(f"a metric is not published: a {type(value).__name__} is no number")
            return
        is_reached = self._target_metric.update(plain, reached=to_bool(reached, "reached"))
        self._worker.set_reached(self._target_metric.reached)
        metric = Metric(run=self.run, epoch=self.recorder.epoch, value=plain, reached=is_reached)
        if not self._worker.add_metric(metric):
            warn_once(f"a metric is not published: {plain} is not from -{MAX_METRIC:g} to {MAX_METRIC:g}")

    @property
    def should_stop(self) -> bool:
        """Return whether the training should end early: the target is reached, or the policy service asks for it.

        Ranks hear of it at different times: where there are many, pass `early_stop=True`, or let one broadcast it.
        """
        return self.stop_reason is not None

    @property
    def stop_reason(self) -> str | None:
        """Return why the training should end early, in a sentence; None where it should not."""
        return self._worker.commands.reason_to_stop(self._target_metric.reason)

    def fail(self, reason: str = "out_of_memory", detail: str = "") -> None:
        """Publish that the run cannot run at its batch size, so that the policy service does not propose it again.

        As a context manager the publisher does so by itself where the first epoch runs out of a GPU's memory.
        """
        if not self._worker.add_failure(reason, detail):
            warn_once("a failure is not published: the batch size is not known")

    def close(self, reached: bool | None = None) -> None:
        """Publish what is left and `finished`; wait for that 2 s at most. `reached`: whether the target was reached."""
        self._worker.request_close(reached=to_bool(reached, "reached"))
        self._worker.wait_closed(CLOSE_TIMEOUT_S)

    def summary(self) -> RunSummary:
        """Return what the run has used and saved so far, or in all once it is closed; or why that is not known.

        What was saved is told with its 90 % interval, and only where the controller has enough evidence of it.
        """
        return self._worker.report.summary()

    def live(self) -> dict[str, float] | None:
        """Return what the controller measures now, for a logger: None before it has said anything.

        `power_w` and `power_limit_w` (of one GPU, on average), and so far `energy_j`, `carbon_g` and `cost`,
        `saved_energy_j`, `saved_carbon_g`, `saved_ratio`, `slowdown_ratio`: as far as each is known. Each of these last
        four has the half-width of its 90 % interval beside it, as in `saved_ci90_ratio`, `saved_energy_ci90_j`; without
        evidence of it there is neither.
        """
        return self._worker.report.live()

    def log_live(self, *trackers: object, step: int | None = None) -> None:
        """Log the live values to the experiment trackers in use: call it in the loop, it does so every 10 s at most.

        Args:
            trackers: beside the active runs of W&B, MLflow and Comet, which are found: a `SummaryWriter` of
                TensorBoard, a `Run` of Aim, a logger of Lightning, a tracker of accelerate, or a function of a dict.
            step: the optimizer step that the values belong to; else how many were published. W&B's own goes on.
        """
        self._worker.report.log_live(trackers, lambda: self.recorder.n_ended if step is None else step)

    def measure_without_iterations(self) -> None:
        """Let the controller measure the energy from now on, though no iteration has begun, and perhaps none will."""
        self._worker.measure_without_iterations()

    @property
    def run(self) -> str:
        """Return the id of the run; nothing where publishing is off, or the run is not known before it has begun."""
        return self._worker.run

    @property
    def closed(self) -> bool:
        """Return whether nothing is published: closed, off, or in a forked child."""
        return self._worker.closed

    def opens(self) -> bool:
        """Return whether a pass that begins now is published; a forked child that trains begins a run of its own."""
        if self._is_over or (self._worker.is_inherited and not is_data_worker()):
            self._open_again()
            if self._splitter.is_on and self._opened.settings is not None:
                PUBLISHERS.by_key.setdefault(key_of(self._opened.settings), self)
        return not self.closed

    def end_cell(self) -> None:
        """Tell what the run has used so far, as a notebook's cell has ended; end it where nothing is to come."""
        worker = self._worker
        if isinstance(worker, NoWorker) or worker.closed:
            return
        if self._splitter.is_on and self.progress.is_complete:
            end_former_run(worker)
            worker.wait_closed(CLOSE_TIMEOUT_S)
            self._is_over = True  # a loader that is gone through once more begins another run
        else:
            worker.report.tell_so_far(self.recorder.n_ended)

    def wrap(self, *, announces: bool) -> None:
        """Take note that a loader is wrapped, and whether that announces how long the training is."""
        has_trained = self.recorder.n_ended > 0
        if self._splitter.begins_by_call(
            has_trained=has_trained, is_complete=self.progress.is_complete, announces=announces
        ):
            self.begin_next_run()
        self.recorder.wrapped_at = self.recorder.n_ended

    def begin_next_run(self) -> bool:
        """End the run, and begin the next one with what is recorded from now on; return whether it was so."""
        former = self._worker
        if isinstance(former, NoWorker) or former.closed or not self._splitter.allows():
            return False
        passes = self.passes
        end_former_run(former)
        self._open_again()
        self.passes.take_over(passes)
        return True

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        """Close it, and publish what an exception means for the run (`run_end`); the exception goes on."""
        end_run(self._worker, error)
        self._worker.wait_closed(CLOSE_TIMEOUT_S)

    def set_batch_size(self, batch_size: int) -> None:
        """Publish a new batch size."""
        size = to_int(batch_size)
        if size is None or not 1 <= size <= MAX_BATCH_SIZE:
            warn_once(f"a batch size is not published: must be a whole number from 1 to {MAX_BATCH_SIZE}")
        else:
            self._worker.set_batch_size(size)

    @property
    def _world_size(self) -> int:
        """Return how many ranks train together, as far as is known."""
        return self._n_ranks or self._worker.world_size

    @classmethod
    def from_settings(
        cls,
        settings: Settings | None,
        *,
        clock_ns: Callable[[], int],
        clock_s: Callable[[], float],
        splits_runs: bool = False,
    ) -> "Publisher":
        """Return a publisher with settings that are resolved already; None: it is off.

        `splits_runs`: it begins another run where another training begins, see `next_run`.
        """
        publisher = cls.__new__(cls)
        publisher._splitter = RunSplitter(is_on=splits_runs)  # noqa: SLF001 — the same class
        publisher._open(settings, clock_ns, clock_s)  # noqa: SLF001 — the same class
        return publisher

    @classmethod
    def shared(cls, **options: Unpack[PublisherOptions]) -> "Publisher":
        """Return this process's publisher of a job, run and rank: the one that `publish_iterations` uses for them.

        Args:
            options: who publishes, and where to: as for `publish_iterations`.
        """
        return cls.find_or_open(resolve_or_warn(options, caller="Publisher.shared"), time.monotonic_ns, time.time)

    @classmethod
    def find_or_open(
        cls,
        settings: Settings | None,
        clock_ns: Callable[[], int],
        clock_s: Callable[[], float],
        *,
        announces: bool = False,
    ) -> "Publisher":
        """Return this process's publisher for a job, run and rank; a new one where none is open.

        `announces`: whether it is told how long a training is that begins now.
        """
        if settings is None:
            return off()
        key = key_of(settings)
        with PUBLISHERS.lock:
            publisher = PUBLISHERS.by_key.get(key)
            if publisher is None or publisher.closed:
                publisher = PUBLISHERS.by_key[key] = cls.from_settings(
                    settings, clock_ns=clock_ns, clock_s=clock_s, splits_runs=settings.given.run is None
                )
        publisher.wrap(announces=announces)
        publisher._worker.commands.allow_control(settings)  # noqa: SLF001 — the same class
        if settings.batch_size is not None:
            publisher.set_batch_size(settings.batch_size)
        return publisher

    @classmethod
    def for_callback(cls, **options: Unpack[PublisherOptions]) -> "Publisher":
        """Return this process's publisher of a job for a framework's callback, which tells each optimizer step.

        It is the one that `publish_iterations` uses for the job, run and rank, if the training wraps its loader, too.
        From now on the callback's calls count: `begin()` at the start, `iteration()` after each optimizer step,
        `pause()` before a validation or checkpoint and `begin()` after it, `close()` at the end. Nothing else does.
        """
        publisher = cls.shared(**options)
        publisher.recorder.count_by("callback")
        return publisher

    def _open(
        self,
        settings: Settings | None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        clock_s: Callable[[], float] = time.time,
        connect: Connect | None = None,
        totals: tuple[object, object] = (None, None),
        slot: RunSlot | None = None,
    ) -> None:
        self._is_over = False
        self._opened = _Opened(settings, clock_ns, clock_s, connect, slot)
        self._target_metric = TargetMetric()
        self.trial = None
        self.recorder = recorder = Recorder(clock_ns)
        if self._splitter.is_on:
            recorder.begin_next_run = _weak_call(weakref.WeakMethod(self.begin_next_run))
        self.passes = LoaderPasses(recorder)
        self._waiter = OutputWaiter(recorder)
        self.progress = RunProgress(totals[0], lambda: recorder.n_ended)
        if totals[1] is not None:
            self.progress.set_total_work(totals[1])
        self._worker: PublisherWorker | NoWorker = NO_WORKER
        if settings is None:
            return
        try:
            clock_ns()  # one that fails does so here, and not in the loop
            worker = PublisherWorker(settings, recorder, self.progress, connect=connect, started_at_s=float(clock_s()))
            worker.start()
        except Exception as error:  # noqa: BLE001 — a clock that fails, no thread left: training goes on whatever it is
            warn_once(f"publishing is off: {error}")
            return
        self._worker = worker
        worker.commands.allow_control(settings)
        count_steps(recorder)
        end_with_owner(self, worker, slot)
        PUBLISHERS.opened.add(self)
        after_each_cell(_end_cell)

    def _open_again(self) -> None:
        """Begin another run, like the one before; what was announced for that, and not found out, holds again."""
        former, opened = self._worker, self._opened
        totals = self.progress.given_total, self.progress.total_work
        self._open(opened.settings, opened.clock_ns, opened.clock_s, opened.connect, totals, opened.slot)
        if former.batch_size is not None:
            self.set_batch_size(former.batch_size)


class _Opened(NamedTuple):
    """What a publisher was opened with."""

    settings: Settings | None
    clock_ns: Callable[[], int]
    clock_s: Callable[[], float]
    connect: Connect | None
    slot: RunSlot | None


def _weak_call(method: "weakref.WeakMethod[Callable[[], bool]]") -> Callable[[], bool]:
    """Return a function that calls a method, and does not keep its object alive."""

    def call() -> bool:
        bound = method()
        return bound is not None and bound()

    return call


def _end_cell(*_: object) -> None:
    """Take note that a notebook's cell has ended, whatever its result; nothing here may disturb the notebook."""
    with contextlib.suppress(Exception):
        for publisher in list(PUBLISHERS.opened):
            publisher.end_cell()


def off() -> Publisher:
    """Return a publisher that publishes nothing: what a copy in another process becomes."""
    return Publisher.from_settings(None, clock_ns=time.monotonic_ns, clock_s=time.time)


copyreg.pickle(Publisher, lambda _: (off, ()))
