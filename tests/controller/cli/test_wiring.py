"""What the configuration becomes: the client on the bus, the sources of the signal, and secrets."""

import logging
from pathlib import Path

import pytest

from controller.cli.wiring import opened_node, read_password
from controller.config import Config, load_config
from controller.errors import ConfigError
from publishers.messages.codec import Outgoing
from publishers.mqtt.bus_config import BusConfig
from publishers.mqtt.client import MqttClient

WILL = Outgoing(topic="node/a/status", payload=b"offline", qos=1, retain=True)
TRACE = """\
timestamp,gco2_per_kwh
2021-01-01T00:00Z,100
2021-01-01T01:00Z,0
2021-01-01T02:00Z,100
2021-01-01T05:00Z,100
"""


def config(*overrides: str) -> Config:
    """Return a configuration of a simulated node."""
    return load_config(None, ["gpu.backend=simulation", "node.name=node-a", *overrides])


async def client_id_on_the_bus(settings: Config) -> str:
    """Return the client id of the controller."""
    async with opened_node(settings) as node:
        bus = node.connect(WILL, list)
    assert isinstance(bus, MqttClient)
    return bus._identifier


async def test_a_restarted_controller_has_the_same_client_id(tmp_path: Path) -> None:
    settings = config(f"node.state_dir={tmp_path}")
    first, second = [await client_id_on_the_bus(settings) for _ in range(2)]
    assert first == second


async def test_the_controller_drops_the_surplus_of_a_flood_below_its_own_root(tmp_path: Path) -> None:
    async with opened_node(config(f"node.state_dir={tmp_path}", "bus.root=site/a")) as node:
        bus = node.connect(WILL, list)
    assert isinstance(bus, MqttClient)
    assert bus.quotas is not None
    quotas = bus.quotas
    allowed = [quotas.allows(b"site/a/host/b/user/mallory/job/j%d/run/r/rank/0/status" % k, 0.0) for k in range(6_000)]
    assert sum(allowed) == 5_000
    assert quotas.flooding(0.0) == ("user mallory",)


async def test_no_other_node_has_the_client_id_and_nothing_tells_it(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    ids = [await client_id_on_the_bus(config(f"node.state_dir={tmp_path / name}")) for name in ("a", "b")]
    assert len({*ids, MqttClient(url="mqtt://broker")._identifier}) == 3


async def test_gaps_of_a_file_are_logged_once_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "day.csv").write_text(TRACE, encoding="utf-8")
    caplog.set_level(logging.INFO)
    chain = f'signal.provider=[{{name="csv", zone="DE", path="{tmp_path / "day.csv"}"}}]'
    async with opened_node(config("signal.kind=carbon", chain, f"node.state_dir={tmp_path}")):
        pass
    (record,) = caplog.records
    assert record.getMessage().startswith("day.csv has 1 gap, 1 missing value")


async def test_each_node_has_its_own_jitter_and_keeps_histories(tmp_path: Path) -> None:
    chain = 'signal.provider=[{name="neso", zone="GB"}, {name="constant", value=200}]'
    settings = config("signal.kind=carbon", chain, f"node.state_dir={tmp_path}")
    nodes = []
    for _ in range(2):
        async with opened_node(settings) as node:
            nodes.append(node)
    assert 0 < nodes[0].jitter_ratio < 1
    assert nodes[0].jitter_ratio != nodes[1].jitter_ratio
    assert nodes[0].store is not None
    assert [source.is_persistent for source in nodes[0].sources] == [True, False]
    assert [source.key for source in nodes[0].sources] == [source.key for source in nodes[1].sources]


async def test_histories_of_other_settings_have_other_keys() -> None:
    tables = [
        '{name="neso", zone="GB"}',
        '{name="neso", zone="GB-1"}',
        '{name="neso", zone="GB", max_age_s=60, lag_s=60}',
        '{name="energy-charts", zone="DE"}',
    ]
    async with opened_node(config("signal.kind=carbon", f"signal.provider=[{', '.join(tables)}]")) as node:
        keys = [source.key for source in node.sources]
    assert keys[0] == keys[2], "how long a value may be held changes no number"
    assert len(set(keys)) == 3


async def test_a_complete_signal_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with opened_node(config()):
        pass
    assert caplog.records == []


def test_a_password_file_that_cannot_be_read_is_a_wrong_configuration(tmp_path: Path) -> None:
    file = tmp_path / "password"
    with pytest.raises(ConfigError, match=f"bus.password_file = '{file}': No such file"):
        read_password(BusConfig(username="ada", password_file=str(file)))
    file.write_text("hunter2\n", encoding="utf-8")
    assert read_password(BusConfig(username="ada", password_file=str(file))) == "hunter2"


async def test_the_history_is_recorded_in_the_state_directory_unless_it_is_turned_off(tmp_path: Path) -> None:
    async with opened_node(config(f"node.state_dir={tmp_path}")) as node:
        assert node.history is not None
        node.history.record("gridchase/v1/node/node-a/gpu/GPU-0/limit", b"{}")
        await node.history.close()
    assert (tmp_path / "history.sqlite").is_file()
    async with opened_node(config(f"node.state_dir={tmp_path}", "history.enabled=false")) as node:
        assert node.history is None


async def test_what_a_controller_leaves_is_restored_by_its_own_journal(tmp_path: Path) -> None:
    async with opened_node(config(f"node.state_dir={tmp_path}/a b")) as node:
        options = f"--set gpu.backend=simulation --set 'node.state_dir={tmp_path}/a b'"
        assert node.restore_command == f"gridchase restore {options}"
