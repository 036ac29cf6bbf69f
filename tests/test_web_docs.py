"""What is written of the history of a site is so: the unit file, the installation, the broker's rules."""

import re
import shlex
from pathlib import Path

from controller.web.app import Site
from controller.web.config import WebConfig, WebSettings
from controller.web.store import SqliteStore
from gridchase.cli.verb import command_line
from publishers.messages.topics import Topics
from tests.fakes import FakeBus, LoopClock

ROOT = Path(__file__).parents[1]
UNIT = (ROOT / "deploy" / "gridchase-web.service").read_text(encoding="utf-8")
DEPLOY = (ROOT / "deploy" / "README.md").read_text(encoding="utf-8")
RULES = (ROOT / "deploy" / "mosquitto" / "services.acl").read_text(encoding="utf-8")


def options() -> dict[str, str]:
    """Return the options of the unit file, of those that stand there twice the last."""
    return dict(line.split("=", 1) for line in UNIT.splitlines() if "=" in line and not line.startswith("#"))


def test_the_unit_file_starts_the_process_as_a_user_without_privilege() -> None:
    unit = options()
    start = command_line().parse_args(shlex.split(unit["ExecStart"])[1:])
    assert start.config == Path("/etc/gridchase/web.toml")
    assert start.set == [f"web.state_dir=/var/lib/{unit['StateDirectory']}"]
    assert unit["User"] == unit["Group"] == "gridchase-web"
    assert unit["CapabilityBoundingSet"] == unit["AmbientCapabilities"] == ""
    assert unit["NoNewPrivileges"] == unit["PrivateUsers"] == unit["PrivateDevices"] == "yes"
    assert unit["RestartPreventExitStatus"] == "2"
    assert f"--user-group {unit['User']}" in DEPLOY


async def test_the_rules_of_the_broker_let_it_read_what_it_hears_and_write_orders_alone() -> None:
    bus, config = FakeBus(), WebConfig(web=WebSettings(orders=True))
    store = SqliteStore(Path("unused"), topics=Topics(), config=config.retention)
    Site(config, bus=bus, store=store, topics=Topics(), clock=LoopClock())
    rules = RULES.split("user web\n")[1].splitlines()
    orders = Topics().run_filter("set"), Topics().gpu(None, None, "set")
    reads = [f"topic read {topic_filter}" for topic_filter in bus.filters]
    assert sorted(rules) == sorted([*reads, *(f"topic write {each}" for each in orders)])


def test_what_the_unit_file_says_it_does_not_set_is_not_set() -> None:
    named = re.findall(r"^# Not set: (.*?)\. ", UNIT, re.MULTILINE)
    relaxed = {option.strip().split("=")[0] for names in named for option in names.split(",")}
    assert relaxed
    assert relaxed.isdisjoint(options())
