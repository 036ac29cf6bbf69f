"""The page that `gridchase up` starts: on the controller's bus, with the history of a user's page."""

import shlex
from pathlib import Path

import msgspec
import pytest

from controller.cli.main import main
from controller.cli.up import page_command
from controller.config import Config, NodeConfig
from publishers.mqtt.bus_config import BusConfig

CONFIG = Config(bus=BusConfig(url="mqtt://127.0.0.1:1884", username="ada"), node=NodeConfig(state_dir="/state"))


def test_the_page_is_on_the_bus_of_the_controller() -> None:
    settings = page_command(CONFIG)
    assert "bus.url=mqtt://127.0.0.1:1884" in settings
    assert "bus.username=ada" in settings


def test_its_history_is_below_the_state_directory_unless_a_file_says_where() -> None:
    assert "web.state_dir=/state/web" in page_command(CONFIG)
    with_file = page_command(CONFIG, Path("web.toml"))
    assert with_file[with_file.index("--config") + 1] == "web.toml"
    assert not any(word.startswith("web.state_dir") for word in with_file)


def test_no_password_is_in_its_command() -> None:
    config = msgspec.structs.replace(CONFIG, bus=BusConfig(username="ada", password_file="/etc/password"))
    assert "bus.password_file=/etc/password" in page_command(config)


def test_the_command_that_restores_is_that_of_the_same_gpus_and_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--simulate", "--set", f"node.state_dir={tmp_path}/a b", "--set", "bus.url=mqtt://elsewhere"]
    assert main(["up", "--no-policy", *words]) == 2
    command = capsys.readouterr().out.partition("`gridchase ")[2].partition("`")[0]
    assert main(shlex.split(command)) == 0
    assert f"{tmp_path}/a b: there is no journal; nothing to restore" in capsys.readouterr().out


def test_a_wrong_configuration_of_the_page_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "web.toml"
    file.write_text("[web]\nport = -7\n")
    assert main(["up", "--simulate", "--no-policy", "--web-config", str(file)]) == 2
    assert "web.port" in capsys.readouterr().err
