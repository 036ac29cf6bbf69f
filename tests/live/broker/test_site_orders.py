"""An order over a real bus with the shipped rules: an operator's is obeyed, a training's reaches nobody."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from tests.live.broker.site import SiteBroker, SiteClient, password_of, site_broker
from tests.live.conftest import wait_until

pytestmark = pytest.mark.live
TIMEOUT_S: Final = 40.0
AGAIN_S: Final = 5.0
"""An order that comes before the controller hears any is sent again; one that comes twice is obeyed once."""
USERS: Final = {"trainings": ["alice"], "nodes": ["gpu01"], "services": ["operator"]}
RUN: Final = "gridchase/v1/user/alice/job/resnet50/run/r1"
TRAINING: Final = """
import time
from gridchase import publish_iterations
for _ in publish_iterations(range(100_000), job="resnet50", run="r1", pausable=True, heartbeat_s=1.0, flush_s=0.05):
    time.sleep(0.02)
"""


@contextmanager
def running(folder: Path, name: str, *arguments: str, **environment: str) -> Iterator[Path]:
    """Run a child that logs to a file."""
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, *arguments], env=os.environ | environment, stdout=output, stderr=output
        )
        try:
            yield log
        finally:
            child.terminate()
            child.wait(TIMEOUT_S)


def password_file(folder: Path, user: str) -> str:
    file = folder / f"password-of-{user}"
    file.touch(0o600)
    file.write_text(password_of(user))
    return str(file)


def controller(folder: Path, site: SiteBroker) -> tuple[str, ...]:
    """Return the command of a controller with a simulated GPU at the door of nodes."""
    settings = {
        "bus.url": site.url("nodes"),
        "bus.username": "gpu01",
        "bus.password_file": password_file(folder, "gpu01"),
        "bus.ca_file": str(site.ca_file),
        "node.name": "gpu01",
        "node.state_dir": str(folder / "state"),
        "gpu.backend": "simulation",
        "energy.period_s": "0.5",
        "http.port": "-1",
        "orders.over_bus": "true",
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return ("-m", "controller", "controller", *words)


def order(client: SiteClient, correlation: str, action: str = "pause") -> None:
    """Order that the run waits, or goes on."""
    terms: dict[str, Any] = {"for_s": 60.0} if action == "pause" else {}
    message = {"time_s": time.time(), "action": action, "correlation": correlation, "by": "ada", "why": "peak hour"}
    client.publish(f"{RUN}/set", json.dumps(message | terms).encode())


def test_a_pause_is_obeyed_by_an_operators_order_and_not_by_a_trainings(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    with ExitStack() as stack:
        site = stack.enter_context(site_broker(tmp_path / "broker", USERS, watched=True))
        watcher, alice, operator = (
            stack.enter_context(site.client(door, user))
            for door, user in (("watcher", ""), ("trainings", "alice"), ("services", "operator"))
        )
        watcher.subscribe(f"{RUN}/#", "gridchase/v1/host/#")
        log = stack.enter_context(running(tmp_path, "controller", *controller(tmp_path, site)))
        environment = {
            "GRIDCHASE_BROKER": site.url("trainings").replace("//", "//alice@"),
            "GRIDCHASE_PASSWORD_FILE": password_file(tmp_path, "alice"),
            "GRIDCHASE_CA_FILE": str(site.ca_file),
        }
        stack.enter_context(running(tmp_path, "training", "-c", TRAINING, **environment))

        def answers() -> dict[str, tuple[str, str]]:
            said = [json.loads(payload) for payload in list(watcher.received.get(f"{RUN}/set/result", []))]
            return {each["correlation"]: (each["state"], each["reason"]) for each in said}

        def answered(correlation: str, action: str) -> tuple[str, str]:
            deadline_s = time.monotonic() + TIMEOUT_S
            while correlation not in answers() and time.monotonic() < deadline_s:
                order(operator, correlation, action)
                with suppress(TimeoutError):
                    wait_until(lambda: correlation in answers(), AGAIN_S)
            return answers()[correlation]

        wait_until(lambda: f"{RUN}/energy" in watcher.received, TIMEOUT_S)
        order(alice, "of-a-training")
        assert answered("of-an-operator", "pause") == ("done", "paused")
        order(alice, "of-a-training", "resume")
        assert answered("goes-on", "resume") == ("done", "resumed")
        assert "of-a-training" not in answers()
        heard = {json.loads(payload)["correlation"] for payload in watcher.received[f"{RUN}/set"]}
        assert heard == {"of-an-operator", "goes-on"}, "the broker drops the training's own"
        assert "ada over the bus asks for a pause of 60 s: peak hour" in log.read_text()
