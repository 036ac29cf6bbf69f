"""Trains with PyTorch alone, on one rank or, under torchrun, on several by DistributedDataParallel."""

import os
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.frameworks.trainings.torch_parts import CountingSGD, Net, Numbers
from tests.frameworks.trainings.truth import BATCH_SIZE, N_SAMPLES, N_VALIDATION, Truth, arguments, trainings


def main() -> None:
    is_distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if is_distributed:
        torch.distributed.init_process_group("gloo")
    for options, truth in trainings(arguments()):
        torch.manual_seed(0)
        for _ in range(options.fits):
            fit(options, truth, is_distributed=is_distributed)
        truth.write(torch.distributed.get_rank() if is_distributed else 0)


def fit(options: Any, truth: Truth, *, is_distributed: bool) -> None:  # noqa: ANN401
    net, samples = Net(truth), Numbers(N_SAMPLES)
    model = DistributedDataParallel(net) if is_distributed else net
    sampler = DistributedSampler(samples) if is_distributed else None
    loader = DataLoader(samples, BATCH_SIZE, shuffle=sampler is None, sampler=sampler)
    validation = DataLoader(Numbers(N_VALIDATION), BATCH_SIZE)
    if options.wrap:
        from gridchase import publish_iterations  # noqa: PLC0415 — a bare training does not have it

        loader = publish_iterations(loader, epochs=options.epochs)
    optimizer = CountingSGD(model.parameters(), truth)
    for epoch in range(options.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        train_epoch(model, optimizer, loader, options.accumulation)
        if options.validation:
            model.eval()
            with torch.no_grad():
                for batch in validation:
                    model(**batch)


def train_epoch(model: Any, optimizer: Any, loader: Any, accumulation: int) -> None:  # noqa: ANN401
    model.train()
    for k, batch in enumerate(loader, 1):
        is_step = k % accumulation == 0 or k == len(loader)
        with nullcontext() if is_step or not hasattr(model, "no_sync") else model.no_sync():
            model(**batch)["loss"].backward()
        if is_step:
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
