"""A training loop's publisher: what the loop calls, and the honest end of the run.

Publishing never raises, blocks or prints: what is wrong is logged once, to the logger `publishers`.
"""

import atexit
import copyreg
import logging
import time
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from publishers.connection import PahoConnection
from publishers.environment import MAX_BATCH_SIZE, whole_number
from publishers.recorder import CHUNK, Recorder
from publishers.sender import CLOSE_TIMEOUT_S, Connect, Sender
from publishers.settings import Settings, SettingsError, resolve
from publishers.wire import Metric

_LARGEST_METRIC: Final = 1e18  # what the bus takes; not a number is not below it, either
_LOGGER: Final = logging.getLogger("publishers")
_LOGGER.addHandler(logging.NullHandler())
_SENDERS: "weakref.WeakSet[Sender]" = weakref.WeakSet()
_warned: set[str] = set()


class Publisher:
    """Publishes the iterations of a training loop: call `iteration()` at the end of each.

    The arguments are those of `publish_iterations`. As a context manager it closes itself; else it says `finished` when
    the interpreter exits. One thread calls `iteration`, `begin`, `pause` and `epoch`.
    """

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
        self._open(settings, clock_ns, clock_s, connect)

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

    def metric(self, value: float, *, reached: bool = False) -> None:
        """Publish a validation metric of the present epoch, and whether it has reached its target; on one rank."""
        if self._sender is None:
            return
        try:
            number = float(value)
        except Exception as error:  # noqa: BLE001 — a tensor's own conversion may raise anything
            warn_once(f"a metric is not published: {type(value).__name__} is no number: {error}")
            return
        if abs(number) <= _LARGEST_METRIC:
            is_reached = _truth(reached) or False
            self._sender.add_metric(Metric(run=self._run, epoch=self.recorder.epoch, value=number, reached=is_reached))
        else:
            warn_once(f"a metric is not published: {number} is not from -{_LARGEST_METRIC:g} to {_LARGEST_METRIC:g}")

    def close(self, reached: bool | None = None) -> None:
        """Publish what is left and `finished`; wait for that 2 s at most. `reached`: whether the target was reached."""
        if self._sender is not None:
            self._sender.request_close(reached=_truth(reached))
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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Close it."""
        self.close()

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
        number = whole_number(batch_size)
        if number is None or not 1 <= number <= MAX_BATCH_SIZE:
            warn_once(f"a batch size is not published: must be a whole number from 1 to {MAX_BATCH_SIZE}")
        elif self._sender is not None:
            self._sender.set_batch_size(number)

    def _open(
        self,
        settings: Settings | None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        clock_s: Callable[[], float] = time.time,
        connect: Connect = PahoConnection,
    ) -> None:
        self._run = settings.run if settings else ""
        self.recorder = Recorder(clock_ns)
        self._sender: Sender | None = None
        if settings is None:
            return
        try:
            sender = Sender(settings, self.recorder, connect=connect, started_at_s=float(clock_s()))
            sender.start()
        except Exception as error:  # noqa: BLE001 — a clock that fails, no thread left: training goes on whatever it is
            warn_once(f"publishing is off: {error}")
            return
        self._sender = sender
        _SENDERS.add(sender)


def resolve_or_warn(find: Callable[[], Settings]) -> Settings | None:
    """Return the settings, or None where they are wrong: then publishing is off, and one warning says why."""
    try:
        return find()
    except SettingsError as error:
        warn_once(f"publishing is off: {error}")
    except Exception as error:  # noqa: BLE001 — training code may pass anything, and nothing may stop it
        warn_once(f"publishing is off: {type(error).__name__}: {error}")
    return None


def _truth(value: object) -> bool | None:
    """Return whether a value is true, such as an array of one element; None where it is None or cannot tell."""
    if value is None:
        return None
    try:
        return bool(value)
    except Exception as error:  # noqa: BLE001 — a tensor's own conversion may raise anything
        warn_once(f"reached is not published: {type(value).__name__} is neither true nor false: {error}")
        return None


def warn_once(text: str) -> None:
    """Log a warning unless this process has logged it already: loaders are wrapped anew in each epoch."""
    if text not in _warned:
        _warned.add(text)
        _LOGGER.warning("%s", text)


def _off() -> Publisher:
    """Return a publisher that publishes nothing: what a copy in another process becomes."""
    return Publisher.opened(None, clock_ns=time.monotonic_ns, clock_s=time.time)


copyreg.pickle(Publisher, lambda _: (_off, ()))


@atexit.register
def _say_finished() -> None:
    """Say `finished` for every run that nobody closed. The last will covers every end that does not get here."""
    deadline_s = time.monotonic() + CLOSE_TIMEOUT_S
    senders = [sender for sender in list(_SENDERS) if not sender.closed]
    for sender in senders:
        sender.request_close(reached=None)
    for sender in senders:
        sender.wait_closed(deadline_s - time.monotonic())
