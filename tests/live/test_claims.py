"""Claims on GPUs with real processes: forged ones, one from a pid namespace, and what a refused training is told."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from publishers.messages.codec import encode
from publishers.messages.topics import RunKey, Topics
from publishers.messages.training import RankStatus
from publishers.shared.boot_id import read_boot_id
from tests.live.conftest import TIMEOUT_S, Mosquitto
from tests.live.node import LiveNode, ended, fixture, wait_for
from tests.live.nvml_stub.machine import StubMachine

pytestmark = pytest.mark.live
PRIOR_W = 280.0
INVENTED = 4_194_000
"""Near the highest process id that a kernel gives: nobody has it."""
PLAIN = """
import threading
from gridchase import publish_iterations
pause = threading.Event()
for _ in publish_iterations(range(10**6), job="resnet50", run="r1", flush_s=0.05, heartbeat_s=1.0, batch_size=256):
    pause.wait(0.01)
"""


@pytest.fixture
def node(nvml_machine: StubMachine, broker: Mosquitto, tmp_path: Path) -> Iterator[LiveNode]:
    """Return a node whose operator has set 280 W on a GPU of 300 W."""
    nvml_machine.gpu().set_requested_power_limit_w(PRIOR_W)
    yield from fixture(nvml_machine, broker, tmp_path)


class Forger:
    """A client of the bus that says what it likes of one run."""

    def __init__(self, node: LiveNode, run: RunKey) -> None:
        self._run = run
        self._gpu_uuid = node.machine.gpu().uuid
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2)
        self._client.connect("127.0.0.1", node.broker.port)
        self._client.loop_start()

    def claim(self, pid: int, **changes: Any) -> None:  # noqa: ANN401 — the record checks them
        """Claim the GPU for a process."""
        boot_id = read_boot_id()
        fields: dict[str, Any] = {"gpus": [self._gpu_uuid], "pid_namespace": Path("/proc/self/ns/pid").stat().st_ino}
        status = RankStatus(
            run=self._run.run,
            state="running",
            host="here",
            boot_id=boot_id,
            pid=pid,
            world_size=1,
            started_at_s=time.time(),
            heartbeat_s=1.0,
            **fields | changes,
        )
        topic = Topics().rank(boot_id, self._run, 0, "status")
        self._client.publish(topic, encode(status), qos=1, retain=True).wait_for_publish(TIMEOUT_S)

    def close(self) -> None:
        """Leave."""
        self._client.disconnect()
        self._client.loop_stop()


def notices(node: LiveNode, run: str) -> list[str]:
    """Return the codes of what a run was told."""
    return [notice["code"] for notice in node.watcher.all(f"{run}/notice")]


def test_forged_claims_beside_an_honest_run_change_nothing(node: LiveNode) -> None:
    forgers = [Forger(node, RunKey("mallory", "forgery", run)) for run in ("f1", "f2")]
    node.controller()
    forgers[0].claim(INVENTED)
    wait_for(node, lambda: notices(node, "f1") == ["heard"])
    training = node.training(300.0)
    wait_for(node, lambda: node.limit_w < PRIOR_W)
    forgers[1].claim(training.pid)  # a real process on the board, but another run's
    wait_for(node, lambda: notices(node, "f2") == ["heard"])
    for forger in forgers:
        forger.close()
    wait_for(node, lambda: len(node.watcher.all("/limit")) >= 6)
    assert {change["job"] for change in node.watcher.all("/limit")} == {"resnet50"}
    assert ended(training, signal.SIGTERM) == 0
    wait_for(node, lambda: node.limit_w == PRIOR_W)


@pytest.fixture
def victim() -> Iterator[int]:
    """Return the id of a process that publishes nothing."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


def test_a_forged_claim_on_a_gpu_of_somebody_who_does_not_publish_writes_nothing(node: LiveNode, victim: int) -> None:
    gpu = node.machine.gpu()
    gpu.pids = frozenset({victim})
    controller = node.controller()
    for number, pid in enumerate((INVENTED, os.getpid(), 1)):
        n_reads = gpu.calls("nvmlDeviceGetComputeRunningProcesses_v3")
        forger = Forger(node, RunKey("mallory", "forgery", f"f{number}"))
        forger.claim(pid)
        wait_for(node, lambda n=n_reads: gpu.calls("nvmlDeviceGetComputeRunningProcesses_v3") > n)  # type: ignore[misc]
        forger.close()
    assert ended(controller, signal.SIGTERM) == 0
    assert gpu.set_calls == 0


def test_a_training_in_a_pid_namespace_of_its_own_is_recognised(node: LiveNode) -> None:
    unshare = ["unshare", "--pid", "--fork", "--kill-child"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("this system lets us make no pid namespace: run the test as root, or allow user namespaces")
    controller = node.controller()
    training = node.training(300.0, before=unshare, CUDA_VISIBLE_DEVICES="5", NVIDIA_VISIBLE_DEVICES="GPU-1,GPU-2")
    wait_for(node, lambda: node.limit_w < PRIOR_W)
    status = node.watcher.last("rank/0/status")
    assert b"\xa3pid\x01" in status, "process 1 of its namespace"
    training.kill()
    wait_for(node, lambda: node.limit_w == PRIOR_W)
    assert ended(controller, signal.SIGTERM) == 0


def test_a_refused_claim_is_one_line_on_the_trainings_stderr(node: LiveNode) -> None:
    node.controller()
    training = node.training(300.0, CUDA_VISIBLE_DEVICES="7")
    wait_for(node, lambda: "gpu_unknown" in node.log("training.log"))
    wait_for(node, lambda: len(node.watcher.all("rank/0/status")) >= 5)
    *_, line = sorted(node.log("training.log").splitlines())
    assert node.log("training.log").count("gridchase: rank 0: ") == 1
    assert line.startswith("gridchase: rank 0: there is no GPU 7 on this node; it has 0 = GPU-")
    assert ended(training, signal.SIGTERM) == 0
    assert node.machine.gpu().set_calls == 0


def test_on_a_simulated_gpu_every_process_that_publishes_computes(node: LiveNode) -> None:
    controller = node.controller(gpu__backend="simulation")
    environment = {**os.environ, "GRIDCHASE_BROKER": node.broker.url}
    with subprocess.Popen([sys.executable, "-c", PLAIN], env=environment) as training:
        try:
            wait_for(node, lambda: (node.watcher.last("/limit") or {}).get("reason") == "profiling")
        finally:
            training.kill()
    assert notices(node, "r1") == ["heard"]
    assert ended(controller, signal.SIGTERM) == 0
