"""Reads a data loader: its batches, with the time of each request, its length and its batch size.

Where nothing else tells, an iteration lasts from the request of one batch to the request of the next: the loader's own
time and the training step are within it. The first one of a pass begins when its batch is handed out, since starting a
loader's workers is no iteration; the last one ends when the loop asks for more and there is none. A pass that is left
by `break` counts the batch in hand where it took at least half as long as the one before, else none; a single batch
that is only looked at, as in `next(iter(loader))`, is no pass at all.
"""

from collections.abc import Callable, Generator, Iterator
from itertools import chain, islice
from typing import TypeVar

from publishers.training.coerce import to_int
from publishers.training.iterations.loader_pass import LOOK, LoaderPass, LoaderPasses
from publishers.training.iterations.open_pass import Source
from publishers.training.iterations.work import WorkOf, work_in
from publishers.training.settings import MAX_BATCH_SIZE

T = TypeVar("T")


def record_pass(
    iterator: Iterator[T],
    passes: LoaderPasses,
    source: Source,
    on_training: Callable[[], None],
    work_of: WorkOf | None = None,
) -> Generator[T, None, None]:
    """Yield what the iterator yields, and record the time at each request. The inner loops are the hot path.

    Args:
        iterator: the loader's own; it is not asked again once it has ended.
        passes: where the pass is recorded.
        source: which loader this is.
        on_training: called when the pass turns out to be one of the training.
        work_of: returns how much work a batch is; None: nobody knows.
    """
    clock_ns = passes.recorder.clock_ns
    asked_ns = clock_ns() if passes.recorder.passes else None
    first = list(islice(iterator, 1))
    batch = yield from _unrecorded(first, iterator, passes, source)
    if not batch:
        return
    with passes.open(source, asked_ns if batch is first else None, on_training) as this:
        if work_of is not None:
            this.add_work(work_in(work_of, batch[0]), this.times[0])
            iterator = _with_work(this, iterator, work_of)
        yield batch.pop()  # left here, it was a look at one batch: nothing is recorded
        this.start()
        n = 0
        while not this.has_ended(n):
            n = this.next_batches()
            append = this.times.append
            if this.counts:
                end = this.chunk.marks.append
                for item in islice(iterator, n):
                    append(clock_ns())
                    yield item
                    end(clock_ns())
            elif this.is_skipping:
                yield from _with_holds(this, islice(iterator, n), clock_ns)
            else:
                for item in islice(iterator, n):
                    yield item
                    append(clock_ns())


def _unrecorded(
    batch: list[T], iterator: Iterator[T], passes: LoaderPasses, source: Source
) -> Generator[T, None, list[T]]:
    """Yield batches while another thread trains; return the next one, in a list that is empty where there is none."""
    while batch and passes.is_elsewhere(source):
        yield from chain(batch, islice(iterator, LOOK - 1))
        batch = list(islice(iterator, 1))
    return batch


def _with_work(this: LoaderPass, batches: Iterator[T], work_of: WorkOf) -> Generator[T, None, None]:
    """Yield batches, and tell the pass how much work each is."""
    for batch in batches:
        this.add_work(work_in(work_of, batch))
        yield batch


def _with_holds(this: LoaderPass, batches: Iterator[T], clock_ns: Callable[[], int]) -> Generator[T, None, None]:
    """Yield batches, and tell the pass for how long each was held."""
    for batch in batches:
        received_ns = clock_ns()
        yield batch
        this.ask(received_ns, clock_ns())


def length_of(iterable: object) -> int | None:
    """Return the length of a loader; None where it has none, or only guesses it.

    PyTorch's loader of an iterable dataset warns, later on, where it had been asked and its guess was wrong.
    """
    try:
        sampler = getattr(iterable, "sampler", None)
        if sampler is not None and not hasattr(type(sampler), "__len__"):
            return None
        return to_int(len(iterable))  # type: ignore[arg-type]  # TypeError
    except Exception:  # noqa: BLE001 — somebody else's loader
        return None


def batch_size_of(iterable: object) -> int | None:
    """Return the batch size that a loader (PyTorch's, for one) says it has; None if it has none that can be used."""
    try:
        batch_size = to_int(getattr(iterable, "batch_size", None))
    except Exception:  # noqa: BLE001 — a property of somebody else's loader
        return None
    return batch_size if batch_size is not None and 1 <= batch_size <= MAX_BATCH_SIZE else None
