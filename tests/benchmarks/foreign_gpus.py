"""What the GPUs of other nodes cost a controller: `python -m tests.benchmarks.foreign_gpus [--write]`.

CPU: a controller with one run of its own, while other nodes publish on the same broker as a site does (iterations four
times a second and a status every ten seconds for each GPU, its energy every five). Start: the time from its start until
its first energy message, on a broker that retains topics of others.
"""

import argparse
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
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
from publishers.messages.reports import GpuEnergy
from publishers.messages.topics import RunKey, Topics
from publishers.messages.training import Iterations, RankStatus, pack_ends
from publishers.shared.boot_id import read_boot_id
from tests.benchmarks.controller import controlled, processor_s
from tests.live.conftest import _PLAIN, Mosquitto, wait_until

TABLE = Path(__file__).with_suffix(".md")
TOPICS = Topics()
NODE = "bench-node"
N_FOREIGN = (10, 1_000, 10_000)
N_RETAINED = (0, 100_000)
N_WINDOWS, WINDOW_S = 4, 10.0
FLUSH_S, STATUS_S, ENERGY_S = 0.25, 10.0, 5.0
GPUS_PER_NODE = 8
START_TIMEOUT_S = 60.0


class RawPublisher:
    """A client that writes packets made before: ten thousand GPUs must not cost more than the controller under test."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        name = b"raw"
        body = b"\x00\x04MQTT\x04\x02\x00\x00" + len(name).to_bytes(2, "big") + name  # no keep-alive
        self._socket.sendall(b"\x10" + bytes([len(body)]) + body)
        self._socket.recv(4)

    def send(self, packets: bytes) -> None:
        """Write packets."""
        self._socket.sendall(packets)

    def close(self) -> None:
        """Leave."""
        self._socket.close()


def packet(topic: str, payload: bytes, *, retain: bool = False) -> bytes:
    """Return a PUBLISH at QoS 0."""
    name = topic.encode()
    body = len(name).to_bytes(2, "big") + name + payload
    length, rest = b"", len(body)
    while True:
        rest, digit = divmod(rest, 128)[0], rest % 128
        length += bytes([digit | (0x80 if rest else 0)])
        if not rest:
            return bytes([0x31 if retain else 0x30]) + length + body


def status_of(run: str, boot_id: str, gpu: int | str) -> bytes:
    """Return the status of a training process."""
    status = RankStatus(
        run=run,
        state="running",
        host="host",
        boot_id=boot_id,
        pid=os.getpid(),
        gpus=[gpu],
        world_size=1,
        started_at_s=1.7e9,
        heartbeat_s=10.0,
    )
    return encode(status)


def iterations_of(run: str, seq: int, begin_ns: int, n: int = 10) -> bytes:
    """Return a message of iterations that have ended by now."""
    step_ns = int(FLUSH_S * 1e9) // n
    ends = array("q", [begin_ns + (k + 1) * step_ns for k in range(n)])
    message = Iterations(run=run, seq=seq, first=seq * n, begin_ns=begin_ns, end_ns=pack_ends(ends), epoch=0, dropped=0)
    return encode(message)


class Site:
    """Other nodes that publish at a steady pace, from a thread."""

    def __init__(self, port: int, n_gpus: int) -> None:
        self._publisher = RawPublisher(port)
        self._stop = threading.Event()
        self.n_sent = 0
        slots = round(STATUS_S / FLUSH_S)
        iterations, statuses, energies = b"", [b""] * slots, [b""] * round(ENERGY_S / FLUSH_S)
        for gpu in range(n_gpus):
            node = f"node-{gpu // GPUS_PER_NODE}"
            boot, uuid, key = f"boot-of-{node}", f"GPU-{gpu:08d}", RunKey("bob", f"job-{gpu}", "run-1")
            iterations += packet(TOPICS.rank(boot, key, 0, "iterations"), iterations_of("run-1", 0, 1))
            statuses[gpu % slots] += packet(
                TOPICS.rank(boot, key, 0, "status"), status_of("run-1", boot, uuid), retain=True
            )
            report = GpuEnergy(time_s=1.7e9, node=node, gpu_uuid=uuid, energy_j=1e6, power_w=250.0, job=key.job)
            energies[gpu % len(energies)] += packet(TOPICS.gpu(node, uuid, "energy"), encode(report), retain=True)
        self._iterations, self._statuses, self._energies = iterations, statuses, energies
        self._n_per_turn = n_gpus * (1 + 1 / slots + 1 / len(energies))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._stop.set()
        self._thread.join()
        self._publisher.close()

    def _run(self) -> None:
        begin_s, turn = time.monotonic(), 0
        while not self._stop.wait(max(0.0, begin_s + turn * FLUSH_S - time.monotonic())):
            self._publisher.send(
                self._iterations
                + self._statuses[turn % len(self._statuses)]
                + self._energies[turn % len(self._energies)]
            )
            turn += 1
            self.n_sent = round(turn * self._n_per_turn)


class OwnRun:
    """One run on the controller's own host, four messages a second."""

    def __init__(self, port: int) -> None:
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        self._key = RunKey("alice", "own", f"run-{time.monotonic_ns()}")
        self.n_sent = 0
        self._heard_ns = time.monotonic_ns()

    def work(self, duration_s: float) -> None:
        """Publish for a while."""
        begin_s, n_before, boot_id = time.monotonic(), self.n_sent, read_boot_id()
        while time.monotonic() < begin_s + duration_s:
            if self.n_sent % round(STATUS_S / FLUSH_S) == 0:
                status = status_of(self._key.run, boot_id, 0)
                self._client.publish(TOPICS.rank(boot_id, self._key, 0, "status"), status, 1)
            payload = iterations_of(self._key.run, self.n_sent, self._heard_ns)
            self._heard_ns += int(FLUSH_S * 1e9)
            self._client.publish(TOPICS.rank(boot_id, self._key, 0, "iterations"), payload, 0)
            self.n_sent += 1
            time.sleep(max(0.0, begin_s + (self.n_sent - n_before) * FLUSH_S - time.monotonic()))

    def close(self) -> None:
        """Leave."""
        self._client.disconnect()
        self._client.loop_stop()


class Listener:
    """Hears the energies of the controller under test."""

    def __init__(self, port: int) -> None:
        self.n_energies = 0
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2)
        subscribed = threading.Event()
        self._client.on_connect = lambda client, *_: client.subscribe(TOPICS.gpu(NODE, None, "energy"), 0)
        self._client.on_subscribe = lambda *_: subscribed.set()
        self._client.on_message = self._hear
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        subscribed.wait(10.0)

    def close(self) -> None:
        """Leave."""
        self._client.disconnect()
        self._client.loop_stop()

    def _hear(self, _client: mqtt.Client, _data: object, message: mqtt.MQTTMessage) -> None:
        self.n_energies += bool(message.payload)


@contextmanager
def brokered() -> Iterator[Mosquitto]:
    """Run a mosquitto for the time of the body."""
    with tempfile.TemporaryDirectory() as folder:
        broker = Mosquitto(Path(folder), _PLAIN)
        broker.start()
        try:
            yield broker
        finally:
            broker.stop()


def cpu_ratios(n_foreign: int) -> tuple[list[float], float]:
    """Return the controller's share of a core in each window, and the rate of the others' messages [1/s]."""
    with brokered() as broker, controlled(broker, f"node.name={NODE}", "gpu.trust_bus=true") as child:
        listener, run = Listener(broker.port), OwnRun(broker.port)
        wait_until(lambda: listener.n_energies, START_TIMEOUT_S)
        site = Site(broker.port, n_foreign)
        run.work(WINDOW_S)  # profiling begins
        ratios, begin_s, n_sent = list[float](), time.monotonic(), site.n_sent
        for _ in range(N_WINDOWS):
            used_s, window_s = processor_s(child.pid), time.monotonic()
            run.work(WINDOW_S)
            ratios.append((processor_s(child.pid) - used_s) / (time.monotonic() - window_s))
        rate_hz = (site.n_sent - n_sent) / (time.monotonic() - begin_s)
        for each in (site, run, listener):
            each.close()
        return ratios, rate_hz


def start_s(n_retained: int) -> float:
    """Return how long a controller takes from its start to its first energy message [s]."""
    with brokered() as broker:
        publisher, listener = RawPublisher(broker.port), Listener(broker.port)
        for first in range(0, n_retained, 1_000):
            packets = b""
            for gpu in range(first, first + 1_000):
                boot, key = f"boot-of-{gpu // GPUS_PER_NODE}", RunKey("bob", f"job-{gpu}", "run-1")
                packets += packet(TOPICS.rank(boot, key, 0, "status"), status_of("run-1", boot, "GPU-1"), retain=True)
            publisher.send(packets)
        publisher.send(packet(TOPICS.gpu(NODE, "GPU-none", "energy"), b"{}"))  # when it comes, all before it has
        wait_until(lambda: listener.n_energies, START_TIMEOUT_S)
        begin_s, n_before = time.monotonic(), listener.n_energies
        with controlled(broker, f"node.name={NODE}"):
            wait_until(lambda: listener.n_energies > n_before, START_TIMEOUT_S)
            took_s = time.monotonic() - begin_s
        publisher.close()
        listener.close()
        return took_s


def report() -> str:
    """Return the tables."""
    machine = f"{os.cpu_count()} cores of {platform.machine()}, Linux {platform.release()}"
    versions = f"Python {platform.python_version()}, gridchase {VERSION}, {_mosquitto_version()}"
    circumstances = f"sender, mosquitto and controller share the cores, at nice {os.nice(0)}, and others used them, too"
    lines = [
        "# What the GPUs of other nodes cost a controller",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, {machine}, {versions}; {circumstances}.",
        "",
        f"## CPU, with one run of its own: {N_WINDOWS} windows of {WINDOW_S:g} s",
        "",
        "| GPUs of others | their messages [1/s] | its CPU [cores]: mean | least | most |",
        "|---:|---:|---:|---:|---:|",
    ]
    for n_foreign in N_FOREIGN:
        ratios, rate_hz = cpu_ratios(n_foreign)
        mean = statistics.mean(ratios)
        lines.append(f"| {n_foreign:,} | {rate_hz:,.0f} | {mean:.3f} | {min(ratios):.3f} | {max(ratios):.3f} |")
        print(lines[-1], file=sys.stderr)
    lines += [
        "",
        "## From its start to its first message about a GPU",
        "",
        "| retained topics of others | time [s] |",
        "|---:|---:|",
    ]
    for n_retained in N_RETAINED:
        lines.append(f"| {n_retained:,} | {start_s(n_retained):.2f} |")
        print(lines[-1], file=sys.stderr)
    return "\n".join([*lines, ""])


def _mosquitto_version() -> str:
    done = subprocess.run(["/usr/sbin/mosquitto", "-h"], capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).partition("\n")[0]


def main() -> None:
    """Measure, and print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name}")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    text = report()
    if arguments.write:
        TABLE.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
