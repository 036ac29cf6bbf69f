"""What a training pays for being published: its optimizer's steps, its CPU time, the thread beside it, its memory.

`tests.benchmarks.publisher` measures it after the loops, and writes both into one page.
"""

import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gridchase import Publisher
from publishers.training.iterations.steps import optimizer_hook

CPU_BOUND_S = 20.0
WORK = 20_000
"""Numbers that are summed in an iteration of the CPU-bound loop: about a millisecond."""
N_FLAT = 10_000_000
N_STEPS = 2_000
N_STEP_TURNS = 61
N_BLOCKS = 400
BLOCK = 25


def table(url: str) -> list[str]:
    """Return the table, in Markdown."""
    lines = ["| of a training | measured | aim |", "|---|---|---|", *background_lines(url), *memory_lines(url)]
    if find_spec("torch") is None:
        return [*lines, "", "PyTorch is not installed: its optimizers' steps and a real training were not measured."]
    return [*lines, *step_lines(url), *training_lines(url)]


@contextmanager
def publishing(url: str, run: str) -> Iterator[Publisher]:
    with Publisher(job="benchmark", run=run, rank=0, world_size=1, broker=url) as publisher:
        yield publisher


def background_lines(url: str) -> list[str]:
    """Return what the publisher's thread takes of a loop that needs the CPU all the time."""
    with publishing(url, "background") as publisher:
        thread = next(one for one in threading.enumerate() if one.name.startswith("gridchase["))
        clock = time.pthread_getcpuclockid(thread.ident or 0)
        end_s, n = time.monotonic() + CPU_BOUND_S, 0
        own_s, begin_s = time.clock_gettime(clock), time.monotonic()
        while time.monotonic() < end_s:
            sum(range(WORK))
            publisher.iteration()
            n += 1
        share = (time.clock_gettime(clock) - own_s) / (time.monotonic() - begin_s)
    what = f"publisher's thread beside a CPU-bound loop of {n / CPU_BOUND_S:.0f} iterations a second"
    return [f"| {what} | {share:.2%} of one core | {aim(share, 0.005, '0.5%')} |"]


def memory_lines(url: str) -> list[str]:
    """Return how the memory grows over many iterations, after the first tenth."""
    with publishing(url, "memory") as publisher:
        loader = publisher.iterations(range(N_FLAT))
        begin = 0
        for k, _ in enumerate(loader):
            if k == N_FLAT // 10:
                begin = resident_bytes()
        growth = resident_bytes() - begin
    return [f"| memory over {N_FLAT:,} iterations, after the first tenth of them | {growth / 1e6:+.1f} MB | |"]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def unhooked() -> Iterator[None]:
    """Take our hook out of PyTorch meanwhile."""
    hooks = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
    ours = {number: hook for number, hook in hooks.items() if hook is optimizer_hook._on_step}
    for number in ours:
        del hooks[number]
    try:
        yield
    finally:
        hooks.update(ours)


def step_lines(url: str) -> list[str]:
    """Return what the hook adds to a step that has nothing to do."""
    import torch  # noqa: PLC0415 — see `publisher.py`

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    with publishing(url, "steps"):
        thread_time_ns(optimizer.step)
        bare_ns, hooked_ns = [], []
        for _ in range(N_STEP_TURNS):
            with unhooked():
                bare_ns.append(thread_time_ns(optimizer.step))
            hooked_ns.append(thread_time_ns(optimizer.step))
    bare = statistics.median(bare_ns)
    added = statistics.median(hooked - without for hooked, without in zip(hooked_ns, bare_ns, strict=True))
    measured = f"{added:.0f} ns, {added / bare:.1%} | {aim(added / bare, 0.02, '2%')}"
    return [
        f"| an `optimizer.step()` of SGD that has nothing to do | {bare:.0f} ns | |",
        f"| what the hook adds to it, with PyTorch's call of it | {measured} |",
    ]


def aim(value: float, most: float, shown: str) -> str:
    """Return what a value is to be at most, and whether it is."""
    return f"{shown}: {'met' if value <= most else '**missed**'}"


def thread_time_ns(step: Callable[[], object]) -> float:
    begin_ns = time.thread_time_ns()
    for _ in range(N_STEPS):
        step()
    return (time.thread_time_ns() - begin_ns) / N_STEPS


def training_lines(url: str) -> list[str]:
    """Return the CPU time of a small training with publishing over that without, in turns."""
    import torch  # noqa: PLC0415 — see `publisher.py`

    torch.set_num_threads(1)
    bare = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(BLOCK * 16, 256)), batch_size=16)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256))
    optimizer = torch.optim.AdamW(model.parameters())

    def block_s(loader: Any) -> float:  # noqa: ANN401 — a loader
        begin_s = time.process_time()
        for (batch,) in loader:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        return time.process_time() - begin_s

    without_s, with_s = [], []
    with publishing(url, "training") as publisher:
        published = publisher.iterations(torch.utils.data.DataLoader(bare.dataset, batch_size=16))
        for _ in range(N_BLOCKS):
            with unhooked():
                without_s.append(block_s(bare))
            with_s.append(block_s(published))
        n_missing = N_BLOCKS * BLOCK - publisher.recorder.n_ended
    if n_missing:
        return [f"| not a measurement: iterations that were not recorded | {n_missing:,} | |"]
    ratio = statistics.median(with_s) / statistics.median(without_s)
    spread = statistics.quantiles([one / other for one, other in zip(with_s, without_s, strict=True)], n=4)
    iteration_ms = statistics.median(without_s) / BLOCK * 1e3
    turns = f"{N_BLOCKS} turns of {BLOCK} iterations of {iteration_ms:.2f} ms each"
    quartiles = f"quartiles {spread[0]:.4f} to {spread[2]:.4f}"
    what = f"CPU time of the process with publishing over that without, {turns}"
    return [f"| {what} | {ratio:.4f} ({quartiles}) | {aim(ratio, 1.01, '1.01')} |"]
