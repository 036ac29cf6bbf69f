"""The configuration of the policy service: its example is whole and right, and every fault is told at once."""

import re
import tomllib
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

import msgspec
import pytest

from controller.cli.policy.config import check_policy_config, load_policy_config
from controller.config import load_config
from controller.errors import ConfigError
from policies.service.config import PolicyConfig

EXAMPLE = Path(__file__).parents[1] / "deploy" / "policy.toml"
DEFAULTS = msgspec.to_builtins(PolicyConfig())
KEYS = [(section, key) for section, keys in DEFAULTS.items() for key in keys]
_LINE = re.compile(r"(?P<key>[a-z_]+) = (?P<value>\"[^\"]*\"|\S+) *# (?P<comment>.+)")


def comments() -> dict[tuple[str, str], str]:
    """Return the comment of each key, by section and key."""
    found: dict[tuple[str, str], str] = {}
    section = ""
    for line in EXAMPLE.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif (match := _LINE.fullmatch(line)) is not None:
            found[section, match["key"]] = match["comment"]
    return found


def faults_of(*overrides: str, path: Path | None = None) -> list[str]:
    """Return what is wrong with a configuration."""
    with pytest.raises(ConfigError) as caught:
        load_policy_config(path, overrides)
    return caught.value.faults


def test_the_example_shows_every_key_with_its_default_in_the_order_of_the_records() -> None:
    tables = tomllib.loads(EXAMPLE.read_text(encoding="utf-8"))
    assert tables == DEFAULTS
    assert [(section, key) for section, keys in tables.items() for key in keys] == KEYS


def test_the_example_is_a_valid_configuration_and_equal_to_none_at_all() -> None:
    assert load_policy_config(EXAMPLE) == load_policy_config(None) == PolicyConfig()
    assert check_policy_config(PolicyConfig()) == []


def test_every_key_of_the_example_is_explained_on_its_line() -> None:
    assert list(comments()) == KEYS


@pytest.mark.parametrize(("section", "key"), KEYS, ids=[f"{section}.{key}" for section, key in KEYS])
def test_the_explanation_of_a_number_tells_its_bounds_and_its_unit(section: str, key: str) -> None:
    hint = get_type_hints(get_type_hints(PolicyConfig)[section], include_extras=True)[key]
    comment = comments()[section, key]
    kind, *metas = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    bounds = [
        bound
        for meta in metas
        for bound in (meta.ge, meta.gt, meta.le, meta.lt)
        if bound is not None and kind in {int, float}
    ]
    assert [
        f"{bound:g}" for bound in bounds if not re.search(rf"(?<![\w.]){re.escape(f'{bound:g}')}(?!\w)", comment)
    ] == []
    assert kind is not float or re.match(r"\[.+\] ", comment), "a number has its unit in brackets"


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
