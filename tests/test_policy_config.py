"""The configuration of the policy service: every fault at once."""

from pathlib import Path

import pytest

from controller.cli.policy.config import load_policy_config
from controller.config import load_config
from controller.errors import ConfigError


def faults_of(*overrides: str, path: Path | None = None) -> list[str]:
    """Return what is wrong with a configuration."""
    with pytest.raises(ConfigError) as caught:
        load_policy_config(path, overrides)
    return caught.value.faults


def test_every_fault_is_told_at_once_with_its_path_its_value_and_its_bound(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('[learning]\neta = 7\nbeat = 2.0\n[stores]\nurl = ""\n[http]\nport = "x"\n')
    told = faults_of("learning.forgetting_ratio=2", "nonsense", path=file)
    assert len(told) == 6
    for part in (
        "learning.eta = 7: must be a number at least 0 and at most 1",
        "learning.beat: there is no such key; there are policy, eta",
        "stores: there is no such section; there are bus, store, learning, http",
        "http.port = 'x': must be a whole number",
        "learning.forgetting_ratio = 2: must be a number at least 0 and at most 1",
        "--set nonsense: must be section.key=value",
    ):
        assert any(part in fault for fault in told), part


def test_faults_between_keys_are_told_with_those_of_single_keys() -> None:
    told = faults_of("bus.url=http://x", "learning.eta=2", "bus.username=5", "bus.password_file=/etc/hostname")
    assert [fault.partition(" ")[0] for fault in told] == ["bus.username", "learning.eta", "bus.url:"]


def test_a_file_that_cannot_be_read_is_told_alone(tmp_path: Path) -> None:
    assert len(faults_of("bus.password_file=/etc/hostname", path=tmp_path / "absent.toml")) == 1


def test_service_and_controller_say_the_same_of_the_same_fault() -> None:
    for override in ("bus.root=a/#", "bus.url=http://x"):
        with pytest.raises(ConfigError) as caught:
            load_config(None, [override])
        assert faults_of(override) == caught.value.faults
        assert "\\" not in caught.value.faults[0]


@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        (["bus.url=http://h"], "bus.url: 'http://h' is no broker's URL"),
        (["bus.password_file=/dev/null"], 'bus.username = "": must be set'),
        (["bus.ca_file=/etc/hostname"], "must start with mqtts://"),
        (["store.url=mysql://h/x"], "store.url = 'mysql://h/x': must be empty, sqlite:///PATH or postgresql://"),
        (["store.url=postgresql://h"], "store.url = 'postgresql://h': must be empty"),
        (["store.url=postgresql://h:99999/x"], "store.url = 'postgresql://h:99999/x': Port out of range"),
        (["store.url=sqlite://x"], "must be sqlite:///PATH, with four slashes"),
        (["store.url=sqlite+pysqlite:///x"], "must be sqlite:///PATH, with four slashes"),
        (["store.password_file=/dev/null"], "SQLite knows no password"),
        (["http.token_file=/no/tokens"], "http.token_file = '/no/tokens': there is no such file"),
    ],
)
def test_keys_that_do_not_fit_each_other_are_told(overrides: list[str], fault: str) -> None:
    assert any(fault in told for told in faults_of(*overrides))


def test_a_password_in_the_url_of_the_database_is_refused_and_not_shown() -> None:
    (told,) = faults_of("store.url=postgresql://ada:hunter2@db/policy")
    assert "store.password_file" in told
    assert "hunter2" not in told


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///policy.sqlite",
        "sqlite:////var/lib/x.sqlite",
        "postgresql://ada@db/policy",
        "postgresql+asyncpg://db:5433/p",
    ],
)
def test_databases_that_are_understood(url: str) -> None:
    assert load_policy_config(None, [f"store.url={url}"]).store.url == url


def test_without_a_broker_the_service_still_is_configured() -> None:
    assert load_policy_config(None, ["bus.url="]).bus.url == ""
