"""Hugging Face Accelerate: a tracker publishes the training; the steps of the optimizer count.

GRIDCHASE_JOB=example accelerate launch examples/accelerate_loop.py
"""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from gridchase import AccelerateTracker

EPOCHS = 2


def main() -> None:
    """Train on noise, for a few seconds."""
    tracker = AccelerateTracker()  # the line; job="…" where GRIDCHASE_JOB is not set
    accelerator = Accelerator(gradient_accumulation_steps=2, log_with=tracker)
    accelerator.init_trackers("example")
    samples = TensorDataset(torch.randn(1_024, 16), torch.randint(0, 4, (1_024,)))
    net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    model, optimizer, loader = accelerator.prepare(
        net, torch.optim.AdamW(net.parameters()), DataLoader(samples, batch_size=32, shuffle=True)
    )
    n_steps = 0
    for _ in range(EPOCHS):
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
            n_steps += accelerator.sync_gradients
    print(f"{n_steps} steps")
    accelerator.end_training()


if __name__ == "__main__":
    main()
