"""Trainings of each framework pause between two steps, go on, and stop early, through the framework's own callback."""

import time
from pathlib import Path

import pytest

from tests.frameworks.bus import Bus
from tests.frameworks.pausing.commander import Commander
from tests.frameworks.pausing.started import started
from tests.frameworks.process import TRAININGS
from tests.live.conftest import Mosquitto

STOOD_S = 1.5
HELD = {"GRIDCHASE_PAUSABLE": "1", "GRIDCHASE_EARLY_STOP": "1"}
ENDLESS = ("--epochs=100000", "--batch-s=0.01")


@pytest.mark.parametrize(
    ("script", "arguments", "variables"),
    [
        pytest.param("with_transformers", ["--callback"], {}, marks=pytest.mark.further),
        ("with_transformers", ["--callback", "--accumulation=4", "--validation"], {}),
        pytest.param("with_lightning", ["--callback"], {}, marks=pytest.mark.further),
        ("with_lightning", ["--accumulation=4", "--validation"], {}),
        pytest.param("with_keras", ["--callback", "--validation"], {"KERAS_BACKEND": "jax"}, marks=pytest.mark.further),
        ("with_keras", ["--callback", "--steps-per-execution=4"], {"KERAS_BACKEND": "jax"}),
        pytest.param("with_keras", ["--callback"], {"KERAS_BACKEND": "torch"}, marks=pytest.mark.further),
    ],
)
def test_a_trainer_stands_still_in_a_pause_and_stops_when_it_is_asked_to(
    script: str, arguments: list[str], variables: dict[str, str], broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    commander = Commander(bus)
    path = TRAININGS / f"{script}.py"
    with started(path, tmp_path, broker, *arguments, *ENDLESS, variables=HELD | variables) as training:
        commander.wait_pausable()
        commander.pause()
        time.sleep(STOOD_S)
        commander.resume()
        commander.say("stop")
        (account,), stderr = training.end()
    assert "the training goes on after a pause: a test" in stderr
    (record,) = bus.records(1)
    assert record.states == ["running", "finished"]
    assert record.n_iterations == account["steps"]
    assert record.statuses[-1].paused_s == pytest.approx(STOOD_S, abs=1.0)
    begins = [message.begin_ns for message in record.messages]
    ends = [int(message.ends_ns()[-1]) for message in record.messages]
    longest_s = max((begin - end) / 1e9 for end, begin in zip(ends, begins[1:], strict=False))
    assert longest_s > STOOD_S - 0.2, "no step was made meanwhile"


def test_ranks_of_a_trainer_stand_still_after_the_same_step_and_stop_together(
    broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    commander = Commander(bus, 2)
    script = TRAININGS / "with_transformers.py"
    with started(script, tmp_path, broker, "--callback", *ENDLESS, ranks=2, variables=HELD) as training:
        commander.wait_pausable()
        commander.pause()
        time.sleep(STOOD_S)
        commander.resume()
        commander.say("stop")
        accounts, _ = training.end()
    (n_steps,) = {account["steps"] for account in accounts}
    for record in bus.records(2):
        assert record.n_iterations == n_steps
        assert record.statuses[-1].paused_s == pytest.approx(STOOD_S, abs=1.0)
