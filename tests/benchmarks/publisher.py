"""What publishing costs a training loop: nanoseconds an iteration over an empty loop, beside tqdm in the same run.

`python -m tests.benchmarks.publisher` prints the tables; `--write` also writes them to `publisher.md`. The variants are
measured in turns, in CPU time of the training's thread, so that what else the machine does hits all of them alike, and
little. Each publisher has a run of its own, since an unnamed run replaces the one before; a publisher that is closed at
the end ends the benchmark, since it would have timed a bare loop. What a real training pays is in
`publisher_training.py`; it needs PyTorch for most of that, which is imported after the loops, since its hook changes
what a loader does.
"""

import argparse
import datetime as dt
import importlib.metadata
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

from gridchase import Publisher
from publishers.training.iterations.published_loader import PublishedSized
from publishers.training.iterations.steps import optimizer_hook
from tests.benchmarks import publisher_training

N_ITERATIONS = 50_000
N_TURNS = 41
TABLE = Path(__file__).with_suffix(".md")
BARE = "bare `for`"
TQDM = "`tqdm(iterable)`"
ELSEWHERE = "`publish_iterations`, steps are told elsewhere"
ALONE = "`publish_iterations`, the loader alone tells"
HOOK = "the hook of PyTorch's optimizers"
AIMS = {ELSEWHERE: 1.0, ALONE: 1.6, HOOK: 1.0}
"""At most so many times what tqdm takes."""
ROUNDING = 0.005
Loop = Callable[[], None]


def consume(iterable: Iterable[object]) -> None:
    for _ in iterable:
        pass


def timed(iterable: Iterable[int]) -> Iterator[int]:
    """Append the time to a list: the least that a wrapper can do."""
    ends_ns: list[int] = []
    append, clock_ns = ends_ns.append, time.monotonic_ns
    for item in iterable:
        yield item
        append(clock_ns())


def call(step: Callable[[], object]) -> None:
    for _ in range(N_ITERATIONS):
        step()


def call_with_work(step: Callable[..., object]) -> None:
    for _ in range(N_ITERATIONS):
        step(work=512)


def call_one(update: Callable[[int], object]) -> None:
    for _ in range(N_ITERATIONS):
        update(1)


@dataclass(frozen=True, slots=True)
class Opened:
    """Publishers that are open until the benchmark ends."""

    live: Publisher
    dead: Publisher
    elsewhere: Publisher
    manual: Publisher
    manual_work: Publisher
    loader_work: Publisher
    optimizer: Publisher


def publishers(live_url: str, dead_url: str, stack: ExitStack) -> Opened:
    """Return a publisher for each variant: with a broker or without one."""
    urls = dict.fromkeys(Opened.__dataclass_fields__, live_url) | {"dead": dead_url}
    return Opened(
        **{
            name: stack.enter_context(Publisher(job="benchmark", run=name, rank=0, world_size=1, broker=url))
            for name, url in urls.items()
        }
    )


def check_published(opened: Opened) -> None:
    """End the benchmark unless every publisher is open and has recorded each iteration of each turn."""
    counted = (opened.live, opened.dead, opened.manual, opened.manual_work, opened.loader_work, opened.optimizer)
    for publisher in counted:
        n_missing = N_TURNS * N_ITERATIONS - publisher.recorder.n_ended
        if publisher.closed or n_missing > N_TURNS:  # `iteration()` only begins one with its first call
            sys.exit(f"not a measurement: {publisher.run} is closed, or {n_missing:,} iterations were not recorded")


def consume_logged(batches: Iterable[int], publisher: Publisher) -> None:
    """Go through a loader as where something else tells the iterations: one here, so that it is a training's pass."""
    iterator = iter(batches)
    next(iterator)
    publisher.iteration()
    consume(iterator)


class Optimizer:
    """What makes steps."""


def steps(optimizer: Optimizer) -> None:
    """Do what PyTorch does after each step."""
    hook, arguments = optimizer_hook._on_step, ()
    more: dict[str, object] = {}
    for _ in range(N_ITERATIONS):
        hook(optimizer, arguments, more)


def loops(opened: Opened, nowhere: TextIO, stack: ExitStack) -> dict[str, Loop]:
    """Return every variant of the loop, by the name that the table gives it."""
    numbers, optimizer = range(N_ITERATIONS), Optimizer()
    published, alone = PublishedSized(numbers, opened.live), PublishedSized(numbers, opened.dead)
    logged = PublishedSized(numbers, opened.elsewhere)
    opened.elsewhere.recorder.count_by("callback")
    opened.optimizer.recorder.await_steps()
    optimizer_hook._set_counters(optimizer_hook.StepCounter(opened.optimizer.recorder))
    batches = [(1, 2, 3)] * N_ITERATIONS
    weighed = PublishedSized(batches, opened.loader_work, work_of=len)
    bar = stack.enter_context(tqdm(file=nowhere))
    return {
        BARE: lambda: consume(numbers),
        "a generator that appends the time to a list": lambda: consume(timed(numbers)),
        ELSEWHERE: lambda: consume_logged(logged, opened.elsewhere),
        ALONE: lambda: consume(published),
        "the same without a broker": lambda: consume(alone),
        "`step = publisher.iteration`, `step()`": lambda: call(opened.manual.iteration),
        "`step(work=512)`": lambda: call_with_work(opened.manual_work.iteration),
        "`publish_iterations(work=len)`, the loader alone tells": lambda: consume(weighed),
        HOOK: lambda: steps(optimizer),
        TQDM: lambda: consume(tqdm(numbers, file=nowhere)),
        "`bar.update(1)` of tqdm": lambda: call_one(bar.update),
    }


def measure(variants: dict[str, Loop]) -> dict[str, list[float]]:
    """Return the time of an iteration in each turn [ns], by variant."""
    times_ns: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(N_TURNS):
        for name, loop in variants.items():
            begin_ns = time.thread_time_ns()
            loop()
            times_ns[name].append((time.thread_time_ns() - begin_ns) / N_ITERATIONS)
    return times_ns


def table(times_ns: dict[str, list[float]]) -> list[str]:
    """Return the table, in Markdown."""
    medians_ns = {name: statistics.median(values_ns) for name, values_ns in times_ns.items()}
    bare_ns = medians_ns[BARE]
    tqdm_ns = medians_ns[TQDM] - bare_ns
    how = (
        f"Nanoseconds of the training thread's CPU time an iteration; medians (minimum to maximum) of {N_TURNS} "
        f"interleaved turns of {N_ITERATIONS:,} iterations each. “Over empty” is the median less that of the bare "
        f"loop, and beside it as a multiple of that of {TQDM}."
    )
    lines = [
        "# What publishing costs a training loop",
        "",
        how,
        "",
        "| loop | ns an iteration | over empty | of tqdm | aim |",
        "|---|---|---|---|---|",
    ]
    for name, values_ns in times_ns.items():
        net_ns, spread = medians_ns[name] - bare_ns, f"{min(values_ns):.0f} to {max(values_ns):.0f}"
        share, most = net_ns / tqdm_ns, AIMS.get(name)
        aim = "" if most is None else f"{most:g}: {'met' if share <= most + ROUNDING else '**missed**'}"
        lines.append(f"| {name} | {medians_ns[name]:.0f} ({spread}) | {net_ns:.0f} | {share:.2f} | {aim} |")
    return lines


def machine() -> list[str]:
    """Return where and when this was measured."""
    cpuinfo = Path("/proc/cpuinfo")
    models = [line for line in cpuinfo.read_text().splitlines() if "model name" in line] if cpuinfo.exists() else []
    model = models[0].partition(": ")[2] if models else platform.processor()
    packages = ["paho-mqtt", "msgpack", "msgspec", "tqdm", *(["torch"] if "torch" in sys.modules else [])]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    today = dt.datetime.now(tz=dt.UTC).date()
    system = f"{platform.system()} {platform.release()}, {platform.python_implementation()} {platform.python_version()}"
    return [
        f"Measured on {today} on {os.cpu_count()} cores of {model}, {system}, {versions}.",
        "Repeat it with `python -m tests.benchmarks.publisher --write`.",
    ]


@contextmanager
def mosquitto() -> Iterator[str]:
    """Run a mosquitto on a free port; yield its URL."""
    executable = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if executable is None:
        sys.exit("mosquitto is not installed: apt-get install mosquitto")
    port = free_port()
    child = subprocess.Popen([executable, "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"mqtt://127.0.0.1:{port}"
    finally:
        child.terminate()
        child.wait(10.0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write the table to {TABLE.name}")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        nowhere = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
        live_url, dead_url = stack.enter_context(mosquitto()), f"mqtt://127.0.0.1:{free_port()}"
        with ExitStack() as inner:
            opened = publishers(live_url, dead_url, inner)
            lines = table(measure(loops(opened, nowhere, inner)))
            check_published(opened)
        lines += ["", *publisher_training.table(live_url)]
    text = "\n".join([*lines, "", *machine(), ""])
    print(text)
    if arguments.write:
        TABLE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
