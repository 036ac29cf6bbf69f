"""Output of the verbs: what comes from outside cannot act on the terminal."""

import io
import json

import pytest
from rich.table import Table

from controller.cli.main import _print_errors
from controller.cli.output import Terminal, config_line, print_json, shown
from controller.config import Config, load_config
from controller.errors import ConfigError
from policies.service.config import PolicyConfig

EVIL = "a\x1b[2J\nnothing is wrong\x9b\u202e[red]b"


def _printed(*what: object, is_terminal: bool = False) -> str:
    file = io.StringIO()
    console = Terminal(file=file, force_terminal=is_terminal, width=200, _environ={})
    for each in what:
        console.print(each)
    return file.getvalue()


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_name_in_a_table_is_shown_and_not_obeyed(is_terminal: bool) -> None:
    table = Table("job", "state")
    table.add_row(shown(EVIL), "[bold]running[/bold]")
    printed = _printed(table, is_terminal=is_terminal)
    assert r"a\x1b[2J\nnothing is wrong\x9b\u202e[red]b" in printed
    assert "\x1b[2J" not in printed
    assert ("\x1b[1m" in printed) is is_terminal, "its own colours stay"


def test_what_was_not_thought_of_cannot_act_on_the_terminal_either() -> None:
    printed = _printed("a\x1b[2J\x9b\u202e", "two\nlines")
    assert printed == "a\\x1b[2J\\x9b\\u202e\ntwo\nlines\n"


def test_json_is_the_same_value_without_what_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    report = {"name": EVIL, "unit": "°C", "tag": "\U000e0041"}
    print_json(report)
    printed = capsys.readouterr().out
    assert json.loads(printed) == report
    assert all(line.isprintable() for line in printed.splitlines())
    assert "°C" in printed


def test_the_configuration_is_told_by_what_differs_from_the_defaults() -> None:
    assert config_line(Config()) == config_line(PolicyConfig()) == "all defaults"
    config = load_config(None, ["plan.max_slowdown=1.05", "gpu.backend=simulation"])
    assert config_line(config).endswith('gpu.backend = "simulation", plan.max_slowdown = 1.05')
    assert "http" not in config_line(config)


def test_a_fault_is_printed_as_lines_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert _print_errors([ConfigError(["bus.url = '\x1b[2J\x9b\u202e'"])]) == 2
    assert capsys.readouterr().err.splitlines() == [r"gridchase: bus.url = '\x1b[2J\x9b\u202e'"]
