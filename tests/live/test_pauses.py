"""A run is paused and resumed by hand: real controller, broker and training, and the driver interface on a stub."""

import json
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from publishers.messages.codec import decode
from publishers.messages.training import RankStatus
from tests.live.conftest import Mosquitto, free_port
from tests.live.node import LiveNode, ended, wait_for
from tests.live.nvml_stub.machine import StubMachine

pytestmark = pytest.mark.live
PRIOR_W = 280.0
LEASE_S = 5.0
"""Of a silent run, in these tests."""


class PausingNode(LiveNode):
    """A node whose controller serves HTTP."""

    port = ""

    def ask(self, verb: str, *arguments: str) -> tuple[int, str]:
        """Run `pause` or `resume`; return its exit code, and what it says."""
        done = self.call(verb, "--job", "resnet50", *arguments, http__port=self.port)
        return done.returncode, done.stdout + done.stderr

    def status(self) -> RankStatus | None:
        """Return what the training says of itself."""
        payload = self.watcher.last("rank/0/status")
        return decode(payload, RankStatus) if payload else None

    def is_pausable(self) -> bool:
        status = self.status()
        return status is not None and status.pausable

    def is_paused(self) -> bool:
        status = self.status()
        return status is not None and status.paused_since_ns is not None

    def n_messages(self) -> int:
        """Return how many messages of iterations have come."""
        return len(self.watcher.all("/iterations"))


@pytest.fixture
def node(nvml_machine: StubMachine, broker: Mosquitto, tmp_path: Path) -> Iterator[PausingNode]:
    nvml_machine.gpu().set_requested_power_limit_w(PRIOR_W)
    node = PausingNode(nvml_machine, broker, tmp_path)
    node.port = str(free_port())
    yield node
    node.close()


def test_a_run_is_paused_and_resumed_by_hand_and_its_record_says_so(node: PausingNode) -> None:
    controller = node.controller(http__port=node.port)
    training = node.training(300.0, PAUSABLE="1")
    wait_for(node, lambda: node.limit_w < PRIOR_W and node.is_pausable())
    code, said = node.ask("pause", "--why", "tea time", "--for", "60")
    before, after = said.splitlines()
    assert before.startswith("alice/resnet50/r1: it will wait for 60 s at most after an iteration"), said
    assert (code, after.startswith("alice/resnet50/r1: paused for ")) == (0, True), said
    assert node.is_paused()
    n_before, n_statuses = node.n_messages(), len(node.watcher.all("rank/0/status"))
    wait_for(node, lambda: len(node.watcher.all("rank/0/status")) > n_statuses + LEASE_S + 1)  # one a second
    assert node.n_messages() <= n_before + 1, "what was under way when the command came"
    energy = node.watcher.last("r1/energy")
    assert (energy["state"], energy.get("final", False)) == ("running", False), "no lease ends a paused run"
    code, said = node.ask("resume", "--why", "it is cold", "--json")
    answer = json.loads(said)
    assert (code, answer["state"], answer["run"]) == (0, "running", "r1")
    wait_for(node, lambda: node.n_messages() > n_before + 20)
    assert ended(training, signal.SIGTERM) == 0
    wait_for(node, lambda: (node.watcher.last("r1/energy") or {}).get("final"))
    final = node.watcher.last("r1/energy")
    assert LEASE_S < final["paused_s"] < final["duration_s"]
    assert final["evidence"] == "too_early"
    wait_for(node, lambda: node.limit_w == PRIOR_W)
    assert ended(controller, signal.SIGTERM) == 0
    log = node.log()
    assert "alice/resnet50/r1: the operator of this node asks for a pause of 60 s: tea time" in log
    assert "alice/resnet50/r1: the pause ends: the operator of this node ends it: it is cold" in log
    told = node.log("training.log")
    assert "tea time (controller of n1)" in told
    assert "gridchase: the training goes on after a pause: the operator of this node ends it: it is cold" in told


def test_a_paused_run_goes_on_when_its_controller_stops(node: PausingNode) -> None:
    controller = node.controller(http__port=node.port)
    node.training(300.0, PAUSABLE="1")
    wait_for(node, lambda: node.limit_w < PRIOR_W and node.is_pausable())
    assert node.ask("pause")[0] == 0
    assert ended(controller, signal.SIGTERM) == 0
    wait_for(node, lambda: not node.is_paused())
    assert node.limit_w == PRIOR_W


def test_a_paused_run_goes_on_when_its_controller_is_killed(node: PausingNode) -> None:
    controller = node.controller(http__port=node.port)
    node.training(300.0, PAUSABLE="1")
    wait_for(node, lambda: node.limit_w < PRIOR_W and node.is_pausable())
    assert node.ask("pause")[0] == 0
    n_before = node.n_messages()
    ended(controller, signal.SIGKILL)
    wait_for(node, lambda: not node.is_paused(), timeout_s=45.0)
    wait_for(node, lambda: node.n_messages() > n_before + 5)
    assert "its controller has stopped asking for it" in node.log("training.log")


def test_a_run_that_its_plan_has_paused_goes_on_when_the_controller_is_killed(node: PausingNode) -> None:
    """This hour and the next are dirty ones, as on each of the days before: the forecast has the others clean."""
    hours, this_hour = range(-40 * 24, 2), datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    rows = [f"{this_hour + timedelta(hours=h):%Y-%m-%dT%H:%MZ},{600 if h % 24 in {0, 1} else 100}" for h in hours]
    trace = node.state_dir.parent / "grid.csv"
    trace.write_text("\n".join(["timestamp,gco2_per_kwh", *rows]), encoding="utf-8")
    controller = node.controller(
        signal__kind="carbon",
        signal__provider=f'[{{name="csv", path="{trace}", zone="XX"}}]',
        plan__objective="deadline",
        plan__deadline="12h",
        plan__may_pause="true",
    )
    node.training(300.0, PAUSABLE="1", MAX_PAUSE_S="7200", WORK_S="3600")
    wait_for(node, node.is_paused)
    wait_for(node, lambda: (node.watcher.last("/limit") or {}).get("reason") == "paused_in_bad_hours")
    assert node.watcher.last("/limit")["detail"].startswith("paused until about ")
    assert "the grid is cleaner later (controller of n1)" in node.log("training.log")
    ended(controller, signal.SIGKILL)
    wait_for(node, lambda: not node.is_paused(), timeout_s=45.0)
    assert "its controller has stopped asking for it" in node.log("training.log")


def test_a_paused_run_goes_on_when_the_broker_is_lost(node: PausingNode, broker: Mosquitto) -> None:
    node.controller(http__port=node.port)
    node.training(300.0, PAUSABLE="1")
    wait_for(node, lambda: node.limit_w < PRIOR_W and node.is_pausable())
    assert node.ask("pause")[0] == 0
    broker.kill()
    wait_for(node, lambda: "goes on after a pause: the broker was lost" in node.log("training.log"))
    n_before = node.n_messages()
    broker.start()
    wait_for(node, lambda: node.n_messages() > n_before + 5)
    assert not node.is_paused()


def test_a_run_that_cannot_pause_is_not_asked_to(node: PausingNode) -> None:
    node.controller(http__port=node.port)
    node.training(300.0)
    wait_for(node, lambda: node.limit_w < PRIOR_W)
    code, said = node.ask("pause")
    assert (code, "the training has not said that it can pause: it needs pausable=True" in said) == (1, True), said
    assert node.watcher.all("/command") == []


def test_where_no_controller_answers_that_is_said(node: PausingNode) -> None:
    code, said = node.ask("pause")
    assert (code, f"{node.state_dir}/http.token: no such file" in said) == (1, True), said
    node.state_dir.mkdir()
    (node.state_dir / "http.token").write_text("a-token")
    code, said = node.ask("resume")
    assert (code, f"http://127.0.0.1:{node.port}: no controller answers" in said) == (1, True), said
