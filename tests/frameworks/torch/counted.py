"""A training in this process, and what was published of it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, TensorDataset

from gridchase import Publisher
from publishers.messages.training import Iterations
from tests.publishers.training.fake_connection import FakeConnection, epochs, publisher_on

N_SAMPLES: Final = 80
SAMPLES: Final = TensorDataset(torch.randn(N_SAMPLES, 4), torch.randn(N_SAMPLES, 1))


@dataclass(frozen=True, slots=True)
class Published:
    """What was published.

    Attributes:
        messages: of the iterations.
        epochs: how many iterations each epoch had.
        total: how long the training was said to be at its end.
    """

    messages: list[Iterations]
    epochs: dict[int, int]
    total: int | None

    @property
    def n_iterations(self) -> int:
        """Return how many iterations there were."""
        return sum(self.epochs.values())

    @property
    def counted_by(self) -> set[str]:
        """Return what has told them."""
        return {message.counted_by for message in self.messages}

    @property
    def waits_ns(self) -> list[int]:
        """Return the time from each end to the next request within a message, where requests are known [ns]."""
        return [
            request - end
            for message in self.messages
            for end, request in zip(message.ends_ns(), list(message.requests_ns() or [])[1:], strict=False)
        ]


def published(train: Callable[[Publisher], object], **options: object) -> Published:
    """Train, and return what was published."""
    connection = FakeConnection()
    with publisher_on(connection, clock_ns=time.monotonic_ns, **options) as publisher:
        train(publisher)
    return Published(connection.messages(), epochs(connection), connection.statuses()[-1].total_iterations)


def net() -> torch.nn.Module:
    """Return a small model."""
    return torch.nn.Linear(4, 1)


def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:  # noqa: ANN401 — two tensors
    """Return the loss of a model for a batch."""
    samples, targets = batch
    return torch.nn.functional.mse_loss(model(samples), targets)


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:  # noqa: ANN401 — two tensors
    """Train a model with a batch."""
    optimizer.zero_grad()
    loss(model, batch).backward()
    optimizer.step()


def loader(n_batches: int = 10, **options: Any) -> Any:  # noqa: ANN401 — as DataLoader takes them
    """Return a loader of so many batches."""
    return DataLoader(SAMPLES, batch_size=N_SAMPLES // n_batches, **options)
