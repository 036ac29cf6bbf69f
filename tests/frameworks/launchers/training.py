"""A training in one or several processes, started in whichever way; every rank makes the same number of steps.

training.py WAY [address of the rendezvous]
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed
from torch.utils.data import DataLoader, TensorDataset

from gridchase import publish_iterations

N_STEPS = 24
BATCH_SIZE = 4


def loader() -> Any:  # noqa: ANN401 — torch is not installed where types are checked
    """Return a data loader that is published."""
    samples = TensorDataset(torch.zeros(N_STEPS * BATCH_SIZE, 4), torch.zeros(N_STEPS * BATCH_SIZE, 1))
    return publish_iterations(DataLoader(samples, batch_size=BATCH_SIZE), flush_s=0.05)


def train(batches: Any = None, n_epochs: int = 1) -> None:  # noqa: ANN401 — as above
    """Train."""
    batches = loader() if batches is None else batches
    model: Any = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if distributed.is_initialized():
        model = torch.nn.parallel.DistributedDataParallel(model)
    for _ in range(n_epochs):
        for inputs, targets in batches:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            time.sleep(0.005)
    if distributed.is_initialized():
        distributed.destroy_process_group()


def train_as(rank: int, address: str, batches: Any = None) -> None:  # noqa: ANN401 — as above
    """Train as one rank of two."""
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    train(batches)


def train_by_environment() -> None:
    """Train as the rank that the environment names."""
    distributed.init_process_group("gloo")
    train()


def train_by_mpi(address: str) -> None:
    """Train as the rank that an MPI names, which sets none of torch's variables."""
    names = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))
    rank, size = next((os.environ[rank], os.environ[size]) for rank, size in names if rank in os.environ)
    distributed.init_process_group("gloo", init_method=address, rank=int(rank), world_size=int(size))
    train()


def train_twice_by_environment() -> None:
    """Train two models one after the other, in one process group."""
    distributed.init_process_group("gloo")
    for _ in range(2):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for inputs, targets in loader():
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
    distributed.destroy_process_group()


def fail_once() -> None:
    """Train, and let one rank fail in the first attempt; the launcher starts all of them again."""
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    is_first, rank, world_size = attempt == "0", int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # By itself torch 2.15 may read the addresses of the attempt before, whose ranks are dead, from the agent's store.
    agents = distributed.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    store = distributed.PrefixStore(f"attempt_{attempt}", agents)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for k, (inputs, targets) in enumerate(loader()):
        if is_first and k == N_STEPS // 2:
            distributed.barrier()
            time.sleep(0.5)  # what was done until now is published
            os._exit(1)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    distributed.destroy_process_group()


def train_by_lightning(strategy: str) -> None:
    """Fit with Lightning, which starts the other ranks by itself."""
    import lightning  # noqa: PLC0415 — the other ways do without

    from tests.frameworks.launchers.lightning_module import Module  # noqa: PLC0415 — the same

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy=strategy, max_epochs=2, use_distributed_sampler=True, **quiet
    )
    samples = TensorDataset(torch.zeros(N_STEPS * BATCH_SIZE, 4), torch.zeros(N_STEPS * BATCH_SIZE, 1))
    trainer.fit(Module(), DataLoader(samples, batch_size=BATCH_SIZE))


def train_by_accelerate() -> None:
    """Train as the rank that Accelerate finds."""
    from accelerate import Accelerator  # noqa: PLC0415 — the other ways do without

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for inputs, targets in loader():
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
        optimizer.step()


def spawn(address: str) -> None:
    """Train in two processes that are spawned."""
    torch.multiprocessing.spawn(train_as, (address,), nprocs=2)


def fork(address: str) -> None:
    """Train in two processes that are forked, with the loader of their parent."""
    torch.multiprocessing.start_processes(train_as, (address, loader()), nprocs=2, start_method="fork")


def launch_by_accelerate() -> None:
    """Train in two processes that Accelerate's debug launcher forks."""
    from accelerate import debug_launcher  # noqa: PLC0415 — the other ways do without

    debug_launcher(train_by_accelerate, num_processes=2)


WAYS: dict[str, Callable[..., None]] = {
    "alone": train,
    "spawn": spawn,
    "fork": fork,
    "mpi": train_by_mpi,
    "environment": train_by_environment,
    "twice": train_twice_by_environment,
    "fail once": fail_once,
    "lightning": train_by_lightning,
    "accelerate": train_by_accelerate,
    "debug_launcher": launch_by_accelerate,
}

if __name__ == "__main__":
    WAYS[sys.argv[1]](*sys.argv[2:])
