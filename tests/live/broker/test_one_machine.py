"""The shipped broker of one machine on a real mosquitto, and what either shipped file leaves open."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from publishers.mqtt.client import probe_broker
from tests.live.broker.site import DEPLOY
from tests.live.conftest import Mosquitto

pytestmark = pytest.mark.live
FILES = ("one-machine.conf", "site.conf")
LIMITS = {
    *("memory_limit", "max_packet_size", "max_queued_bytes", "max_queued_messages"),
    *("max_inflight_bytes", "max_inflight_messages", "persistent_client_expiration"),
}


def settings(name: str) -> list[list[str]]:
    """Return the settings of a shipped file: name and value."""
    lines = (DEPLOY / name).read_text().splitlines()
    return [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]


def listeners(name: str) -> dict[str, dict[str, str]]:
    """Return the settings of each listener, up to the next one."""
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for key, value in settings(name):
        if key == "listener":
            current = found.setdefault(value, {})
        current.setdefault(key, value)
    return found


@pytest.fixture
def one_machine(tmp_path: Path) -> Iterator[Mosquitto]:
    conf = (DEPLOY / "one-machine.conf").read_text().replace("/var/lib/mosquitto/", f"{tmp_path}/")
    conf, n_changed = re.subn(r"\nlistener 1883 127\.0\.0\.1\n", "\nlistener {port} 127.0.0.1\n", conf)
    assert n_changed == 1
    broker = Mosquitto(tmp_path, conf)
    broker.start()
    yield broker
    broker.stop()


async def test_the_broker_of_one_machine_delivers_without_a_password(one_machine: Mosquitto) -> None:
    assert await probe_broker(one_machine.url) is None
    assert "Error" not in one_machine.log


def test_the_broker_of_one_machine_has_one_door_on_the_loopback() -> None:
    assert list(listeners("one-machine.conf")) == ["1883 127.0.0.1"]


def test_no_door_of_the_site_is_anonymous() -> None:
    doors = listeners("site.conf")
    assert len(doors) == 3
    for door in doors.values():
        assert door["allow_anonymous"] == "false"
        assert {"password_file", "acl_file", "certfile", "keyfile", "max_connections"} <= door.keys()
    assert len({door["password_file"] for door in doors.values()}) == 3
    assert ["per_listener_settings", "true"] in settings("site.conf")


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_complete_and_includes_no_other(name: str) -> None:
    assert not {key for key, _ in settings(name)} & {"include_dir", "bridge", "connection", "plugin", "auth_plugin"}


@pytest.mark.parametrize("name", FILES)
def test_a_file_bounds_what_the_broker_keeps(name: str) -> None:
    keys = {key for key, _ in settings(name)}
    assert keys >= LIMITS
    assert all("max_connections" in listener for listener in listeners(name).values())


def test_systemd_grants_more_descriptors_than_all_doors_may_take() -> None:
    granted = re.search(r"^LimitNOFILE=(\d+)$", (DEPLOY / "service-limits.conf").read_text(), re.MULTILINE)
    assert granted is not None
    assert int(granted[1]) > sum(int(door["max_connections"]) for door in listeners("site.conf").values())
    assert sum(int(door["max_connections"]) for door in listeners("one-machine.conf").values()) < 1024
