"""What a training says at its end, with a real broker and a real controller on the stub's GPUs."""

import csv
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from publishers.messages.codec import decode, encode
from publishers.messages.reports import KNOWN_EVIDENCE, RunEnergy
from publishers.training.reporting.run_summary import summarize
from tests.live.conftest import Mosquitto
from tests.live.node import LiveNode, ended, fixture, wait_for
from tests.live.nvml_stub.machine import StubMachine

pytestmark = pytest.mark.live
SCRIPT = """
import sys, time
from pathlib import Path
from gridchase import publish_iterations
from tests.live.nvml_stub.machine import StubMachine
gpu = StubMachine.from_environment().gpu()
gpu.busy = True
gpu.pids |= {int(Path("/proc/self").readlink().name)}
for k, _ in enumerate(publish_iterations(range(10**6), job="resnet50", run=sys.argv[1], gpus=[0], flush_s=0.05)):
    time.sleep(gpu.iteration_time_s())
    if k == 40:
        print("trained", flush=True)
        exec(sys.argv[2])
"""


@pytest.fixture
def node(nvml_machine: StubMachine, broker: Mosquitto, tmp_path: Path) -> Iterator[LiveNode]:
    yield from fixture(nvml_machine, broker, tmp_path)


def controlled(node: LiveNode, **options: str) -> None:
    """Start the controller, and wait until it listens."""
    node.controller(**options)
    wait_for(node, lambda: node.watcher.last("node/n1/status"))


def lines(node: LiveNode) -> list[str]:
    """Return what the training printed, without the name that every line of ours begins with."""
    said = [text.removeprefix("gridchase: ") for text in node.log("training.log").splitlines()]
    return [text for text in said if text.startswith("resnet50 run")]


def final_record(node: LiveNode, run: str, job: str = "resnet50") -> RunEnergy:
    """Return the last record of a run."""
    wait_for(node, lambda: (node.watcher.last(f"{job}/run/{run}/energy") or {}).get("final"))
    last: dict[str, object] = node.watcher.last(f"{job}/run/{run}/energy")
    return decode(encode(RunEnergy(**last)), RunEnergy)  # type: ignore[arg-type]  # decode checks it


def train(node: LiveNode, run: str, then: str = "sys.exit()") -> "subprocess.Popen[bytes]":
    """Start a short training; after 41 iterations it does something."""
    environment = {"GRIDCHASE_BROKER": node.broker.url}
    return node._start("training.log", "-c", SCRIPT, run, then, environment=environment)


def test_the_end_says_what_the_last_record_says(node: LiveNode, tmp_path: Path) -> None:
    controlled(node)
    file = tmp_path / "emissions.csv"
    training = node.training(25.0, GRIDCHASE_EMISSIONS_FILE=str(file))
    assert ended(training) == 0
    record = final_record(node, "r1")
    assert record.evidence is not None
    assert (record.saved_energy_ratio is None) == (record.evidence not in KNOWN_EVIDENCE)
    assert lines(node) == [str(summarize("resnet50", "r1", record, unmeasured=("", "")))]
    assert ", so far:" not in lines(node)[0]
    with file.open(newline="") as text:
        (row,) = csv.DictReader(text)
    assert float(row["energy_consumed"]) == pytest.approx(record.energy_j / 3.6e6)


def test_a_short_run_and_one_that_is_broken_off_tell_what_they_have_used(node: LiveNode) -> None:
    controlled(node, profiler__window_s="5")
    assert ended(train(node, "r1")) == 0
    nothing = "(too early to tell what was saved|nothing saved: it was too short)"
    held_up = "(; not all of the run was measured)?"  # by a busy machine
    assert re.search(f" Wh, {nothing}{held_up}$", lines(node)[-1])
    assert ", so far:" not in lines(node)[-1]
    assert ended(train(node, "r2", "raise SystemError('the training is broken')")) == 1
    log = node.log("training.log")
    assert log.index("SystemError: the training is broken") < log.index("resnet50 run r2, so far: ")
    interrupted = train(node, "r3", "pass")
    wait_for(node, lambda: node.log("training.log").count("trained") == 3)
    assert ended(interrupted, signal.SIGINT) == -signal.SIGINT
    assert lines(node)[-1].startswith("resnet50 run r3, so far: ")
    assert len(lines(node)) == 3


def test_a_controller_that_only_observes_is_why_nothing_was_saved(node: LiveNode) -> None:
    controlled(node, plan__observe="true")
    assert ended(train(node, "r1")) == 0
    assert " Wh, nothing saved: plan.observe is on: limits are planned, but never written" in lines(node)[-1]


def test_without_a_controller_the_end_says_so(broker: Mosquitto) -> None:
    script = (
        "import time\nfrom gridchase import Publisher\n"
        "from publishers.training.reporting import run_report\n"
        "run_report.HEARD_WITHIN_S = 0.0\n"
        f"publisher = Publisher(job='toy', run='r1', broker={broker.url!r}, flush_s=0.01)\n"
        "for _ in range(100): publisher.iteration(); time.sleep(0.005)\n"
    )
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    (line,) = child.stderr.splitlines()
    assert line == (
        f"gridchase: toy run r1: not measured: no controller of this machine listens at {broker.url}: is "
        "`gridchase up` running here?"
    )


TRACKED = """
import sys, time
from pathlib import Path
from gridchase import track_energy
from tests.live.nvml_stub.machine import StubMachine
gpu = StubMachine.from_environment().gpu()
gpu.busy = True
gpu.pids |= {int(Path("/proc/self").readlink().name)}
with track_energy("evaluation", run="r1", gpus=[0]) as publisher:
    while not (publisher.live() or {}).get("energy_j", 0) > 500:
        time.sleep(0.05)
    print(publisher.live(), flush=True)
"""


def test_code_without_a_loop_is_measured_and_gets_no_limit(node: LiveNode) -> None:
    controlled(node)
    child = node._start("training.log", "-c", TRACKED, environment={"GRIDCHASE_BROKER": node.broker.url})
    assert ended(child) == 0
    record = final_record(node, "r1", job="evaluation")
    (line,) = [text for text in node.log("training.log").splitlines() if text.startswith("gridchase: evaluation")]
    assert line.startswith(f"gridchase: {summarize('evaluation', 'r1', record, unmeasured=('', ''))}")
    assert "Wh, nothing saved: no optimizer steps were seen" in line
    assert (record.iterations, record.evidence in {None, "too_early", "nothing_changed"}) == (0, True)
    assert 500 < record.energy_j < node.limit_w * (record.duration_s + 1)
    assert {limit["reason"] for limit in node.watcher.all("/limit")} <= {"run_finished"}
