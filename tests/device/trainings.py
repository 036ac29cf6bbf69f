"""Trainings of known kinds in PyTorch alone: nothing to download, and as long a step as a board is to have."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

STEP_S: Final = 0.06
"""How long a step of those that keep the board busy is made, by their batch."""
MAX_BATCH: Final = 1 << 15
N_WARM: Final = 10
N_TIMED: Final = 3
READ_EACH: Final = 50
KINDS: Final = {
    "tiny": "MLP (host bound)",
    "convolutions": f"convolutions, a loss read each {READ_EACH}th step",
    "compiled": "the same, compiled, no loss read",
    "graph": "the same in CUDA graphs, no loss read",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A training on a device, ready to go on.

    Attributes:
        name: one of `KINDS`.
        device: as PyTorch names it: `cuda`, or `cpu`.
        step: makes one step of the optimizer, and returns its loss, a tensor.
        reads_each: the loss is read after so many steps; 0: never.
    """

    name: str
    device: str
    step: Callable[[], Any]
    reads_each: int = 0

    def steps(self, duration_s: float) -> Iterator[int]:
        """Make steps for a time [s]; yield the number of each right after it, before its loss is read."""
        until_s, number = time.monotonic() + duration_s, 0
        while time.monotonic() < until_s:
            loss = self.step()
            yield number
            number += 1
            if self.reads_each and number % self.reads_each == 0:
                loss.item()

    def finish(self) -> None:
        """Wait until the device has done what was asked of it."""
        finish(self.device)


def finish(device: str) -> None:
    """Wait until a device has done what was asked of it."""
    import torch  # noqa: PLC0415 — so that without it this can be told

    if device == "cuda":
        torch.cuda.synchronize()


def trainings(device: str, kinds: Sequence[str], *, step_s: float = STEP_S) -> Iterator[Training]:
    """Yield trainings of these kinds, one after the other; the memory of one is free for the next.

    Args:
        device: as PyTorch names it; CUDA graphs are on `cuda` alone, and left out elsewhere.
        kinds: of `KINDS`.
        step_s: how long a step is to be of those that keep the device busy [s].
    """
    for kind in kinds:
        if kind == "tiny":
            yield _warm(kind, device, _step_of(*_mlp(device)))
        elif kind != "graph" or device == "cuda":
            model, batch = _convolutions(device, step_s)
            if kind == "compiled":
                model.compile()
            elif kind == "graph":
                import torch  # noqa: PLC0415 — as above

                with _autocast(device):
                    model = torch.cuda.make_graphed_callables(model, (batch,))
            yield _warm(kind, device, _step_of(model, batch), reads_each=READ_EACH * (kind == "convolutions"))


def _warm(kind: str, device: str, step: Callable[[], Any], *, reads_each: int = 0) -> Training:
    """Return a training whose first steps, which compile and allocate, are done."""
    for _ in range(N_WARM):
        step()
    finish(device)
    return Training(name=kind, device=device, step=step, reads_each=reads_each)


def _mlp(device: str) -> tuple[Any, Any]:
    import torch  # noqa: PLC0415 — as above

    layers = [torch.nn.Linear(256, 256) for _ in range(6)]
    return torch.nn.Sequential(*layers).to(device), torch.randn(64, 256, device=device)


def _convolutions(device: str, step_s: float) -> tuple[Any, Any]:
    """Return a network, and a batch of which a step takes about `step_s` [s]."""
    import torch  # noqa: PLC0415 — as above

    widths = (3, *(128 if device == "cuda" else 8,) * 8)
    layers = [torch.nn.Conv2d(one, other, 3, padding=1) for one, other in pairwise(widths)]
    model = torch.nn.Sequential(*layers).to(device)
    size, took_s = 1, 0.0
    while took_s < step_s / 2 and size < MAX_BATCH:
        size *= 2
        took_s = _seconds_of(_step_of(model, torch.randn(size, 3, 32, 32, device=device)), device)
    return model, torch.randn(max(round(size * step_s / took_s), 1), 3, 32, 32, device=device)


def _seconds_of(step: Callable[[], Any], device: str) -> float:
    """Return how long a step takes that is not the first [s]."""
    step()
    finish(device)
    begin_s = time.monotonic()
    for _ in range(N_TIMED):
        step()
    finish(device)
    return (time.monotonic() - begin_s) / N_TIMED


def _autocast(device: str) -> Any:  # noqa: ANN401 — PyTorch's own
    """Return what computes in bfloat16 on a GPU; without its cache, which CUDA graphs must not have."""
    import torch  # noqa: PLC0415 — as above

    return torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda", cache_enabled=False)


def _step_of(model: Any, batch: Any) -> Callable[[], Any]:  # noqa: ANN401 — PyTorch's own
    """Return what makes a step of a model on a batch."""
    import torch  # noqa: PLC0415 — as above

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def step() -> Any:  # noqa: ANN401 — a tensor
        optimizer.zero_grad()
        with _autocast(batch.device.type):
            loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step
