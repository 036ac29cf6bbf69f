"""What the PyTorch trainings have in common: samples that know their numbers, a small net, an optimizer that counts."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from tests.frameworks.trainings.truth import Truth


class Numbers(Dataset[dict[str, Any]]):  # type: ignore[misc]  # torch is not installed where types are checked
    """Samples that carry their number."""

    def __init__(self, n: int) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, k: int) -> dict[str, Any]:
        return {"x": torch.full((4,), k / self._n), "labels": torch.tensor(float(k))}


class Stream(IterableDataset[dict[str, Any]]):  # type: ignore[misc]
    """The same without a length."""

    def __init__(self, n: int) -> None:
        self._numbers = Numbers(n)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self._numbers[k] for k in range(len(self._numbers)))


class Net(torch.nn.Module):  # type: ignore[misc]
    """A small net, which notes the batches it is trained with."""

    def __init__(self, truth: Truth) -> None:
        super().__init__()
        self._truth = truth
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss and the prediction."""
        if self._truth.batch_s:
            time.sleep(self._truth.batch_s)
        if self.training:
            self._truth.batch(labels.tolist())
        prediction = self.layer(x).squeeze(-1)
        return {"loss": torch.nn.functional.mse_loss(prediction, labels / 1_000), "logits": prediction}


class CountingSGD(torch.optim.SGD):  # type: ignore[misc]
    """SGD that counts its steps."""

    def __init__(self, parameters: Any, truth: Truth) -> None:  # noqa: ANN401 — those of torch
        super().__init__(parameters, lr=1e-3)
        self._truth = truth

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Make a step, and count it."""
        loss: float | None = super().step(closure)
        self._truth.step()
        return loss
