"""Makes a data loader publish while it stays what it is: the same object, of a class derived from its own.

Frameworks look at what they get: whether it is a `DataLoader`, what its sampler is, how it was made. So the loader's
class is replaced by a subclass that differs in `__iter__` alone. It is the same object, rather than a second one with
the same state: there is one `__del__` that stops its workers, what others have kept of it stays true, and slots need no
copy. What a framework needs to make another one like it is on the class. Pickled and copied it is of its own class.

A generator becomes a generator. What has no class that can be derived from (lists, arrays) is wrapped.
"""

import copyreg
import functools
import types
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from publishers.training.iterations.data_loader import length_of, record_pass
from publishers.training.iterations.loader_pass import LoaderPasses
from publishers.training.iterations.open_pass import Source
from publishers.training.iterations.progress import RunProgress
from publishers.training.iterations.recorder import Recorder
from publishers.training.iterations.steps.optimizer_hook import count_steps
from publishers.training.iterations.work import WorkOf

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741 — an iterable of any kind

_MARK: Final = "_gridchase_loader_class"
_CONTAINERS: Final = (str, bytes, bytearray, memoryview, dict, set, frozenset, range)
_generators: "weakref.WeakKeyDictionary[Generator[Any, None, None], object]" = weakref.WeakKeyDictionary()
"""The publisher of each generator that we have made."""


class IterationSink(Protocol):
    """What a published loader needs of its publisher."""

    recorder: Recorder
    passes: LoaderPasses
    progress: RunProgress

    def opens(self) -> bool:
        """Return whether a pass that begins now is published."""


class LoaderClass:
    """What a class of published loaders knows, beside what it inherits."""

    def __init__(
        self,
        base: Any,  # noqa: ANN401 — a class
        publisher: IterationSink,
        n_epochs: int | None,
        work_of: WorkOf | None = None,
    ) -> None:
        self.base = base
        self.publisher = publisher
        self.n_epochs = n_epochs
        self.work_of = work_of
        self.has_trained = False  # a pass over it has led to a step, or was counted
        self.open: weakref.WeakKeyDictionary[object, Generator[Any, None, None]] = weakref.WeakKeyDictionary()

    def next(self, loader: Any) -> object:  # noqa: ANN401 — an iterator of any class
        """Return the next batch of a loader that is an iterator, and so the pass over itself."""
        if not self.publisher.opens():
            return self.base.__next__(loader)
        batches = self.open.get(loader)
        if batches is None:
            batches = self.open[loader] = self.record(loader, _asked(self.base, weakref.ref(loader)))
        try:
            return next(batches)
        except BaseException:
            self.open.pop(loader, None)  # some begin again
            raise

    def record(self, loader: object, iterator: Iterator[T]) -> Generator[T, None, None]:
        """Return a generator of what an iterator over a loader yields, which records the pass."""
        publisher, source = self.publisher, Source.of(loader)
        recorder = publisher.recorder
        count_steps(recorder)
        # An iterator is not to be kept alive by its own pass.
        find: Callable[[], object] = source.reference or (lambda: loader)

        def begin_epoch() -> None:
            self.has_trained = True
            is_in_steps = recorder.counted_by != "loader"
            publisher.progress.begin_pass(length_of(find()), self.n_epochs, is_in_steps=is_in_steps)

        if self.has_trained and recorder.gate is not None and recorder.gate.is_ended:
            iterator = iter(())  # the training has ended early
        return record_pass(iterator, publisher.passes, source, begin_epoch, self.work_of)


class RecordedIterator(Generic[T]):
    """An iterator that takes attributes, as some loaders set them on what their `__iter__` returns."""

    def __init__(self, batches: Iterator[T]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[T]:
        """Return itself."""
        return self

    def __next__(self) -> T:
        """Return the next batch."""
        return next(self._batches)


class PublishedIterable(Generic[T]):
    """An iterable that publishes, around one whose class cannot be derived from: a list, an array."""

    def __init__(
        self,
        iterable: Iterable[T],
        publisher: IterationSink,
        n_epochs: int | None = None,
        work_of: WorkOf | None = None,
    ) -> None:
        self._iterable: Any = iterable
        self._class = LoaderClass(type(iterable), publisher, n_epochs, work_of)

    def __iter__(self) -> Iterator[T]:
        """Return a pass over the iterable."""
        iterator: Iterator[T] = iter(self._iterable)
        return iterator if not self._class.publisher.opens() else self._class.record(self._iterable, iterator)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 — whatever the iterable has
        """Return the iterable's attribute."""
        if name.startswith("__") and name.endswith("__"):  # copy and pickle ask for them, too early
            raise AttributeError(name)
        return getattr(self._iterable, name)

    def __reduce__(self) -> tuple[Callable[[Iterable[T]], Iterable[T]], tuple[Iterable[T]]]:
        """Copy and pickle the iterable alone: in another process nothing is published."""
        return _same, (self._iterable,)


class PublishedSized(PublishedIterable[T]):
    """The same for an iterable that has a length."""

    def __len__(self) -> int:
        """Return the length of the iterable."""
        return len(self._iterable)

    def __getitem__(self, key: Any) -> Any:  # noqa: ANN401 — an index, a slice, whatever the iterable takes
        """Return an item, without recording anything."""
        return self._iterable[key]


def published(iterable: I, publisher: IterationSink, n_epochs: int | None = None, work_of: WorkOf | None = None) -> I:
    """Return an iterable that publishes its passes: the same object where that is possible.

    Args:
        iterable: any; one that is published already is so by this publisher from now on.
        publisher: what the iterations are recorded for.
        n_epochs: how many passes over it the training makes; None: unknown.
        work_of: returns how much work a batch is; None: unknown.
    """
    known = getattr(type(iterable), _MARK, None)
    if isinstance(iterable, types.GeneratorType):
        return cast("I", _generator(iterable, LoaderClass(types.GeneratorType, publisher, n_epochs, work_of)))
    if isinstance(iterable, PublishedIterable):
        iterable = iterable._iterable  # noqa: SLF001 — our own class
    base = known.base if isinstance(known, LoaderClass) else type(iterable)
    if _has_own_class(iterable, base) and _derive(iterable, LoaderClass(base, publisher, n_epochs, work_of)):
        return iterable
    if hasattr(base, "__next__"):
        return cast("I", _generator(cast("Iterator[Any]", iterable), LoaderClass(base, publisher, n_epochs, work_of)))
    kind = PublishedSized if hasattr(base, "__len__") else PublishedIterable
    return cast("I", kind(cast("Iterable[Any]", iterable), publisher, n_epochs, work_of))


def publisher_behind(iterable: object) -> object:
    """Return the publisher of an iterable that `published` has returned; None: there is none."""
    known = getattr(type(iterable), _MARK, None)
    if isinstance(known, LoaderClass):
        return known.publisher
    if isinstance(iterable, PublishedIterable):
        return iterable._class.publisher  # noqa: SLF001 — our own class
    return _generators.get(iterable) if isinstance(iterable, types.GeneratorType) else None


def _has_own_class(iterable: object, base: Any) -> bool:  # noqa: ANN401 — a class
    """Return whether its passes are those of a class written in Python, which can be derived from."""
    if isinstance(iterable, _CONTAINERS) or hasattr(base, "__array__"):
        return False
    if hasattr(base, "__next__") and (base.__hash__ is None or not hasattr(base, "__weakref__")):
        return False
    return isinstance(getattr(base, "__iter__", None), types.FunctionType)


def _derive(loader: object, known: LoaderClass) -> bool:
    """Let a loader be of a subclass of its class, one for each publisher; return whether that is possible."""
    present = getattr(type(loader), _MARK, None)
    if isinstance(present, LoaderClass) and (present.publisher, present.n_epochs) == (known.publisher, known.n_epochs):
        present.work_of = known.work_of  # a loader that is wrapped in each epoch may have a new one each time
        return True
    try:
        derived = _subclass(known)
        # Not `loader.__class__ = …`: there are loaders that have a property of that name.
        object.__dict__["__class__"].__set__(loader, derived)
    except Exception:  # noqa: BLE001 — a class may refuse to be derived from in any way
        return False
    return True


def _subclass(known: LoaderClass) -> type:
    base: Any = known.base

    def __iter__(self: Any) -> Iterator[Any]:  # noqa: ANN401, N807 — of the derived class
        """Return a pass over the loader."""
        iterator = base.__iter__(self)
        if iterator is self:
            known.open.pop(self, None)
        if iterator is self or not known.publisher.opens():
            return cast("Iterator[Any]", iterator)
        batches = known.record(self, iterator)
        return batches if is_plain else RecordedIterator(batches)

    def __reduce_ex__(self: object, protocol: int) -> Any:  # noqa: ANN401, N807 — as pickle defines it
        """Copy and pickle what it was."""
        return _reduced(base.__reduce_ex__(self, protocol), type(self), base)

    namespace: dict[str, Any] = {
        _MARK: known,
        "__doc__": base.__doc__,
        "__iter__": __iter__,
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__reduce_ex__": __reduce_ex__,
        "__slots__": (),
    }
    if hasattr(base, "__next__"):
        namespace["__next__"] = lambda self: known.next(self)  # noqa: PLW0108 — a function, to be bound
    derived = type(base)(base.__name__, (base,), namespace)
    is_plain = derived.__dict__["__iter__"] is __iter__  # else the class has wrapped it, to set attributes on the pass
    return cast("type", derived)


def _asked(base: Any, reference: "weakref.ref[Any]") -> Generator[Any, None, None]:  # noqa: ANN401 — a class
    """Yield what an iterator yields when it is asked by its class, without keeping it alive."""
    while True:
        try:
            batch = base.__next__(reference())
        except StopIteration:
            return
        yield batch


def _generator(iterator: Iterator[T], known: LoaderClass) -> Generator[T, None, None]:
    """Return a generator for an iterator, which is one already, or has no class to derive from."""
    if not known.publisher.opens():
        return cast("Generator[T, None, None]", iterator)
    batches = known.record(iterator, iterator)
    _generators[batches] = known.publisher
    return batches


def _reduced(reduced: Any, derived: type, base: type) -> Any:  # noqa: ANN401 — as pickle defines it
    """Return what pickle is told of an object of a derived class, as if it were of its base."""
    if not isinstance(reduced, tuple):
        return reduced
    make, arguments, *rest = reduced
    arguments = tuple(base if one is derived else one for one in arguments)
    if getattr(make, "__module__", None) == copyreg.__name__ and "newobj" in make.__name__:  # pickle looks at its class
        return (functools.partial(make, *arguments), (), *rest)
    return (base if make is derived else make, arguments, *rest)


def _same(iterable: Iterable[T]) -> Iterable[T]:
    """Return the argument: what a wrapper is pickled as."""
    return iterable
