"""A published loader stays what it is: the same object, of its class, and pickled and copied as before."""

import copy
import gc
import os
import pickle
import subprocess
import sys
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import numpy as np
import pytest

from gridchase import Publisher
from publishers.training.publish_iterations import publish_iterations, publisher_of
from tests.publishers.training.fake_connection import FakeConnection, publisher_on, unused_broker

T = TypeVar("T")


class Loader:
    """A loader as there are many."""

    def __init__(self, n_batches: int) -> None:
        self.n_batches = n_batches
        self.sampler = ["sampler"]

    def __len__(self) -> int:
        return self.n_batches

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.n_batches))


class Slotted:
    """One without a `__dict__`."""

    __slots__ = ("n_batches",)

    def __init__(self, n_batches: int) -> None:
        self.n_batches = n_batches

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.n_batches))


class Typed(Generic[T]):
    """One with a type parameter, which makes a generator, and refuses attributes, as PyTorch's does."""

    def __init__(self, *batches: T) -> None:
        object.__setattr__(self, "batches", batches)

    def __setattr__(self, name: str, value: object) -> None:
        raise ValueError(f"{name} must not be set")

    def __iter__(self) -> Iterator[T]:
        yield from self.batches  # type: ignore[attr-defined]


class Disguised(Loader):
    """One that says that it is of another class, as those of accelerate do."""

    @property
    def __class__(self) -> Any:  # noqa: ANN401 — as accelerate has it
        return Slotted

    @__class__.setter
    def __class__(self, _: object) -> None:
        raise AttributeError("not this way")


class Picky(Loader):
    """One whose class wants to know its children."""

    def __init_subclass__(cls, *, wanted: int) -> None:
        raise TypeError("no children")


class Attributed(Loader):
    """One that sets an attribute on what each of its children's `__iter__` returns, as those of grain do."""

    def __init_subclass__(cls) -> None:
        inner = cls.__iter__

        def outer(self: Self) -> Iterator[int]:
            iterator: Any = inner(self)
            iterator.state = "kept"
            return iterator  # type: ignore[no-any-return]

        cls.__iter__ = outer  # type: ignore[method-assign, assignment]


class Pipeline:
    """A loader that is its own iterator, and begins again, as those of DALI do."""

    def __init__(self, n_batches: int) -> None:
        self.n_batches = n_batches
        self.position = 0

    def __iter__(self) -> Self:
        self.position = 0
        return self

    def __next__(self) -> int:
        if self.position >= self.n_batches:
            raise StopIteration
        self.position += 1
        return self.position - 1


class Reduced(Loader):
    """One that says how it is pickled."""

    def __reduce__(self) -> tuple[type[Self], tuple[int]]:
        return type(self), (self.n_batches,)


KINDS = [Loader, Slotted, Typed, Disguised, Attributed, Reduced, Pipeline]


def five_batches(kind: Any) -> Any:  # noqa: ANN401 — of the class
    """Return a loader of a class."""
    return Typed(0, 1, 2, 3, 4) if kind is Typed else kind(5)


@pytest.fixture
def connection() -> FakeConnection:
    return FakeConnection()


@pytest.fixture
def publisher(connection: FakeConnection) -> Iterator[Publisher]:
    with publisher_on(connection) as opened:
        yield opened


@pytest.mark.parametrize("base", KINDS)
def test_it_is_the_same_object_and_of_its_class(base: Any, publisher: Publisher) -> None:  # noqa: ANN401 — a class
    loader = five_batches(base)
    published = publisher.iterations(loader)
    assert published is loader
    assert issubclass(type(published), base)
    assert (type(published).__name__, type(published).__module__) == (base.__name__, base.__module__)
    assert type(published).__doc__ == base.__doc__
    for _ in range(3):
        assert list(published) == [0, 1, 2, 3, 4]
    assert publisher.recorder.n_ended == 15
    assert publisher.recorder.n_epochs == 3 - 1


@pytest.mark.parametrize("base", KINDS)
def test_pickled_and_copied_it_is_of_its_own_class(base: Any, publisher: Publisher) -> None:  # noqa: ANN401 — a class
    published = publisher.iterations(five_batches(base))
    # Bare, too, these two need protocol 2.
    protocols = range(2 if base in {Slotted, Disguised} else 0, pickle.HIGHEST_PROTOCOL + 1)
    pickled = [pickle.loads(pickle.dumps(published, protocol)) for protocol in protocols]  # noqa: S301 — our own
    for twin in [*pickled, copy.copy(published), copy.deepcopy(published)]:
        assert type(twin) is base
        assert list(twin) == [0, 1, 2, 3, 4]
    assert publisher.recorder.n_ended == 0


@pytest.mark.parametrize("kind", [list, tuple, range, np.arange])
def test_what_cannot_be_derived_from_keeps_its_length_and_items(kind: Any, publisher: Publisher) -> None:  # noqa: ANN401
    batches = kind(5) if kind in {range, np.arange} else kind(range(5))
    published = publisher.iterations(batches)
    assert len(published) == 5
    assert published[3] == 3
    assert list(published) == [0, 1, 2, 3, 4]
    assert publisher.recorder.n_ended == 5


def test_a_class_that_wants_no_children_is_wrapped(publisher: Publisher) -> None:
    published: Any = publisher.iterations(Picky(5))
    assert not isinstance(published, Picky)
    assert (list(published), published.sampler) == ([0, 1, 2, 3, 4], ["sampler"])
    assert publisher.recorder.n_ended == 5


def test_a_generator_becomes_a_generator(publisher: Publisher) -> None:
    published = publisher.iterations(batch for batch in range(5))
    assert isinstance(published, types.GeneratorType)
    assert publisher_of(published) is publisher
    assert list(published) == [0, 1, 2, 3, 4]
    assert publisher.recorder.n_ended == 5


@pytest.mark.parametrize(
    "make", [lambda: iter([0, 1, 2]), lambda: map(int, "012"), lambda: zip("ab", "cd", strict=True)]
)
def test_an_iterator_stays_one(make: Any, publisher: Publisher) -> None:  # noqa: ANN401 — any iterator
    published = publisher.iterations(make())
    assert iter(published) is published
    assert list(published) == list(make())
    assert next(published, "no more") == "no more"
    assert publisher.recorder.n_ended == len(list(make()))


def test_next_on_a_loader_that_is_an_iterator_counts_too(publisher: Publisher) -> None:
    pipeline = publisher.iterations(Pipeline(5))
    batches = [next(pipeline) for _ in range(5)]
    with pytest.raises(StopIteration):
        next(pipeline)
    assert batches == [0, 1, 2, 3, 4]
    assert publisher.recorder.n_ended == 5


def test_a_loader_that_is_an_iterator_is_not_kept_alive(publisher: Publisher) -> None:
    pipeline = publisher.iterations(Pipeline(5))
    next(pipeline)
    next(pipeline)
    reference = weakref.ref(pipeline)
    del pipeline
    gc.collect()
    assert reference() is None


def test_the_iterator_of_the_loader_is_made_where_the_bare_one_makes_it(publisher: Publisher) -> None:
    made = []

    class Noting(Loader):
        def __iter__(self) -> Iterator[int]:
            made.append(self.n_batches)
            return super().__iter__()

    iterator = iter(publisher.iterations(Noting(5)))
    assert made == [5]
    assert next(iterator) == 0


def test_a_framework_can_make_another_one_like_it(publisher: Publisher) -> None:
    published = publisher.iterations(Loader(5))
    rebuilt = type(published)(n_batches=3)
    assert list(rebuilt) == [0, 1, 2]
    assert publisher.recorder.n_ended == 3


def test_a_loader_that_is_published_again_belongs_to_the_last_publisher() -> None:
    loader = Loader(5)
    first, second = FakeConnection(), FakeConnection()
    with publisher_on(first) as before:
        before.iterations(loader)
        list(loader)
    with publisher_on(second, run="r2") as after:
        assert after.iterations(after.iterations(loader)) is loader
        assert type(loader).__mro__[1] is Loader
        assert publisher_of(loader) is after
        list(loader)
    assert (first.n_iterations(), second.n_iterations()) == (5, 5)


def test_once_its_publisher_is_closed_it_is_as_bare() -> None:
    loader = Loader(5)
    with publisher_on(FakeConnection()) as publisher:
        publisher.iterations(loader)
    assert type(iter(loader)) is type(iter(range(5)))


def test_nothing_of_the_loaders_is_shadowed(publisher: Publisher) -> None:
    before = set(dir(Loader(5)))
    loader = publisher.iterations(Loader(5))
    assert {name for name in set(dir(loader)) - before if not name.startswith("_")} == set()
    assert vars(loader) == vars(Loader(5))


def test_the_publisher_of_a_loader_made_anew_is_the_one_of_the_process(caplog: pytest.LogCaptureFixture) -> None:
    where = {"rank": 0, "world_size": 1, "broker": unused_broker()}
    loader = publish_iterations(Loader(5), job="one", **where)  # type: ignore[arg-type]  # by name
    publisher = publisher_of(loader)
    assert publisher_of(copy.copy(loader)) is publisher
    other = publisher_of(publish_iterations(Loader(5), job="two", **where))  # type: ignore[arg-type]  # by name
    assert publisher_of(copy.copy(loader)).closed
    assert publisher_of(None).closed
    assert len([record for record in caplog.records if "publisher_of" in record.message]) == 2
    for opened in (publisher, other):
        opened.close()
    assert publisher_of("anything").closed


def test_a_pickled_loader_is_read_where_nothing_of_ours_is(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text("class Loader:\n    def __iter__(self):\n        return iter(range(5))\n")
    write = (
        "import pickle, sys; sys.path.insert(0, sys.argv[1]); from theirs import Loader; "
        "from gridchase import publish_iterations as publish; "
        "pickle.dump(publish(Loader(), job='toy'), open(sys.argv[1] + '/loader', 'wb'))"
    )
    read = (
        "import pickle, sys; sys.path.insert(0, sys.argv[1]); sys.modules['publishers'] = None; "
        "print(list(pickle.load(open(sys.argv[1] + '/loader', 'rb'))))"
    )
    subprocess.run([sys.executable, "-c", write, str(tmp_path)], check=True, env={**os.environ, "GRIDCHASE_QUIET": "1"})
    done = subprocess.run([sys.executable, "-I", "-c", read, str(tmp_path)], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[0, 1, 2, 3, 4]"
