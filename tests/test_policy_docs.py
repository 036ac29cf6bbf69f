"""What is written of the policy service is so: the unit file, the page of batch sizes, the call in training code."""

import re
import shlex
from inspect import signature
from pathlib import Path

import pytest

from gridchase import Publisher
from gridchase.cli.verb import command_line
from policies.service.bus.trial_responder import TIMEOUT_S
from policies.service.config import LearningConfig
from publishers.messages.reports import TrialState

ROOT = Path(__file__).parents[1]
UNIT = ROOT / "deploy" / "gridchase-policy.service"
PAGE = (ROOT / "docs" / "batch-size.md").read_text(encoding="utf-8")
DEPLOY = (ROOT / "deploy" / "README.md").read_text(encoding="utf-8")


def options() -> dict[str, list[str]]:
    """Return the options of the unit file; some stand there twice."""
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text(encoding="utf-8").splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, option = line.partition("=")
            found.setdefault(key, []).append(option)
    return found


def test_the_unit_file_starts_the_service_as_a_user_without_privilege() -> None:
    unit = options()
    start = command_line().parse_args(shlex.split(unit["ExecStart"][0])[1:])
    assert start.config == Path("/etc/gridchase/policy.toml")
    assert start.state_dir == Path("/var/lib") / unit["StateDirectory"][0]
    assert unit["User"] == unit["Group"] == ["gridchase-policy"]
    assert unit["CapabilityBoundingSet"] == unit["AmbientCapabilities"] == [""]
    assert unit["NoNewPrivileges"] == unit["PrivateUsers"] == unit["PrivateDevices"] == ["yes"]
    assert unit["RestartPreventExitStatus"] == ["2"]


def test_what_the_unit_file_says_it_does_not_set_is_not_set() -> None:
    named = re.findall(r"^# Not set: (.*?)\. ", UNIT.read_text(encoding="utf-8"), re.MULTILINE)
    relaxed = {option.strip().split("=")[0] for names in named for option in names.split(",")}
    assert relaxed
    assert relaxed.isdisjoint(options())


def test_the_installation_makes_the_user_and_the_folder_that_the_unit_names() -> None:
    unit = options()
    assert f"--user-group {unit['User'][0]}" in DEPLOY
    assert f"--state-dir /var/lib/{unit['StateDirectory'][0]}" in DEPLOY


def test_the_states_that_are_explained_are_those_there_are() -> None:
    table = PAGE.split("| in a run's life |")[1].split("\n\n")[0]
    assert set(re.findall(r"\| `(\w+)`", table)) == set(TrialState.__args__)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "sentence",
    [
        f"`learning.beta` ({LearningConfig().beta:g}) times",
        f"gets its default within {TIMEOUT_S:g} s",
        "It waits for the service, 10 s at most",
    ],
)
def test_numbers_on_the_page_are_those_of_the_code(sentence: str) -> None:
    assert signature(Publisher.batch_size).parameters["timeout_s"].default == 10
    assert " ".join(sentence.split()) in " ".join(PAGE.split())


def test_the_training_code_on_the_page_runs_and_without_a_broker_with_the_default() -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    seen: list[int] = []

    def make_loader(batch_size: int) -> range:
        seen.append(batch_size)
        return range(3)

    offline = code.replace('job="resnet50"', 'job="resnet50", broker="mqtt://127.0.0.1:9"')
    assert offline != code
    names: dict[str, object] = {"make_loader": make_loader, "validate": lambda: 0.8}
    exec(compile(offline, "batch-size.md", "exec"), names)  # noqa: S102 — our own page
    assert seen == [256]
    assert names["epoch"] == 0, "the target was reached in the first"
