"""PyTorch's loaders in all their forms: the same batches as bare, still loaders, and every step counted."""

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="`make test-frameworks` sets up an environment that has PyTorch")

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    SequentialSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from gridchase import Publisher
from publishers.training.publish_iterations import publisher_of
from tests.frameworks.torch.counted import N_SAMPLES, SAMPLES, loader, loss, net, published, step
from tests.publishers.training.fake_connection import FakeConnection, publisher_on


class Stream(IterableDataset[Any]):  # type: ignore[misc]  # torch is not installed where types are checked
    """Samples without a length, shared among the workers."""

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, n = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return (SAMPLES[k] for k in range(first, N_SAMPLES, n))


LOADERS: dict[str, Callable[[], Any]] = {
    "shuffled": lambda: loader(shuffle=True),
    "two workers": lambda: loader(shuffle=True, num_workers=2),
    "persistent workers": lambda: loader(num_workers=2, persistent_workers=True),
    "sampler": lambda: loader(sampler=WeightedRandomSampler([1.0] * N_SAMPLES, N_SAMPLES)),
    "batch sampler": lambda: DataLoader(
        SAMPLES, batch_sampler=BatchSampler(SequentialSampler(SAMPLES), 8, drop_last=False)
    ),
    "stream": lambda: DataLoader(Stream(), batch_size=8),
    "stream, two workers": lambda: DataLoader(Stream(), batch_size=8, num_workers=2),
    "no batches": lambda: DataLoader(SAMPLES, batch_size=None),
}


def trained(batches: Any, *, n_epochs: int = 2, accumulation: int = 1) -> list[list[float]]:  # noqa: ANN401 — a loader
    """Train with a loader's batches; return them."""
    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    seen = []
    for _ in range(n_epochs):
        for k, batch in enumerate(batches, 1):
            seen.append([float(value) for tensor in batch for value in tensor.flatten()])
            loss(model, batch).backward()
            if k % accumulation == 0:
                optimizer.step()
                optimizer.zero_grad()
    return seen


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("name", LOADERS)
def test_the_batches_are_those_of_the_bare_loader_and_every_step_is_counted(name: str, accumulation: int) -> None:
    found: list[list[list[float]]] = []

    def train(publisher: Publisher) -> None:
        bare = LOADERS[name]()
        wrapped = publisher.iterations(bare)
        assert wrapped is bare
        assert isinstance(wrapped, DataLoader)
        found.append(trained(wrapped, accumulation=accumulation))

    result = published(train)
    assert found[0] == trained(LOADERS[name](), accumulation=accumulation)
    assert (result.n_iterations, result.counted_by) == (len(found[0]) // accumulation, {"optimizer"})
    assert sum(len(message.requests_ns() or []) for message in result.messages) == result.n_iterations
    assert len(result.epochs) == 2


def test_it_is_still_a_loader() -> None:
    with publisher_on(FakeConnection()) as publisher:
        wrapped = publisher.iterations(loader(shuffle=True))
        assert (len(wrapped), wrapped.batch_size, type(wrapped).__name__) == (10, 8, "DataLoader")
        assert publisher_of(wrapped) is publisher
        with pytest.raises(ValueError, match="batch_size attribute should not be set"):
            wrapped.batch_size = 16
        twins = [copy.copy(wrapped), copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))]  # noqa: S301
        buffer = io.BytesIO()
        torch.save(wrapped, buffer)
        buffer.seek(0)
        twins.append(torch.load(buffer, weights_only=False))
        assert {type(twin) for twin in twins} == {DataLoader}


def test_the_epoch_of_a_distributed_sampler_is_set_as_before() -> None:
    def seen(publisher: Publisher | None) -> list[list[float]]:
        sampler = torch.utils.data.DistributedSampler(SAMPLES, num_replicas=2, rank=1, shuffle=True)
        bare = loader(sampler=sampler)
        batches = publisher.iterations(bare) if publisher is not None else bare
        first = trained(batches, n_epochs=1)
        batches.sampler.set_epoch(1)
        return first + trained(batches, n_epochs=1)

    found: list[list[list[float]]] = []
    result = published(lambda publisher: found.append(seen(publisher)))
    assert found == [seen(None)]
    assert result.epochs == {0: 5, 1: 5}


@pytest.mark.parametrize("n_workers", [0, 2])
def test_a_stateful_loader_keeps_its_state(n_workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

    def seen(publisher: Publisher | None) -> list[list[float]]:
        torch.manual_seed(0)
        make: Callable[[], Any] = lambda: stateful.StatefulDataLoader(  # noqa: E731 — short
            SAMPLES, batch_size=8, shuffle=True, num_workers=n_workers
        )
        wrap: Callable[[Any], Any] = publisher.iterations if publisher is not None else lambda bare: bare
        first, values = wrap(make()), []
        model = net()
        optimizer = torch.optim.Adam(model.parameters())
        iterator = iter(first)
        for _ in range(5):
            batch = next(iterator)
            step(model, optimizer, batch)
            values.append(batch[0].flatten().tolist())
        resumed = wrap(make())
        resumed.load_state_dict(first.state_dict())
        for batch in resumed:
            step(model, optimizer, batch)
            values.append(batch[0].flatten().tolist())
        return values

    found: list[list[list[float]]] = []
    result = published(lambda publisher: found.append(seen(publisher)))
    assert found == [seen(None)]
    assert len(found[0]) == result.n_iterations == 10


def test_uneven_accumulation_counts_steps_and_knows_the_total() -> None:
    def train(publisher: Publisher) -> None:  # as Hugging Face's Trainer does: 20 batches are 8 + 8 + 4
        model = net()
        optimizer = torch.optim.Adam(model.parameters())
        batches = publisher.iterations(loader(20))
        for _ in publisher.epochs(3):
            iterator = iter(batches)
            for n in (8, 8, 4):
                for batch in [next(iterator) for _ in range(n)]:
                    loss(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()

    result = published(train)
    assert result.epochs == {0: 3, 1: 3, 2: 3}
    assert result.total == 9


def test_every_step_is_counted_where_no_pass_is_gone_through_to_its_end() -> None:
    def train(publisher: Publisher) -> None:  # as Lightning does: nothing is asked for after the last batch
        model = net()
        optimizer = torch.optim.Adam(model.parameters())
        batches = publisher.iterations(loader(40))
        for _ in range(2):
            iterator = iter(batches)
            for _ in range(40):
                step(model, optimizer, next(iterator))

    assert published(train).epochs == {0: 40, 1: 40}


def validated(publisher: Publisher, *, is_wrapped: bool) -> list[tuple[int, int]]:
    """Train with a validation before, within and after each of two epochs; return from when to when they were [ns]."""
    model, clock_ns = net(), publisher.recorder.clock_ns
    optimizer = torch.optim.Adam(model.parameters())
    training, validation = publisher.iterations(loader(10)), loader(5)
    if is_wrapped:
        validation = publisher.iterations(validation)
    times_ns: list[tuple[int, int]] = []

    def validate() -> None:
        begin_ns = clock_ns()
        for batch in validation:
            loss(model, batch)
        times_ns.append((begin_ns, clock_ns()))

    validate()
    for _ in range(2):
        for k, batch in enumerate(training):
            step(model, optimizer, batch)
            if k == 4:
                validate()
        validate()
    return times_ns


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_a_validation_is_neither_counted_nor_part_of_an_iteration(is_wrapped: bool) -> None:
    validations: list[tuple[int, int]] = []
    result = published(lambda publisher: validations.extend(validated(publisher, is_wrapped=is_wrapped)))
    assert (result.n_iterations, result.epochs) == (20, {0: 10, 1: 10})
    for message in result.messages:
        spans = [*zip(message.requests_ns() or [], message.ends_ns(), strict=True)]
        if is_wrapped:  # then it is known to be a pause, not only that no batch of the training was asked for
            spans = [(message.begin_ns, message.ends_ns()[-1])]
        assert not any(begin < late and early < end for begin, end in spans for early, late in validations)


def test_zipped_and_nested_loaders_do_not_double_the_count() -> None:
    def zipped(publisher: Publisher) -> None:
        model = net()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            for batch, _ in zip(publisher.iterations(loader()), publisher.iterations(loader()), strict=True):
                step(model, optimizer, batch)

    def nested(publisher: Publisher) -> None:
        model = net()
        optimizer = torch.optim.Adam(model.parameters())
        inner = publisher.iterations(loader())
        for _ in publisher.iterations(loader(5)):
            for batch in inner:
                step(model, optimizer, batch)

    assert published(zipped).epochs == {0: 10, 1: 10}
    assert published(nested).n_iterations == 50
