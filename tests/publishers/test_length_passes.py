"""How long a run says it is whose loaders are told the number of their passes, and how long a loader is."""

import pytest

from publishers import publish_iterations
from publishers.iterations import PublishedIterable
from publishers.length import length_of
from tests.publishers.fake_connection import unused_broker
from tests.publishers.run_lengths import passes, told


def wrapped(batches: object, *, run: str, epochs: object = None, **more: object) -> PublishedIterable[int]:
    """Wrap a loader where no broker is."""
    return publish_iterations(batches, job="long", run=run, broker=unused_broker(), epochs=epochs, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_wrapped_anew", [True, False])
def test_the_number_of_passes_may_be_told_where_there_are_no_epochs(is_wrapped_anew: bool) -> None:
    run = f"passes-{is_wrapped_anew}"
    loader = wrapped(range(10), run=run, epochs=4)
    seen = []
    for _ in range(4):
        passes(loader)
        seen.append(told(loader.publisher))
        passes(wrapped(range(2), run=run))  # a validation is part of the epoch
        loader = wrapped(range(10), run=run, epochs=4.0) if is_wrapped_anew else loader
    loader.finish()
    assert seen == [40, 48, 48, 48]


def test_of_two_loaders_with_a_number_of_passes_none_is_believed(caplog: pytest.LogCaptureFixture) -> None:
    loader, other = (wrapped(range(n), run="two", epochs=4) for n in (10, 3))
    passes(loader)
    for _ in range(3):
        passes(other)
        assert told(loader.publisher) is None
        passes(loader)
        assert told(loader.publisher) is None
    loader.finish()
    assert [record.message.partition(":")[0] for record in caplog.records if "length" in record.message] == [
        "the run's length is not published"
    ]


def test_more_passes_than_were_told_are_of_a_length_that_nobody_knows() -> None:
    loader = wrapped(range(10), run="more", epochs=2)
    for total in (20, 20, None, None):
        passes(loader)
        assert told(loader.publisher) == total
    loader.finish()


def test_a_shared_publisher_takes_the_trainings_word_whenever_it_comes() -> None:
    passes(wrapped(range(10), run="late", epochs=2))
    loader = wrapped(range(10), run="late", epochs=2, total_iterations="35")
    passes(loader)
    assert told(loader.publisher) == 35
    loader.finish()


def test_a_number_of_passes_that_is_none_is_warned_of_and_the_loader_is_as_good_as_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loader = wrapped(range(10), run="bad", epochs="many")
    assert list(loader) == list(range(10))
    assert told(loader.publisher) is None
    loader.finish()
    assert "epochs = many is not used: must be a whole number from 1 to" in caplog.text


class Loader:
    """A loader of PyTorch's kind: over an iterable dataset its sampler has no length, and asking for one costs."""

    def __init__(self, sampler: object) -> None:
        self.sampler = sampler
        self.n_asked = 0

    def __len__(self) -> int:
        self.n_asked += 1
        return 10


class Broken:
    """A loader whose every property fails."""

    def __len__(self) -> int:
        raise ZeroDivisionError

    @property
    def sampler(self) -> object:
        raise ValueError("not yet")


def test_the_length_of_a_loader_is_what_it_knows_and_never_a_fault() -> None:
    guessing = Loader(sampler=object())
    loaders = [range(7), Loader(sampler=range(9)), Loader(sampler=None), guessing, iter([]), Broken()]
    assert [length_of(loader) for loader in loaders] == [7, 10, 10, None, None, None]
    assert guessing.n_asked == 0
