"""Trainings of kinds that public scripts have, without a line of ours: `python kinds.py several|interrupted|spawned`.

Each prints how many iterations it has made, one line a training; how the process ends is a part of its kind.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

N = 12
"""Batches of a pass."""


def tell(n: int) -> None:
    sys.stdout.write(f"{n}\n")
    sys.stdout.flush()


def loader(n: int = N, **options: Any) -> DataLoader:  # noqa: ANN401 — as DataLoader takes them
    return DataLoader(TensorDataset(torch.randn(4 * n, 8), torch.randn(4 * n, 1)), batch_size=4, **options)


def loss(model: nn.Module, batch: Any) -> torch.Tensor:  # noqa: ANN401 — two tensors
    samples, targets = batch
    return nn.functional.mse_loss(model(samples), targets)


def two_optimizers() -> int:
    generator, critic = nn.Linear(8, 8), nn.Linear(8, 1)
    first, second = torch.optim.Adam(generator.parameters()), torch.optim.Adam(critic.parameters())
    for samples, _ in loader():
        for optimizer in (second, first):
            optimizer.zero_grad()
            critic(generator(samples)).mean().backward()
            optimizer.step()
    return N


def accumulated_with_an_evaluation_inside() -> int:
    model, validation, n = nn.Linear(8, 1), loader(3), 0
    optimizer = torch.optim.AdamW(model.parameters())
    for k, batch in enumerate(loader(), 1):
        (loss(model, batch) / 2).backward()
        if k % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
            n += 1
        if k % 5 == 0:
            model.eval()
            with torch.no_grad():
                sum(loss(model, each) for each in validation)
            model.train()
    return n


def lbfgs_with_a_closure() -> int:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    for batch in loader():

        def closure(batch: Any = batch) -> torch.Tensor:  # noqa: ANN401 — two tensors
            optimizer.zero_grad()
            error = loss(model, batch)
            error.backward()
            return error

        optimizer.step(closure)
    return N


def without_a_loader() -> int:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(N):
        optimizer.zero_grad()
        loss(model, (torch.randn(4, 8), torch.randn(4, 1))).backward()
        optimizer.step()
    return N


def with_workers_and_an_exception() -> int:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for k, batch in enumerate(loader(num_workers=2)):
        if k == N // 2:
            tell(k)
            raise ValueError("the loss is not a number")
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
    return N


def updated_by_hand() -> int:
    """Train without an optimizer: `gridchase run` does not see that, and begins no run for it."""
    model = nn.Linear(8, 1)
    for batch in loader():
        loss(model, batch).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.01 * parameter.grad)
                parameter.grad = None
    return 0


def ended_by_ctrl_c() -> int:
    model, batches = nn.Linear(8, 1), loader()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(9):
        for batch in batches:
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()
        if epoch:
            tell(2 * N)
            os.kill(os.getpid(), signal.SIGINT)
    return 0


def hogwild(model: nn.Module, n: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in loader(n):
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
    tell(n)


def spawned() -> None:
    model = nn.Linear(8, 1)
    model.share_memory()
    context = torch.multiprocessing.get_context("spawn")
    children = [context.Process(target=hogwild, args=(model, n)) for n in (N, 2 * N)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    sys.exit(max(child.exitcode for child in children))


KINDS: dict[str, list[Callable[[], int]]] = {
    "several": [
        two_optimizers,
        accumulated_with_an_evaluation_inside,
        lbfgs_with_a_closure,
        without_a_loader,
        with_workers_and_an_exception,
    ],
    "interrupted": [updated_by_hand, ended_by_ctrl_c],
}


def main(kind: str) -> None:
    if kind == "spawned":
        spawned()
    for train in KINDS.get(kind, []):
        tell(train())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1])
