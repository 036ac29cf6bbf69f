"""What importing costs a training process, and what starting the first publisher does: CPU time and resident memory.

`python -m tests.benchmarks.import_cost` prints the table; `--write` also writes it to `import_cost.md`. Each
measurement is a process of its own, less what a bare interpreter needs; the variants are measured in turns, tqdm beside
them. Where torch is installed, what it imports anyway is not counted again in rows of their own.
"""

import argparse
import datetime as dt
import importlib.metadata
import os
import platform
import statistics
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

N_TURNS: Final = 11
TABLE: Final = Path(__file__).with_suffix(".md")
MEASURED: Final = """
import resource, sys
{before}
def used():
    times = resource.getrusage(resource.RUSAGE_SELF)
    pages = int(open("/proc/self/statm").read().split()[1])
    return times.ru_utime + times.ru_stime, pages * resource.getpagesize(), len(sys.modules)
start = used()
{statement}
print(*(after - before for after, before in zip(used(), start, strict=True)))
"""
START: Final = "from gridchase import publish_iterations; publish_iterations([], job='j', broker='mqtt://127.0.0.1:9')"
INTRODUCTION: Final = f"""\
CPU time and resident memory over a bare interpreter; medians (minimum to maximum) of {N_TURNS} processes, in turns.
paho is imported when the first publisher starts, by the training's thread: a child that a data loader forks while
another thread imports a module could never import it."""
STATEMENTS: Final = {
    "`import gridchase`": "import gridchase",
    "`from gridchase import publish_iterations`": "from gridchase import publish_iterations",
    "the same, and the first publisher has started": START,
    "`import tqdm`": "import tqdm",
}


class Cost(NamedTuple):
    """What a statement costs."""

    cpu_s: float
    memory_bytes: float
    n_modules: float


def measure(statement: str, before: str) -> Cost:
    """Return what a statement costs in a process of its own, after another one that is not counted."""
    script = MEASURED.format(statement=statement, before=before)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120, env=environment
    )
    return Cost(*map(float, result.stdout.split()))


def rows(befores: dict[str, str]) -> dict[str, list[Cost]]:
    """Return the measurements of each row; the first turn, which compiles, is not counted."""
    variants = {
        f"{name}{after}": (statement, before)
        for after, before in befores.items()
        for name, statement in STATEMENTS.items()
    }
    costs: dict[str, list[Cost]] = {name: [] for name in variants}
    for turn in range(N_TURNS + 1):
        for name, (statement, before) in variants.items():
            cost = measure(statement, before)
            if turn:
                costs[name].append(cost)
    return costs


def table(costs: dict[str, list[Cost]]) -> str:
    """Return the page."""
    lines = [
        "# What importing costs a training process",
        "",
        INTRODUCTION,
        "",
        "| statement | CPU [ms] | memory [MB] | modules |",
        "|---|---|---|---|",
    ]
    for name, measured in costs.items():
        cpu_ms = [cost.cpu_s * 1e3 for cost in measured]
        memory_mb = statistics.median(cost.memory_bytes for cost in measured) / 2**20
        lines.append(
            f"| {name} | {statistics.median(cpu_ms):.1f} ({min(cpu_ms):.1f} to {max(cpu_ms):.1f}) | {memory_mb:.1f} "
            f"| {measured[0].n_modules:.0f} |"
        )
    packages = ("paho-mqtt", "msgpack", "msgspec", "tqdm", *(("torch",) if find_spec("torch") else ()))
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, CPython {platform.python_version()}"
    return "\n".join(
        [
            *lines,
            "",
            f"Measured on {dt.datetime.now(dt.UTC):%Y-%m-%d} on {machine}, {versions}.",
            "Repeat it with `python -m tests.benchmarks.import_cost --write`.",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write the table to {TABLE.name}")
    arguments = parser.parse_args()
    befores = {"": ""} | ({", after `import torch`": "import torch"} if find_spec("torch") else {})
    text = table(rows(befores))
    print(text)
    if arguments.write:
        TABLE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
