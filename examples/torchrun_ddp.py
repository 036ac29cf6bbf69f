"""The same on several ranks by DistributedDataParallel: all of them are one run, without configuration.

GRIDCHASE_JOB=example torchrun --nproc-per-node 2 examples/torchrun_ddp.py
"""

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from gridchase import publish_iterations

EPOCHS = 2


def main() -> None:
    """Train on noise, for a few seconds."""
    torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    samples = TensorDataset(torch.randn(1_024, 16), torch.randint(0, 4, (1_024,)))
    sampler = DistributedSampler(samples)
    loader = publish_iterations(DataLoader(samples, batch_size=32, sampler=sampler), epochs=EPOCHS)
    net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in loader:
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    print(f"{EPOCHS * len(loader)} steps")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
