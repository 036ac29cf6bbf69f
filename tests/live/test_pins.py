"""A run's limit is pinned and released by hand: real controller, broker and training, the driver interface a stub."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt import publish

from tests.live.conftest import Mosquitto, free_port
from tests.live.node import LiveNode, ended, wait_for
from tests.live.nvml_stub.machine import StubMachine

pytestmark = pytest.mark.live
PRIOR_W = 280.0
PIN_W = 165.0
RUN = "alice/resnet50/r1"


RULES = """\
topic readwrite gridchase/v1/#
topic deny gridchase/v1/user/+/job/+/run/+/set
topic deny gridchase/v1/node/+/gpu/+/set

user n1
topic readwrite gridchase/v1/#

user operator
topic readwrite gridchase/v1/#
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    """Start a mosquitto that lets everybody in, and takes orders from operators alone."""
    directory = tmp_path / "broker"
    directory.mkdir()
    (directory / "acl").write_text(RULES)
    (directory / "acl").chmod(0o600)
    lines = "listener {port} 127.0.0.1", "allow_anonymous true", f"acl_file {directory / 'acl'}", "log_dest stderr"
    mosquitto = Mosquitto(directory, "\n".join([*lines, "persistence false", ""]))
    mosquitto.start()
    yield mosquitto
    mosquitto.stop()


@pytest.fixture
def node(nvml_machine: StubMachine, broker: Mosquitto, tmp_path: Path) -> Iterator[LiveNode]:
    nvml_machine.gpu().set_requested_power_limit_w(PRIOR_W)
    node = LiveNode(nvml_machine, broker, tmp_path)
    yield node
    node.close()


def test_a_pin_is_said_before_done_when_read_back_kept_over_a_kill_and_released(node: LiveNode) -> None:
    port = str(free_port())

    def ask(verb: str, *arguments: str) -> tuple[int, str]:
        done = node.call(verb, "--job", "resnet50", *arguments, http__port=port)
        return done.returncode, done.stdout + done.stderr

    def reason() -> str:
        return str((node.watcher.last("/limit") or {}).get("reason"))

    controller = node.controller(http__port=port)
    node.training(300.0)
    wait_for(node, lambda: node.limit_w < PRIOR_W)
    order = ("--limit", "165W", "--until", "+2h", "--why", "the room is hot")
    code, said = ask("pin", *order, "--dry-run")
    assert (code, said.startswith(f"{RUN}: at 165 W"), said.count("\n")) == (0, True, 1), said
    assert "pinned" not in {change["reason"] for change in node.watcher.all("/limit")}
    code, said = ask("pin", *order)
    before, asked, done = said.splitlines()
    assert (code, done) == (0, f"{RUN}: done: 1 GPU at 165 W, read back"), said
    assert before.startswith(f"{RUN}: at 165 W")
    assert asked.startswith(f"{RUN}: asked for 165 W until 20")
    assert node.limit_w == PIN_W
    wait_for(node, lambda: reason() == "pinned")
    ended(controller, signal.SIGKILL)
    controller = node.controller(http__port=port)
    wait_for(node, lambda: node.log().count("it goes on after the restart") == 1)
    wait_for(node, lambda: node.limit_w == PIN_W and (node.watcher.last("r1/energy") or {}).get("pinned_s"))
    code, said = ask("pin", *order[:-1], "colder", "--json")
    answer = json.loads(said)
    assert (code, answer["state"], answer["run"], answer["why"]) == (0, "done", "r1", "colder"), said
    assert (answer["enforced_power_limit_w"], answer["preview"]["power_limit_w"]) == (PIN_W, PIN_W)
    code, said = ask("pin", "--limit", "165W", "--until", "+8d", "--why", "too long")
    assert (code, "a pin ends within 7 days (422)" in said) == (1, True), said
    code, said = ask("release", "--why", "it is cold")
    before = f"{RUN}: its pin by the operator of this node (colder) will end"
    assert (code, said) == (0, f"{before}\n{RUN}: released: its plan decides again\n")
    wait_for(node, lambda: reason() != "pinned" and node.limit_w != PIN_W)
    uuid = node.machine.gpu().uuid

    def ask_gpu(verb: str, *arguments: str) -> tuple[int, str]:
        done = node.call(verb, "--gpu", uuid, *arguments, http__port=port)
        return done.returncode, done.stdout + done.stderr

    code, said = ask_gpu("pin", *order)
    assert (code, said.splitlines()[-1]) == (0, f"{uuid}: done: 1 GPU at 165 W, read back"), said
    code, said = ask("release")
    assert f"it is held with its GPU {uuid}, pinned by the operator of this node (the room is hot)" in said
    assert (code, said.endswith(f"`gridchase release --gpu {uuid}`\n")) == (1, True), said
    code, said = ask_gpu("exempt", "--until", "+1h", "--why", "a demo")
    assert (code, said.splitlines()[-1]) == (0, f"{uuid}: done: 1 GPU at {PRIOR_W:g} W, read back"), said
    code, said = ask_gpu("release")
    before = f"{uuid}: its pin by the operator of this node (a demo) will end"
    assert (code, said) == (0, f"{before}\n{uuid}: released: its plan decides again\n")
    assert ask_gpu("release") == (0, f"{uuid}: is not pinned\n")
    assert ended(controller, signal.SIGTERM) == 0
    assert node.limit_w == PRIOR_W
    assert "pinned to 165 W by the operator of this node until" in node.log()
    assert "the operator of this node ends it: it is cold" in node.log()


def test_a_budget_is_said_before_done_when_read_back_kept_over_a_kill_and_reset(node: LiveNode) -> None:
    options = {"http__port": str(free_port()), "plan__max_slowdown": "1.01"}

    def ask(verb: str, *arguments: str) -> tuple[int, str]:
        done = node.call(verb, "--job", "resnet50", "--why", "it is hot", *arguments, **options)
        return done.returncode, done.stdout + done.stderr

    def schedule() -> dict[str, Any]:
        return node.watcher.last("r1/schedule") or {}

    controller = node.controller(**options)
    node.training(300.0)
    wait_for(node, lambda: schedule().get("max_slowdown_ratio") == 1.01)
    code, said = ask("budget", "--max-slowdown", "1.3", "--dry-run")
    assert (code, said.startswith(f"{RUN}: with a time budget of 30 % from now on its limit ")) == (0, True), said
    code, said = ask("budget", "--max-slowdown", "1.3", "--until", "+2h")
    _, asked, done = said.splitlines()
    assert (code, asked) == (0, f"{RUN}: asked for"), said
    assert done.startswith(f"{RUN}: done: planned so, and "), said
    wait_for(node, lambda: schedule().get("max_slowdown_ratio") == 1.3)
    ended(controller, signal.SIGKILL)
    controller = node.controller(**options)
    wait_for(node, lambda: node.log().count("health, metrics and orders: served") == 2)
    assert "until 20" in node.log().partition("a time budget of 30 % by the operator of this node ")[2][:10]
    wait_for(node, lambda: schedule().get("max_slowdown_ratio") == 1.3)
    code, said = ask("exempt", "--until", "+1h")
    assert (code, said.splitlines()[-1]) == (0, f"{RUN}: done: 1 GPU at 280 W, read back"), said
    assert node.limit_w == PRIOR_W
    code, said = ask("deadline", "--at", "+8h", "--json")
    answer = json.loads(said)
    assert (code, answer["state"], answer["max_slowdown_ratio"]) == (0, "waiting", None), said
    assert answer["detail"].startswith("exempt, at its prior limit, by the operator of this node until 20")
    assert ask("release")[0] == 0
    wait_for(node, lambda: schedule().get("objective") == "deadline")
    assert ask("deadline", "--reset") == (0, f"{RUN}: reset: the configured objective holds again\n")
    wait_for(node, lambda: schedule().get("max_slowdown_ratio") == 1.01)
    code, said = ask("deadline", "--at", "2020-01-01T00:00")
    assert (code, "deadline_s = 1577836800 has passed" in said) == (1, True), said
    assert ended(controller, signal.SIGTERM) == 0
    assert node.limit_w == PRIOR_W


def test_an_order_over_the_bus_is_answered_when_read_back_and_no_retained_one(
    node: LiveNode, broker: Mosquitto
) -> None:
    def order(correlation: str, *, action: str = "pin", retain: bool = False) -> None:
        now_s = time.time()
        message = {"time_s": now_s, "action": action, "correlation": correlation, "by": "ada", "why": "the room is hot"}
        message |= {"power_limit_w": PIN_W, "until_s": now_s + 3_600} if action == "pin" else {}
        topic = "gridchase/v1/user/alice/job/resnet50/run/r1/set"
        auth: publish.AuthParameter = {"username": "operator", "password": "secret"}
        publish.single(topic, json.dumps(message), qos=1, retain=retain, port=broker.port, auth=auth)

    def answer(correlation: str) -> tuple[str, str] | None:
        found = [each for each in node.watcher.all("/set/result") if each["correlation"] == correlation]
        return (found[-1]["state"], found[-1]["reason"]) if found else None

    switched_on = {"orders__over_bus": "true", "bus__username": "n1"}
    controller = node.controller(**switched_on)
    node.training(300.0)
    wait_for(node, lambda: node.limit_w < PRIOR_W)
    order("o-1")
    wait_for(node, lambda: answer("o-1"))
    assert (answer("o-1"), node.limit_w) == (("done", "pinned"), PIN_W)
    order("o-2", action="release")
    wait_for(node, lambda: answer("o-2"))
    assert answer("o-2") == ("done", "released")
    order("o-3", action="release", retain=True)
    wait_for(node, lambda: answer("o-3"))
    assert ended(controller, signal.SIGTERM) == 0
    node.controller(**switched_on)
    wait_for(node, lambda: "a retained order is not obeyed" in node.log())
    assert "pinned to 165 W by ada over the bus until" in node.log()
