"""The configuration of the policy service: read as the controller's is, with faults of its own."""

import pytest

from controller.cli.policy.config import load_policy_config
from controller.config import load_config
from controller.errors import ConfigError


def faults_of(*overrides: str) -> list[str]:
    """Return the faults of a configuration."""
    with pytest.raises(ConfigError) as caught:
        load_policy_config(None, overrides)
    return caught.value.faults


@pytest.mark.parametrize(
    "override",
    ["bus.root=a/#", "bus.url=http://x", "bus.password_file=/dev/null", "bus.ca_file=/etc/hostname", "nonsense"],
)
def test_service_and_controller_report_the_same_fault(override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [override])
    assert faults_of(override) == caught.value.faults
    assert "\\" not in caught.value.faults[0]


@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        (["learning.eta=7"], "learning.eta = 7: must be a number at least 0 and at most 1"),
        (["learning.forgetting_ratio=2"], "learning.forgetting_ratio = 2: must be a number at least 0 and at most 1"),
        (["learning.beat=2.0"], "learning.beat: there is no such key; did you mean beta?"),
        (["stores.url=x"], "stores: there is no such section; did you mean store?"),
        (["http.port=x"], "http.port = 'x': must be a whole number"),
        (["store.url=mysql://h/x"], "store.url = 'mysql://h/x': must be empty, sqlite:///PATH or postgresql://"),
        (["store.url=postgresql://h"], "store.url = 'postgresql://h': must be empty"),
        (["store.url=postgresql://h:99999/x"], "store.url = 'postgresql://h:99999/x': Port out of range"),
        (["store.url=sqlite://x"], "must be sqlite:///PATH, with four slashes"),
        (["store.url=sqlite+pysqlite:///x"], "must be sqlite:///PATH, with four slashes"),
        (["store.password_file=/etc/hostname"], "SQLite knows no password"),
        (["http.token_file=/no/tokens"], "http.token_file = '/no/tokens': there is no such file"),
        ([f"http.token_file=/{'x' * 300}"], "File name too long"),
    ],
)
def test_a_fault_says_where_it_is_and_what_would_be_right(overrides: list[str], fault: str) -> None:
    (found,) = faults_of(*overrides)
    assert fault in found


def test_a_password_in_the_url_of_the_database_is_rejected_and_not_shown() -> None:
    (fault,) = faults_of("store.url=postgresql://ada:hunter2@db/policy")
    assert "store.password_file" in fault
    assert "hunter2" not in fault


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///policy.sqlite",
        "sqlite:////var/lib/x.sqlite",
        "postgresql://ada@db/policy",
        "postgresql+asyncpg://db:5433/p",
    ],
)
def test_sqlite_and_postgresql_urls_are_accepted(url: str) -> None:
    assert load_policy_config(None, [f"store.url={url}"]).store.url == url


def test_the_service_needs_no_broker() -> None:
    assert load_policy_config(None, ["bus.url="]).bus.url == ""
