"""Reads a data loader: its batches, with the time of each request, its length and its batch size.

An iteration lasts from the request of one batch to the request of the next: the loader's own time and the training step
are within it. The first one of a pass begins when its batch is handed out, since starting a loader's workers is no
iteration; the last one ends when the loop asks for more and there is none. A pass that is left by `break` counts the
batch in hand where it took at least half as long as the one before, else none; a single batch that is only looked at,
as in `next(iter(loader))`, is no pass at all.
"""

from collections.abc import Callable, Generator, Iterable
from itertools import islice
from typing import TypeVar

from publishers.training.coerce import to_int
from publishers.training.recorder import CHUNK, Chunk, Recorder
from publishers.training.settings import MAX_BATCH_SIZE

T = TypeVar("T")


def record_pass(iterable: Iterable[T], recorder: Recorder, begin_pass: Callable[[], None]) -> Generator[T, None, None]:
    """Yield what the iterable yields, and record the time at each request. The inner loop is the hot path."""
    iterator = iter(iterable)
    clock_ns = recorder.clock_ns
    for item in iterator:  # noqa: B007 — it is handed out below
        break
    else:
        return
    recorder.first_batch_fetched()
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
        recorder.abandon_pass(chunk)
        raise
    finally:
        recorder.append_break(chunk)


def _n_own_marks(chunk: Chunk) -> int:
    return len(chunk.marks) - chunk.extra


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
