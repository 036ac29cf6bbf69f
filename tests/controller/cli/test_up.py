"""The page that `gridchase up` starts: on the controller's bus, with the history of a user's page."""

import shlex
from pathlib import Path

import msgspec
import pytest

from controller.cli.main import main
from controller.cli.up import page_command
from controller.config import Config, NodeConfig
from controller.web.config import WebConfig, load_web_config
from publishers.mqtt.bus_config import BusConfig
from tests.live.conftest import free_port

CONFIG = Config(bus=BusConfig(url="mqtt://127.0.0.1:1884", username="ada"), node=NodeConfig(state_dir="/state"))


def page_config(config: Config) -> WebConfig:
    """Return the configuration that the command of a page gives it."""
    words = page_command(config)
    return load_web_config(None, [words[place + 1] for place, word in enumerate(words) if word == "--set"])


def test_the_page_is_on_the_bus_of_the_controller() -> None:
    assert page_config(CONFIG).bus == CONFIG.bus


@pytest.mark.parametrize("name", ["12345", "true", "1979-05-27", 'a "b" = \\', "zoë 🙂"])
def test_a_user_of_any_name_stays_a_text(name: str) -> None:
    config = msgspec.structs.replace(CONFIG, bus=BusConfig(username=name, root="2026"))
    assert page_config(config).bus == config.bus


def test_its_history_is_below_the_state_directory_unless_a_file_says_where() -> None:
    assert page_config(CONFIG).web.state_dir == "/state/web"
    with_file = page_command(CONFIG, Path("web.toml"))
    assert with_file[with_file.index("--config") + 1] == "web.toml"
    assert not any(word.startswith("web.state_dir") for word in with_file)


def test_no_password_is_in_its_command(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("correct horse")
    config = msgspec.structs.replace(CONFIG, bus=BusConfig(username="ada", password_file=str(file)))
    assert page_config(config).bus.password_file == str(file)
    assert "correct horse" not in " ".join(page_command(config))


def test_the_command_that_restores_is_that_of_the_same_gpus_and_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--simulate", "--set", f"node.state_dir={tmp_path}/a b", "--set", "bus.url=mqtt://elsewhere"]
    assert main(["up", "--no-policy", *words]) == 2
    command = capsys.readouterr().out.partition("`gridchase ")[2].partition("`")[0]
    assert main(shlex.split(command)) == 0
    assert f"{tmp_path}/a b: there is no journal; nothing to restore" in capsys.readouterr().out


def test_no_orders_are_heard_where_the_broker_asks_nobody_for_a_password(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"bus.url=mqtt://127.0.0.1:{free_port()}"
    switched_on = ("--set", "orders.over_bus=true", "--set", "bus.username=n1", "--set", url)
    assert main(["up", "--simulate", "--no-policy", "--no-web", *switched_on]) == 2
    assert "orders.over_bus = true: anybody on this machine could send orders" in capsys.readouterr().err


def test_a_wrong_configuration_of_the_page_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "web.toml"
    file.write_text("[web]\nport = -7\n")
    assert main(["up", "--simulate", "--no-policy", "--web-config", str(file)]) == 2
    assert "web.port" in capsys.readouterr().err


def test_a_bus_of_its_own_is_said_to_be_unused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "web.toml"
    verb = ["up", "--simulate", "--no-policy", "--set", "bus.url=mqtt://broker.example", "--web-config", str(file)]
    for bus, is_said in (("mqtt://elsewhere.example", True), ("mqtt://broker.example", False)):
        file.write_text(f'[bus]\nurl = "{bus}"\n')
        caplog.clear()
        assert main(verb) == 2
        assert (f"{file}: [bus] is not used: `up` runs the page on the controller's bus" in caplog.text) == is_said
