"""Trains with DistributedDataParallel on one or more ranks, and notes after which steps it stood still."""

import argparse
import json
import os
import sys
import time
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from gridchase import Publisher
from tests.frameworks.trainings.torch_parts import Numbers
from tests.frameworks.trainings.truth import VARIABLE

STILL_S = 0.4
"""No step takes so long by itself."""


class Steps:
    """The steps of one rank: how many, when the last one was, and those after which nothing happened for a while."""

    def __init__(self) -> None:
        self.n = 0
        self.still: list[tuple[int, float]] = []
        self._last_s = time.monotonic()

    def add(self) -> None:
        now_s = time.monotonic()
        if self.n and now_s - self._last_s > STILL_S:
            self.still.append((self.n, now_s - self._last_s))
        self.n, self._last_s = self.n + 1, now_s


def main() -> None:
    options = _arguments()
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1:
        distributed.init_process_group("gloo", timeout=timedelta(seconds=options.timeout_s))
    torch.manual_seed(0)
    net: Any = torch.nn.Linear(4, 1)
    if world_size > 1:
        net = DistributedDataParallel(net)
    dataset = Numbers(options.samples)
    sampler = DistributedSampler(dataset) if world_size > 1 else None
    workers = {"num_workers": 2, "persistent_workers": True, "timeout": 5} if options.workers else {}
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, **workers)
    steps, caught = Steps(), ""
    try:
        _train(options, net, loader, steps, rank)
    except KeyboardInterrupt:
        caught = "KeyboardInterrupt"
    account = {"rank": rank, "steps": steps.n, "still": steps.still, "caught": caught}
    Path(os.environ[VARIABLE], f"{rank}.json").write_text(json.dumps(account), encoding="utf-8")
    if world_size > 1:
        distributed.destroy_process_group()


def _train(options: argparse.Namespace, net: Any, loader: Any, steps: Steps, rank: int) -> None:  # noqa: ANN401
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    hold = {"pausable": options.pausable, "early_stop": options.early_stop, "max_pause_s": options.max_pause_s}
    publisher = Publisher(**hold) if rank == 0 or not options.only_rank_0 else None
    batches = loader if options.counted_by == "caller" or publisher is None else publisher.iterations(loader)
    for _ in range(options.epochs):
        for number, batch in enumerate(batches, start=1):
            is_step = number % options.accumulation == 0
            with nullcontext() if is_step or not hasattr(net, "no_sync") else net.no_sync():
                (net(batch["x"]).squeeze(-1) - batch["labels"] / 1_000).square().mean().backward()
            time.sleep(options.step_s * (3 if rank and number % 7 == 0 else 1))  # one rank is slower at times
            if is_step:
                if options.counted_by == "optimizer":
                    optimizer.step()
                    optimizer.zero_grad()
                else:
                    _step_by_hand(net)
                steps.add()
                if options.counted_by == "caller" and publisher is not None:
                    publisher.iteration()
            if options.alone and rank == 0 and number % 50 == 0:
                time.sleep(0.3)  # rank 0 writes a checkpoint


def _step_by_hand(net: Any) -> None:  # noqa: ANN401
    """Make a step that no optimizer of PyTorch sees."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.sub_(1e-3 * parameter.grad)
            parameter.grad = None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=2_400)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--counted-by", choices=("optimizer", "caller", "loader"), default="optimizer")
    parser.add_argument("--pausable", action="store_true")
    parser.add_argument("--early-stop", action="store_true")
    parser.add_argument("--max-pause-s", type=float, default=300.0)
    parser.add_argument("--timeout-s", type=float, default=60.0, help="of the process group")
    parser.add_argument("--workers", action="store_true", help="load in other processes, with a timeout")
    parser.add_argument("--alone", action="store_true", help="let rank 0 do something alone at times")
    parser.add_argument("--only-rank-0", action="store_true", help="publish on rank 0 alone")
    return parser.parse_args()


if __name__ == "__main__":
    main()
    sys.exit(0)
