"""How soon a run has its batch size: `python -m tests.benchmarks.policy [--write] [--database FILE]`.

The policy service, as a process of its own, on an SQLite file with 10,000 jobs of 100 observations; runs of jobs taken
at random ask over mosquitto, at QoS 1: one after the other, then eight at a time. The time is from the publication of
the request to the receipt of the answer.
"""

import argparse
import asyncio
import math
import os
import platform
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from sqlalchemy import create_engine

from gridchase.cli.verb import VERSION
from policies.service.config import HttpConfig, PolicyConfig, StoreConfig
from policies.service.records import Job, Result, Trial
from policies.service.store import queries
from policies.service.store.store import open_store
from policies.vocabulary.units import DAY_S
from publishers.mqtt.bus_config import BusConfig
from publishers.mqtt.client import MqttClient
from tests.benchmarks.controller import peak_mib, processor_s
from tests.live.conftest import _PLAIN, Mosquitto, eventually, wait_until
from tests.live.policy.runs import Runs

TABLE = Path(__file__).with_suffix(".md")
BATCH_SIZES: Final = (8, 16, 32, 64, 128, 256, 512, 1_024)
BEST_RATIO: Final = 0.7
"""Of the runs: those at the best batch size of their job."""
N_JOBS: Final = 10_000
N_TRIALS: Final = 100
N_WARM: Final = 100
N_REQUESTS: Final = 2_000
N_AT_ONCE: Final = 8
BARS_MS: Final = (5.0, 20.0)
"""What 99 % of the requests should take at most: one after the other, and eight at a time."""


def trials_of(job: str, dice: np.random.Generator, now_s: float) -> Iterator[Trial]:
    """Yield a job's past: most runs at a good batch size, epochs to the target log-normal around a parabola."""
    best = int(dice.choice(BATCH_SIZES))
    for number in range(N_TRIALS):
        batch_size = best if dice.random() < BEST_RATIO else int(dice.choice(BATCH_SIZES))
        epochs = max(1, round(20 * math.exp(0.2 * math.log2(batch_size / best) ** 2 + dice.normal(0, 0.1))))
        at_s = now_s - (N_TRIALS - number) * DAY_S
        yield Trial(
            user="alice",
            job=job,
            run=f"past-{number}",
            number=number,
            recurrence=number,
            batch_size=batch_size,
            state="reached",
            reason="knowledge_gradient",
            detail="a sentence of about the length that such sentences have, with the numbers that were compared in it",
            requested_at_s=at_s,
            heard_at_s=at_s,
            lease_s=600.0,
            ended_at_s=at_s + 3_600.0,
            last_epoch=epochs - 1,
            last_metric=0.8,
            result=Result(
                outcome="reached",
                epochs=epochs,
                reached_epochs=epochs,
                energy_j=epochs * 10_000.0 * dice.uniform(0.95, 1.05),
                duration_s=epochs * 50.0 * dice.uniform(0.95, 1.05),
                max_power_w=300.0,
                gpu_model="NVIDIA A40",
                n_gpus=1,
            ),
        )


async def fill(file: Path) -> None:
    """Create the database, with its past."""
    async with open_store(f"sqlite:///{file}", timeout_s=60.0):
        pass
    dice, now_s = np.random.default_rng(4), time.time()
    engine = create_engine(f"sqlite:///{file}")
    for first in range(0, N_JOBS, 100):
        with engine.begin() as connection:
            for number in range(first, first + 100):
                job = f"job-{number}"
                queries.add_job(
                    connection,
                    Job(
                        user="alice",
                        name=job,
                        batch_sizes=BATCH_SIZES,
                        default_batch_size=BATCH_SIZES[0],
                        created_at_s=now_s,
                    ),
                )
                queries.add_trials(connection, list(trials_of(job, dice, now_s)))
    engine.dispose()


@contextmanager
def serving(broker: Mosquitto, file: Path, directory: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the service for the time of the body."""
    config = PolicyConfig(
        bus=BusConfig(url=broker.url), store=StoreConfig(url=f"sqlite:///{file}"), http=HttpConfig(port=-1)
    )
    log = directory / "service.log"
    command = [
        sys.executable,
        "-m",
        "tests.live.policy.service_process",
        msgspec.json.encode(config).decode(),
        str(directory),
    ]
    with log.open("wb") as output:
        child = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        wait_until(lambda: b"connected to the broker" in log.read_bytes(), 60.0)
        yield child
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(20)


async def ask(runs: Runs, name: str, n_requests: int, dice: np.random.Generator) -> list[float]:
    """Ask one after the other; return how long each took [ms]."""
    took_ms = []
    for number in range(n_requests):
        job = f"job-{dice.integers(N_JOBS)}"
        begin_ns = time.perf_counter_ns()
        answer = await runs.ask(job, f"{name}-{number}")
        took_ms.append((time.perf_counter_ns() - begin_ns) / 1e6)
        assert answer.lease_s is not None, answer
    return took_ms


async def measured(broker: Mosquitto) -> tuple[list[float], list[float]]:
    """Return the times of requests one after the other, and of eight at a time [ms]."""
    async with MqttClient(url=broker.url) as bus:
        runs = Runs(bus, batch_sizes=BATCH_SIZES, default=BATCH_SIZES[0])
        await eventually(lambda: bus.connected)
        await ask(runs, "warm", N_WARM, np.random.default_rng(1))
        alone_ms = await ask(runs, "alone", N_REQUESTS, np.random.default_rng(2))
        async with asyncio.TaskGroup() as tasks:
            crowd = [
                tasks.create_task(ask(runs, f"crowd-{k}", N_REQUESTS // N_AT_ONCE, np.random.default_rng(10 + k)))
                for k in range(N_AT_ONCE)
            ]
        return alone_ms, [took_ms for task in crowd for took_ms in task.result()]


def row(name: str, took_ms: Sequence[float]) -> str:
    """Return a line of the table."""
    ordered = sorted(took_ms)
    shares = [ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.9, 0.99)]
    return f"| {name} | {len(ordered):,} | " + " | ".join(f"{value:.1f}" for value in (*shares, ordered[-1])) + " |"


def table(file: Path, note: str) -> Iterator[str]:
    """Measure, and yield the lines."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        file = file if str(file) != "." else directory / "policy.sqlite"
        if not file.exists():
            asyncio.run(fill(file))
        broker = Mosquitto(directory, _PLAIN)
        broker.start()
        with serving(broker, file, directory) as child:
            alone_ms, crowd_ms = asyncio.run(measured(broker))
            n_requests = len(alone_ms) + len(crowd_ms) + N_WARM
            memory_mib, request_ms = peak_mib(child.pid), 1e3 * processor_s(child.pid) / n_requests
        broker.stop()
        now = datetime.now(UTC)
        yield "# How soon a run has its batch size\n"
        yield (
            f"{now:%Y-%m-%d}, {os.cpu_count()} cores of {platform.machine()}, Linux {platform.release()}, Python "
            f"{platform.python_version()}, SQLite {sqlite3.sqlite_version}, "
            f"SQLAlchemy {metadata.version('sqlalchemy')}, gridchase {VERSION}; client, mosquitto and the service "
            f"share the cores{note and f', {note}'}.\n"
        )
        yield (
            f"{N_JOBS:,} jobs of {N_TRIALS} observations, {len(BATCH_SIZES)} batch sizes each"
            f" ({file.stat().st_size / 2**20:,.0f} MiB), jobs taken at random, QoS 1 both ways. The service peaked at"
            f" {memory_mib:.0f} MiB and used {request_ms:.1f} ms of a core per request, its start included.\n"
        )
        yield "| requests | n | median [ms] | 90 % [ms] | 99 % [ms] | maximum [ms] |"
        yield "|---|---:|---:|---:|---:|---:|"
        circumstances = "one after the other", f"{N_AT_ONCE} at a time"
        for how, took_ms in zip(circumstances, (alone_ms, crowd_ms), strict=True):
            yield row(how, took_ms)
        yield ""
        for how, took_ms, bar_ms in zip(circumstances, (alone_ms, crowd_ms), BARS_MS, strict=True):
            held = "held" if sorted(took_ms)[int(0.99 * len(took_ms))] <= bar_ms else "missed"
            yield f"The bar, 99 % within {bar_ms:g} ms {how}: {held}."


def main() -> None:
    """Measure, and print the table or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"rewrite {TABLE.name}")
    parser.add_argument("--database", type=Path, default=Path(), help="use this file, created where it is missing")
    parser.add_argument("--note", default="", help="a note on the circumstances")
    arguments = parser.parse_args()
    text = "\n".join(table(arguments.database, arguments.note))
    print(text)
    if arguments.write:
        TABLE.write_text(text + "\n")


if __name__ == "__main__":
    main()
