"""Passes over a loader, and when their iterations began and ended.

An iteration lasts from the request of one batch to the request of the next: the loader's own time and the training step
are within it. The first one of a pass begins when its batch is handed out, since starting a loader's workers is no
iteration; the last one ends when the loop asks for more and there is none. A pass that is left by `break` counts the
batch in hand where it took at least half as long as the one before, else none; a single batch that is only looked at,
as in `next(iter(loader))`, is no pass at all.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from publishers.training.progress import length_of
from publishers.training.recorder import CHUNK, Chunk, Recorder
from publishers.training.settings import MAX_BATCH_SIZE, to_int

if TYPE_CHECKING:
    from publishers.training.publisher import Publisher

T = TypeVar("T")
_OWN: Final = frozenset({"iterable", "publisher", "_n_epochs"})


class PublishedIterable(Generic[T]):
    """An iterable, and the publisher of its iterations; every pass over it is an epoch.

    Attributes of the iterable, such as a loader's `sampler`, are reachable through it. `n_epochs` is how many passes
    the training makes over it, where that is known.
    """

    def __init__(self, iterable: Iterable[T], publisher: "Publisher", n_epochs: int | None = None) -> None:
        self.iterable = iterable
        self.publisher = publisher
        self._n_epochs = n_epochs

    def __iter__(self) -> Iterator[T]:
        """Return a pass over the iterable."""
        if self.publisher.closed:
            return iter(self.iterable)
        return _publish(self.iterable, self.publisher.recorder, self._begin_pass)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 — whatever the iterable has
        """Return the iterable's attribute."""
        if name in _OWN or (name.startswith("__") and name.endswith("__")):  # asked for by copy and pickle, too early
            raise AttributeError(name)
        return getattr(self.iterable, name)

    def pause(self) -> None:
        """End the iteration of the batch in hand here: what follows until the next batch (validation) is none."""
        if not self.publisher.closed:
            self.publisher.recorder.pause_pass()

    @property
    def should_stop(self) -> bool:
        """Return whether the training should end early: see `Publisher.should_stop`."""
        return self.publisher.should_stop

    def finish(self, reached: bool | None = None) -> None:
        """End the run: see `Publisher.close`."""
        self.publisher.close(reached)

    def _begin_pass(self) -> None:
        self.publisher.length.begin_pass(length_of(self.iterable), self._n_epochs)


class PublishedSized(PublishedIterable[T]):
    """The same for an iterable that has a length."""

    iterable: Any

    def __len__(self) -> int:
        """Return the length of the iterable."""
        return len(self.iterable)


def published(iterable: Iterable[T], publisher: "Publisher", n_epochs: int | None = None) -> PublishedIterable[T]:
    """Return an iterable with its publisher; it has a length where the iterable has one."""
    kind = PublishedSized if hasattr(type(iterable), "__len__") else PublishedIterable
    return kind(iterable, publisher, n_epochs)


def _publish(iterable: Iterable[T], recorder: Recorder, begin_pass: Callable[[], None]) -> Generator[T, None, None]:
    """Yield what the iterable yields, and record the time at each request. The inner loop is the hot path."""
    iterator = iter(iterable)
    clock_ns = recorder.clock_ns
    for item in iterator:  # noqa: B007 — it is handed out below
        break
    else:
        return
    recorder.offer()
    yield item  # left here, it was a look at one batch: nothing is recorded
    end_ns = clock_ns()
    chunk = recorder.start_pass()
    begin_pass()
    chunk.marks.append(end_ns)
    try:
        while True:
            append, n_before = chunk.marks.append, _n_own_marks(chunk)
            for item in islice(iterator, CHUNK):
                yield item
                append(clock_ns())
            if _n_own_marks(chunk) < n_before + CHUNK:
                break  # the iterator has ended: it must not be asked again
            chunk = recorder.rotate(chunk)
    except GeneratorExit:
        recorder.leave_pass(chunk)
        raise
    finally:
        recorder.break_off(chunk)


def _n_own_marks(chunk: Chunk) -> int:
    return len(chunk.marks) - chunk.extra


def own_batch_size(iterable: object) -> int | None:
    """Return the batch size that a loader (PyTorch's, for one) says it has."""
    try:
        own = to_int(getattr(iterable, "batch_size", None))
    except Exception:  # noqa: BLE001 — a property of somebody else's loader
        return None
    return own if own is not None and 1 <= own <= MAX_BATCH_SIZE else None
