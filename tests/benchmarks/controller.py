"""How much a controller takes in, and how soon it acts: `python -m tests.benchmarks.controller [--write]`.

Ingest: iterations of 8 runs come through mosquitto to a controller of its own process (real bus, router and runs, 8
simulated GPUs) at a fixed rate for 5 s; the rate holds where none is lost and none comes late. Reaction: the time from
the publication of the iterations that complete a window of the sweep to the limit written.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from gridchase.cli.verb import VERSION
from publishers.messages.codec import encode
from publishers.messages.topics import RunKey, Topics
from publishers.messages.training import Iterations, RankStatus, pack_ends
from publishers.shared.boot_id import read_boot_id
from tests.live.conftest import _PLAIN, Mosquitto, wait_until

TABLE = Path(__file__).with_suffix(".md")
TOPICS = Topics()


def _rank_topic(run: str, leaf: str) -> str:
    return TOPICS.rank(read_boot_id(), RunKey("alice", "bench", run), 0, leaf)


N_RUNS = 8
BATCH = 100
INGEST_S = 5.0
LATEST_S = 0.3
RATES_HZ = (50_000, 100_000, 200_000, 400_000, 600_000, 800_000, 1_000_000, 1_500_000, 2_000_000)
N_REACTIONS = 40
PERIOD_NS = 20_000_000
ENERGY_PERIOD_S = 0.1


class Trainer:
    """The publisher's side, without the publisher: messages made by `wire`, sent by paho as fast as asked."""

    def __init__(self, port: int) -> None:
        self.counted: dict[str, int] = {}
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2)
        self._client.on_connect = lambda client, *_: client.subscribe(TOPICS.run_filter("energy"), 0)
        self._client.on_message = self._take
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        self._seq: dict[str, int] = {}

    def announce(self, run: str, *, gpu: int, state: str = "running") -> None:
        """Say that a run goes on, or has ended."""
        status = RankStatus(
            run=run,
            state=state,  # type: ignore[arg-type]
            host="here",
            boot_id=read_boot_id(),
            pid=os.getpid(),
            gpus=[gpu],
            world_size=1,
            started_at_s=1.0,
            heartbeat_s=10.0,
        )
        self._client.publish(_rank_topic(run, "status"), encode(status), 1)

    def send(self, run: str, begin_ns: int, ends_ns: "array[int]") -> None:
        """Publish iterations."""
        seq = self._seq.get(run, 0)
        self._seq[run] = seq + 1
        message = Iterations(
            run=run,
            seq=seq,
            first=seq * len(ends_ns),
            begin_ns=begin_ns,
            end_ns=pack_ends(ends_ns),
            epoch=0,
            dropped=0,
        )
        self._client.publish(
            TOPICS.rank(read_boot_id(), RunKey("alice", "bench", run), 0, "iterations"), encode(message), 0
        )

    def close(self) -> None:
        """Leave."""
        self._client.disconnect()
        self._client.loop_stop()

    def _take(self, _client: mqtt.Client, _data: object, message: mqtt.MQTTMessage) -> None:
        content = json.loads(message.payload)
        self.counted[content["run"]] = content["iterations"]


@contextmanager
def controlled(broker: Mosquitto, *settings: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a controller for the time of the body."""
    command = [sys.executable, "-m", "tests.benchmarks.controller_child", broker.url, str(N_RUNS), *settings]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(20)


def processor_s(pid: int) -> float:
    """Return the processor time that a process has used [s]."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mib(pid: int) -> float:
    """Return the most memory that a process has held [MiB]."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def ingest(broker: Mosquitto, trainer: Trainer, rate_hz: int) -> tuple[bool, float, float, float]:
    """Send at a rate; return whether all came in time, the rate sent, the processor's share and the memory [MiB]."""
    with controlled(broker, f"energy.period_s={ENERGY_PERIOD_S}") as child:
        runs = [f"i{rate_hz}-{k}" for k in range(N_RUNS)]
        wait_until(lambda: _announced(trainer, runs))
        used_s, begin_ns = processor_s(child.pid), time.monotonic_ns()
        interval_ns = round(1e9 * BATCH * N_RUNS / rate_hz)
        n_rounds = round(INGEST_S * 1e9 / interval_ns)
        for k in range(n_rounds):
            due_ns = begin_ns + k * interval_ns
            while time.monotonic_ns() < due_ns:
                time.sleep(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
            ends_ns = array("q", (due_ns - interval_ns + interval_ns * (j + 1) // BATCH for j in range(BATCH)))
            for run in runs:
                trainer.send(run, due_ns - interval_ns, ends_ns)
        sent_s = (time.monotonic_ns() - begin_ns) / 1e9
        held = True
        try:
            wait_until(lambda: all(trainer.counted[r] == n_rounds * BATCH for r in runs), LATEST_S + ENERGY_PERIOD_S)
        except TimeoutError:
            held = False
        cores = (processor_s(child.pid) - used_s) / sent_s
        return held, n_rounds * BATCH * N_RUNS / sent_s, cores, peak_mib(child.pid)


def _announced(trainer: Trainer, runs: list[str]) -> bool:
    for gpu, run in enumerate(runs):
        trainer.announce(run, gpu=gpu)
    time.sleep(0.2)
    return all(run in trainer.counted for run in runs)


def reactions(broker: Mosquitto, trainer: Trainer, *settings: str) -> list[float]:
    """Return the times from a publication to the limit that followed from it [ms]."""
    with controlled(broker, f"energy.period_s={ENERGY_PERIOD_S}", "profiler.step_ratio=0.98", *settings) as child:
        run = f"r{time.monotonic_ns()}"
        wait_until(lambda: _announced(trainer, [run]))
        sent_ns: list[int] = []
        written: list[int] = []
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        begin_ns = time.monotonic_ns()
        while len(written) < N_REACTIONS:
            time.sleep(PERIOD_NS / 1e9)
            now_ns = time.monotonic_ns()
            sent_ns.append(now_ns)
            trainer.send(run, begin_ns, array("q", [now_ns]))
            begin_ns = now_ns
            written += [int(line.split()[0]) for line in child.stdout.readlines()]
    return [min((write_ns - s) / 1e6 for s in sent_ns if s <= write_ns) for write_ns in written]


def main() -> None:
    """Measure, and print the table or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"rewrite {TABLE.name}")
    arguments = parser.parse_args()
    table = "\n".join(_table())
    print(table)
    if arguments.write:
        TABLE.write_text(table + "\n")


def _table() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as directory:
        broker = Mosquitto(Path(directory), _PLAIN)
        broker.start()
        trainer = Trainer(broker.port)
        now = datetime.now(UTC)
        yield "# What a controller takes in, and how soon it acts\n"
        yield (
            f"{now:%Y-%m-%d}, {os.cpu_count()} cores of {platform.machine()}, Linux {platform.release()}, Python "
            f"{platform.python_version()}, gridchase {VERSION}; sender, mosquitto and controller share the cores.\n"
        )
        yield f"## Ingest: {N_RUNS} runs, {BATCH} iterations a message, {INGEST_S:g} s\n"
        yield "| asked [iterations/s] | sent [iterations/s] | all in time | its CPU [cores] | its peak memory [MiB] |"
        yield "|---:|---:|:---:|---:|---:|"
        for rate_hz in RATES_HZ:
            held, sent_hz, cores, memory_mib = ingest(broker, trainer, rate_hz)
            yield f"| {rate_hz:,} | {sent_hz:,.0f} | {'yes' if held else 'no'} | {cores:.2f} | {memory_mib:.0f} |"
            if not held:
                break
        yield "\n## From the publication of iterations to the limit written [ms]\n"
        yield f"Messages every {PERIOD_NS / 1e6:g} ms; {N_REACTIONS} limits of a sweep.\n"
        yield "| window | median | 90 % | maximum |"
        yield "|---|---:|---:|---:|"
        for window_s in (0.2, 1.0):
            delays_ms = sorted(reactions(broker, trainer, f"profiler.window_s={window_s}", "profiler.settle_s=0.05"))
            high_ms = delays_ms[int(len(delays_ms) * 0.9)]
            yield f"| {window_s:g} s | {statistics.median(delays_ms):.1f} | {high_ms:.1f} | {delays_ms[-1]:.1f} |"
        trainer.close()
        broker.stop()


if __name__ == "__main__":
    main()
