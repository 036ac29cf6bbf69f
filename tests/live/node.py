"""A node in the live tests: controller, training processes and verbs as child processes, and somebody who watches."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from controller.gpu.journal.entry import JournalEntry
from controller.gpu.journal.storage import Journal
from controller.gpu.node_lock import FILE_NAME as LOCK_FILE_NAME
from tests.live.conftest import TIMEOUT_S, Mosquitto, wait_until
from tests.live.nvml_stub.machine import StubMachine

EXIT_TIMEOUT_S = 60.0
_MAIN = "import sys; from gridchase.__main__ import main; sys.exit(main())"
QUICK = {
    "profiler.settle_s": "0.2",
    "profiler.window_s": "0.6",
    "profiler.block_s": "0.5",
    "profiler.n_blocks": "4",
    "plan.period_s": "0.5",
    "plan.max_slowdown": "1.3",  # a busy machine's noisy curve may leave no plan below the prior limit within 3 %
    "energy.period_s": "0.2",
    "job.lease_s": "5",
    "http.port": "-1",
}


class Watcher:
    """A dashboard: everything that is published under the root, by topic, decoded where it is JSON."""

    def __init__(self, broker: Mosquitto) -> None:
        self.messages: dict[str, list[Any]] = defaultdict(list)
        subscribed = threading.Event()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2)
        self._client.on_connect = lambda client, *_: client.subscribe("gridchase/v1/#", 1)
        self._client.on_subscribe = lambda *_: subscribed.set()
        self._client.on_message = self._take
        self._client.connect("127.0.0.1", broker.port)
        self._client.reconnect_delay_set(1, 1)
        self._client.loop_start()
        assert subscribed.wait(TIMEOUT_S), "what is said from now on is heard"

    def _take(self, _client: mqtt.Client, _data: object, message: mqtt.MQTTMessage) -> None:
        try:
            content = json.loads(message.payload)
        except ValueError:
            content = message.payload
        self.messages[message.topic.removeprefix("gridchase/v1/")].append(content)

    def last(self, ending: str) -> Any:  # noqa: ANN401 — decoded JSON
        """Return the newest message on a topic that ends so, or None."""
        found = [messages[-1] for topic, messages in list(self.messages.items()) if topic.endswith(ending)]
        return found[-1] if found else None

    def all(self, ending: str) -> list[Any]:
        """Return every message on topics that end so."""
        return [m for topic, messages in list(self.messages.items()) if topic.endswith(ending) for m in messages]

    def close(self) -> None:
        """Leave."""
        self._client.disconnect()
        self._client.loop_stop()


class LiveNode:
    """A node whose GPUs are the stub's."""

    def __init__(self, machine: StubMachine, broker: Mosquitto, directory: Path) -> None:
        self.machine = machine
        self.broker = broker
        self.state_dir = directory / "state"
        self.watcher = Watcher(broker)
        self._logs = directory
        self._children: list[subprocess.Popen[bytes]] = []

    @property
    def limit_w(self) -> float:
        """Return what is requested of the first GPU now [W]."""
        return self.machine.gpu().requested_power_limit_w

    def controller(self, *, log: str = "controller.log", before: str = "", **options: str) -> "subprocess.Popen[bytes]":
        """Start `gridchase controller`; `before` is run in its process before anything else."""
        program = ("-c", f"{before}\n{_MAIN}") if before else ("-m", "gridchase")
        return self._start(log, *program, "controller", *self._settings(options))

    def verb(
        self, *words: str, log: str = "controller.log", output: int | None = None, before: str = "", **options: str
    ) -> "subprocess.Popen[bytes]":
        """Start a verb in a session of its own; where its output is a terminal, that controls the session."""
        take_terminal = "import fcntl, os, termios; os.isatty(1) and fcntl.ioctl(1, termios.TIOCSCTTY, 0)"
        arguments = ("-c", f"{take_terminal}\n{before}\n{_MAIN}", *words, *self._settings(options))
        return self._start(log, *arguments, output=output, start_new_session=True)

    def training(
        self,
        duration_s: float,
        *,
        job: str = "resnet50",
        run: str = "r1",
        broker: str = "",
        before: Sequence[str] = (),
        **variables: str,
    ) -> "subprocess.Popen[bytes]":
        """Start a training process for a time; `before` is the command that starts it, with its arguments."""
        environment = {
            "GRIDCHASE_BROKER": broker or self.broker.url,
            "GRIDCHASE_JOB": job,
            "GRIDCHASE_RUN": run,
            "RANK": "0",
            "WORLD_SIZE": "1",
            "CUDA_VISIBLE_DEVICES": "0",
            **variables,
        }
        return self._start(
            "training.log", "-m", "tests.live.training_on_stub", str(duration_s), before=before, environment=environment
        )

    def call(self, verb: str, *arguments: str, **options: str) -> "subprocess.CompletedProcess[str]":
        """Run a verb of `gridchase` to its end."""
        return subprocess.run(
            [sys.executable, "-m", "gridchase", verb, *self._settings(options), *arguments],
            env=self._environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=EXIT_TIMEOUT_S,
        )

    def leave_limit(self, power_limit_w: float = 180.0) -> None:
        """Leave what a controller leaves that is killed while it holds a limit: the journal says so, the GPU has it."""
        gpu = self.machine.gpu()
        entry = JournalEntry(
            prior_power_limit_w=self.limit_w, written_power_limits_w=(power_limit_w,), written_at_s=0.0
        )
        asyncio.run(Journal.read(self.state_dir).record(gpu.uuid, entry))
        (self.state_dir / LOCK_FILE_NAME).touch(0o600)
        gpu.set_requested_power_limit_w(power_limit_w)

    def log(self, name: str = "controller.log") -> str:
        """Return what a child has logged."""
        return (self._logs / name).read_text()

    def close(self) -> None:
        """End whatever still runs."""
        for child in self._children:
            if child.poll() is None:
                child.kill()
                child.wait(EXIT_TIMEOUT_S)
        self.watcher.close()

    def _settings(self, options: dict[str, str]) -> list[str]:
        settings = {**QUICK, "bus.url": self.broker.url, "node.name": "n1", "node.state_dir": str(self.state_dir)}
        settings |= {key.replace("__", "."): value for key, value in options.items()}
        return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]

    def _start(
        self,
        log: str,
        *arguments: str,
        before: Sequence[str] = (),
        output: int | None = None,
        start_new_session: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> "subprocess.Popen[bytes]":
        with (self._logs / log).open("ab") as file:
            child = subprocess.Popen(
                [*before, sys.executable, *arguments],
                env=self._environment() | dict(environment or {}),
                stdout=output or file,
                stderr=output or file,
                start_new_session=start_new_session,
            )
        self._children.append(child)
        return child

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self.machine.environment()}


def wait_for(node: LiveNode, condition: Callable[[], object], timeout_s: float = 40.0) -> None:
    """Wait for a condition; where it does not come, show what the controller logged."""
    try:
        wait_until(condition, timeout_s)
    except TimeoutError:
        logs = "\n".join(f"--- {path.name}\n{path.read_text()[-4_000:]}" for path in sorted(node._logs.glob("*.log")))
        pytest.fail(f"the condition did not hold within {timeout_s:g} s\n{logs}")


def ended(child: "subprocess.Popen[bytes]", number: signal.Signals | None = None) -> int:
    """Signal a child, if a signal is given, and return how it ended."""
    if number is not None:
        child.send_signal(number)
    return child.wait(EXIT_TIMEOUT_S)


def fixture(machine: StubMachine, broker: Mosquitto, directory: Path) -> Iterator[LiveNode]:
    """Yield a node, and end everything on it afterwards."""
    node = LiveNode(machine, broker, directory)
    yield node
    node.close()
