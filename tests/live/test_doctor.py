"""`gridchase doctor`: what a training here would be called, and whether the controller of its machine hears it."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.live.conftest import Mosquitto, wait_until
from tests.live.node import LiveNode
from tests.live.nvml_stub.machine import StubMachine
from tests.live.subscriber import Subscriber

pytestmark = pytest.mark.live
TRAINING_SIDE_ALONE = """
import sys
for package in "controller policies aiohttp aiomqtt amqtt numpy prometheus_client pynvml rich sqlalchemy".split():
    sys.modules[package] = None
from gridchase.__main__ import main
sys.exit(main())
"""


def doctor(broker: str, environment: Mapping[str, str] | None = None, *options: str) -> tuple[int, dict[str, Any]]:
    """Run it where only the training side is installed; return its exit code and what it says."""
    result = subprocess.run(
        [sys.executable, "-c", TRAINING_SIDE_ALONE, "doctor", "--json", *options],
        env={"GRIDCHASE_BROKER": broker, "PYTHONPATH": str(Path.cwd()), **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert not result.stderr
    return result.returncode, json.loads(result.stdout)


def test_each_setting_is_told_with_its_source(broker: Mosquitto) -> None:
    launcher = {"TORCHELASTIC_RUN_ID": "run7", "RANK": "1", "WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": "GPU-0123abcd"}
    _, report = doctor(broker.url, launcher, "--job", "resnet50")
    told = {each["setting"]: (each["value"], each["source"]) for each in report["settings"]}
    assert told["job"] == ("resnet50", "--job")
    assert told["run"] == ("run7", "TORCHELASTIC_RUN_ID")
    assert told["rank"] == ("1 of 2", "RANK")
    assert told["gpus"] == ("GPU-0123abcd", "CUDA_VISIBLE_DEVICES")
    assert told["broker"] == (broker.url, "GRIDCHASE_BROKER")
    assert told["user"][1] == "login name"
    assert told["password"] == ("none", "default")
    assert told["root"] == ("gridchase/v1", "default")


def test_what_is_missing_is_told_all_at_once() -> None:
    code, report = doctor("http://127.0.0.1")
    assert code == 1
    assert [fault.split(" ")[0] for fault in report["faults"]] == ["broker", "job"]


def test_a_broker_that_is_away_is_told() -> None:
    code, report = doctor("mqtt://127.0.0.1:9", None, "--job", "resnet50")
    assert code == 1
    assert "nothing listens at 127.0.0.1:9" in report["faults"][0]


def test_a_machine_without_a_controller_is_told(broker: Mosquitto) -> None:
    code, report = doctor(broker.url, None, "--job", "resnet50")
    assert code == 1
    assert report["notes"] == ["6 of the 6 topics that a training publishes arrive or are accepted by the broker"]
    assert "no controller of this machine answers" in report["faults"][0]


def test_beside_a_controller_it_and_the_check_are_content_and_leave_nothing_behind(
    nvml_machine: StubMachine, broker: Mosquitto, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    node = LiveNode(nvml_machine, broker, tmp_path)
    request.addfinalizer(node.close)
    settings = {"node.name": "gpu01", "signal.kind": "carbon", "signal.provider": '[{name="constant", value=400.0}]'}
    node.controller(**settings)
    wait_until(lambda: node.watcher.last("node/gpu01/status") and node.watcher.last("/carbon"), timeout_s=30.0)
    code, report = doctor(broker.url, None, "--job", "resnet50")
    assert report["faults"] == []
    assert code == 0
    assert report["notes"][-1] == "the controller of node gpu01 hears this environment"
    assert not node.watcher.all("/limit"), "no limit was touched"
    checked = node.call("check", "--json", **settings)
    assert json.loads(checked.stdout)["faults"] == []
    assert "invalid message" not in node.log()
    assert "not measured on this node any more" not in node.log()
    assert "gridchase-check" not in node.log(), "no run was started"
    heard = {topic: messages for topic, messages in node.watcher.messages.items() if "gridchase-check" in topic}
    assert len(heard) > 10
    assert not [topic for topic, messages in heard.items() if b"" in messages[:1]], "whatever is said says something"
    listener = Subscriber(broker.port)
    listener.close()
    assert not [topic for topic, _, _ in listener.seen if "gridchase-check" in topic], "nothing is left behind"
    assert node.watcher.last("grid/local/carbon")["value"] == 400.0, "what is retained stays"


@pytest.mark.parametrize("find", [json.dumps, str])
def test_a_password_is_never_shown(broker: Mosquitto, find: Callable[[object], str]) -> None:
    _, report = doctor(broker.url.replace("//", "//alice:s3cret@"), None, "--job", "resnet50")
    assert "s3cret" not in find(report)


def test_what_the_environment_holds_cannot_act_on_the_terminal() -> None:
    environment = {
        "PYTHONPATH": str(Path.cwd()),
        "CUDA_VISIBLE_DEVICES": "GPU-\x1b[2J\u202e",
        "SLURM_JOB_NAME": "\x9b2J",
    }
    result = subprocess.run(
        [
            sys.executable,
            "-X",
            "utf8",
            "-c",
            TRAINING_SIDE_ALONE,
            "doctor",
            "--job",
            "j",
            "--broker",
            "mqtt://127.0.0.1:9",
        ],
        env=environment,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 1
    assert b"\nemissions file  none " in result.stdout
    assert all(line.isprintable() for line in (result.stdout + result.stderr).decode().split("\n"))
