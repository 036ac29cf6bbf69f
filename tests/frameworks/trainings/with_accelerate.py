"""Trains with Accelerate; its loader may have been wrapped before `prepare`."""

from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from tests.frameworks.trainings.torch_parts import CountingSGD, Net, Numbers, Stream
from tests.frameworks.trainings.truth import BATCH_SIZE, N_SAMPLES, N_VALIDATION, Truth, arguments, trainings


def main() -> None:
    *_, accelerator = [train(options, truth) for options, truth in trainings(arguments())]
    accelerator.end_training()  # it ends the process group, which all trainings have in common


def train(options: Any, truth: Truth) -> Accelerator:  # noqa: ANN401
    tracker = None
    if options.callback:
        from gridchase import AccelerateTracker  # noqa: PLC0415 — a bare training does not have it

        tracker = AccelerateTracker()
    torch.manual_seed(0)
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=options.accumulation,
        log_with=tracker,
    )
    accelerator.init_trackers("a project")
    net = Net(truth)
    samples = Stream(N_SAMPLES) if options.iterable else Numbers(N_SAMPLES)
    loader = DataLoader(samples, BATCH_SIZE, shuffle=not options.iterable)
    if options.wrap:
        from gridchase import publish_iterations  # noqa: PLC0415 — a bare training does not have it

        loader = publish_iterations(loader, epochs=options.epochs)
    model, optimizer, loader, validation = accelerator.prepare(
        net, CountingSGD(net.parameters(), truth), loader, DataLoader(Numbers(N_VALIDATION), BATCH_SIZE)
    )
    if options.wrap_after:
        from gridchase import publish_iterations  # noqa: PLC0415 — a bare training does not have it

        loader = publish_iterations(loader, epochs=options.epochs)
    for _ in range(options.epochs):
        model.train()
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()
        if options.validation:
            model.eval()
            with torch.no_grad():
                for batch in validation:
                    model(**batch)
    truth.write(accelerator.process_index)
    accelerator.free_memory()
    return accelerator


if __name__ == "__main__":
    main()
