"""What publishing costs a training loop: nanoseconds an iteration over an empty loop, beside tqdm in the same run.

`python -m tests.benchmarks.publisher` prints the table; `--write` also writes it to `publisher.md`. The variants are
measured in turns, so that what else the machine does hits all of them alike. A turn is short against the flush; the
worker's own time is in the maxima. Each publisher has a run of its own, since an unnamed run replaces the one before;
a publisher that is closed at the end ends the benchmark, since it would have timed a bare loop.
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
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

from publishers import Publisher
from publishers.training.iterations.published_loader import PublishedSized

N_ITERATIONS = 50_000
N_TURNS = 41
TABLE = Path(__file__).with_suffix(".md")
Loop = Callable[[], None]


def consume(iterable: Iterable[int]) -> None:
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


def call_one(update: Callable[[int], object]) -> None:
    for _ in range(N_ITERATIONS):
        update(1)


def publishers(live_url: str, dead_url: str, stack: ExitStack) -> list[Publisher]:
    """Return three publishers, open until the stack closes: with a broker, without one, and for `iteration()`."""
    return [
        stack.enter_context(Publisher(job="benchmark", run=f"variant-{number}", rank=0, world_size=1, broker=url))
        for number, url in enumerate((live_url, dead_url, live_url))
    ]


def check_published(opened: list[Publisher]) -> None:
    """End the benchmark unless every publisher is open and has recorded each iteration of each turn."""
    for publisher in opened:
        n_missing = N_TURNS * N_ITERATIONS - publisher.recorder.n_ended
        if publisher.closed or n_missing > N_TURNS:  # `iteration()` only begins one with its first call
            sys.exit(f"not a measurement: {publisher.run} is closed, or {n_missing:,} iterations were not recorded")


def loops(opened: list[Publisher], nowhere: TextIO, stack: ExitStack) -> dict[str, Loop]:
    """Return every variant of the loop, by the name that the table gives it."""
    numbers = range(N_ITERATIONS)
    live, dead, manual = opened
    published, alone = PublishedSized(numbers, live), PublishedSized(numbers, dead)
    bar = stack.enter_context(tqdm(file=nowhere))
    return {
        "bare `for`": lambda: consume(numbers),
        "a generator that appends the time to a list": lambda: consume(timed(numbers)),
        "`publish_iterations`, mosquitto": lambda: consume(published),
        "`publish_iterations`, no broker": lambda: consume(alone),
        "`step = publisher.iteration`, `step()`": lambda: call(manual.iteration),
        "`tqdm(iterable)`": lambda: consume(tqdm(numbers, file=nowhere)),
        "`bar.update(1)` of tqdm": lambda: call_one(bar.update),
    }


def measure(variants: dict[str, Loop]) -> dict[str, list[float]]:
    """Return the time of an iteration in each turn [ns], by variant."""
    times_ns: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(N_TURNS):
        for name, loop in variants.items():
            begin_ns = time.perf_counter_ns()
            loop()
            times_ns[name].append((time.perf_counter_ns() - begin_ns) / N_ITERATIONS)
    return times_ns


def table(times_ns: dict[str, list[float]]) -> str:
    """Return the table, in Markdown."""
    bare_ns = statistics.median(next(iter(times_ns.values())))
    how = (
        f"Nanoseconds an iteration; medians (minimum to maximum) of {N_TURNS} interleaved turns of {N_ITERATIONS:,} "
        "iterations each. “Over empty” is the median less that of the bare loop."
    )
    lines = [
        "# What publishing costs a training loop",
        "",
        how,
        "",
        "| loop | ns an iteration | over empty |",
        "|---|---|---|",
    ]
    for name, values_ns in times_ns.items():
        median_ns = statistics.median(values_ns)
        spread = f"{min(values_ns):.0f} to {max(values_ns):.0f}"
        lines.append(f"| {name} | {median_ns:.0f} ({spread}) | {median_ns - bare_ns:.0f} |")
    return "\n".join([*lines, "", *machine(), ""])


def machine() -> list[str]:
    """Return where and when this was measured."""
    cpuinfo = Path("/proc/cpuinfo")
    models = [line for line in cpuinfo.read_text().splitlines() if "model name" in line] if cpuinfo.exists() else []
    model = models[0].partition(": ")[2] if models else platform.processor()
    packages = ("paho-mqtt", "msgpack", "msgspec", "tqdm")
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
        opened = publishers(live_url, dead_url, stack)
        text = table(measure(loops(opened, nowhere, stack)))
        check_published(opened)
    print(text)
    if arguments.write:
        TABLE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
