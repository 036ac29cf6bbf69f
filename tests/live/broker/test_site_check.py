"""`gridchase check` on the shipped site, with the passwords of a node and of a training, and under a wrong name."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.broker.site import SiteBroker, password_of, site_broker

pytestmark = pytest.mark.live


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SiteBroker]:
    with site_broker(tmp_path, {"trainings": ["alice"], "nodes": ["gpu01"]}) as site:
        yield site


def check(site: SiteBroker, node: str) -> "subprocess.CompletedProcess[str]":
    """Check a simulated node with the password of gpu01, and a training here with that of alice."""
    settings = {
        "bus.url": site.url("nodes"),
        "bus.username": "gpu01",
        "bus.password_file": _password_file(site, "gpu01"),
        "bus.ca_file": str(site.ca_file),
        "node.name": node,
        "node.state_dir": str(site.directory / "state"),
        "gpu.backend": "simulation",
        "orders.over_bus": "true",
    }
    environment = {
        "GRIDCHASE_BROKER": site.url("trainings").replace("//", "//alice@"),
        "GRIDCHASE_PASSWORD_FILE": _password_file(site, "alice"),
        "GRIDCHASE_CA_FILE": str(site.ca_file),
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return subprocess.run(
        [sys.executable, "-m", "controller", "check", *words],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60.0,
    )


def _password_file(site: SiteBroker, user: str) -> str:
    file = site.directory / f"{user}.password"
    file.touch(0o600)
    file.write_text(password_of(user))
    return str(file)


def test_every_topic_of_a_node_and_a_training_arrives_at_the_shipped_site(site: SiteBroker) -> None:
    checked = check(site, "gpu01")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "topics of the controller: 11 of 11 arrive" in checked.stdout
    assert "topics of the training: 6 of 6 arrive" in checked.stdout


def test_a_node_that_is_not_named_like_its_user_is_told(site: SiteBroker) -> None:
    checked = check(site, "gpu02")
    assert checked.returncode == 1
    assert "node/gpu02/gpu/" in checked.stdout
    assert "the controller may not publish it" in checked.stdout
