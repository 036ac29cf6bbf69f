"""A classifier in plain PyTorch: one line publishes its training.

GRIDCHASE_JOB=example python examples/plain_torch.py
"""

import torch
from torch.utils.data import DataLoader, TensorDataset

from gridchase import publish_iterations

EPOCHS = 2


def main() -> None:
    """Train on noise, for a few seconds."""
    samples = TensorDataset(torch.randn(1_024, 16), torch.randint(0, 4, (1_024,)))
    loader = DataLoader(samples, batch_size=32, shuffle=True)
    loader = publish_iterations(loader, epochs=EPOCHS)  # the line; job="…" where GRIDCHASE_JOB is not set
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(EPOCHS):
        for x, y in loader:
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    print(f"{EPOCHS * len(loader)} steps")


if __name__ == "__main__":
    main()
