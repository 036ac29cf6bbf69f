"""Keras with its callback: each step counts once, also where several are executed at once."""

from itertools import pairwise
from pathlib import Path

import pytest

from tests.frameworks.bus import Bus
from tests.frameworks.process import TRAININGS, Outcome, command, train_published
from tests.live.conftest import Mosquitto

SCRIPT = TRAININGS / "with_keras.py"


def run(folder: Path, broker: Mosquitto, *arguments: str, backend: str = "jax") -> Outcome:
    """Train with the callback."""
    line = command(SCRIPT, ["--callback", *arguments])
    return train_published(line, folder, broker.url, KERAS_BACKEND=backend)


@pytest.mark.parametrize(
    ("backend", "n_at_once"),
    [
        pytest.param("jax", 1, marks=pytest.mark.further),
        ("jax", 7),
        pytest.param("jax", 8, marks=pytest.mark.further),
        ("torch", 1),
    ],
)
def test_every_step_of_a_model_is_counted(
    backend: str, n_at_once: int, broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    arguments = ["--bare-first", "--validation", f"--steps-per-execution={n_at_once}"]
    outcome = run(tmp_path, broker, *arguments, backend=backend)
    assert outcome.exit_code == 0, outcome.stderr
    assert [truth["steps"] for truth in outcome.truths] == [80]
    (record,) = bus.records(1)
    assert (record.states, record.n_iterations) == (["running", "finished"], 80)
    assert record.epochs == {0: 40, 1: 40}
    assert record.counted_by == {"callback"}
    assert record.statuses[-1].total_iterations == 80
    assert [truth["digest"] for truth in outcome.bare] == [truth["digest"] for truth in outcome.truths]


def test_steps_that_are_executed_at_once_share_their_time(broker: Mosquitto, bus: Bus, tmp_path: Path) -> None:
    assert run(tmp_path, broker, "--steps-per-execution=8").exit_code == 0
    (record,) = bus.records(1)
    for message in record.messages:
        ends_ns = [message.begin_ns, *message.ends_ns()]
        assert all(before < after for before, after in pairwise(ends_ns))


def test_a_resumed_training_begins_with_its_epoch(broker: Mosquitto, bus: Bus, tmp_path: Path) -> None:
    assert run(tmp_path, broker, "--resume").exit_code == 0
    (record,) = bus.records(1)
    assert (record.n_iterations, record.epochs) == (40, {1: 40})
    assert record.statuses[-1].total_iterations == 40


def test_two_trainings_in_one_process_are_two_runs(broker: Mosquitto, bus: Bus, tmp_path: Path) -> None:
    assert run(tmp_path, broker, "--fits=2").exit_code == 0
    assert [(record.states, record.n_iterations) for record in bus.records(2)] == [(["running", "finished"], 80)] * 2


@pytest.mark.parametrize("backend", ["jax", pytest.param("torch", marks=pytest.mark.further)])
def test_a_training_that_fails_is_lost_with_its_own_error(
    backend: str, broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    outcome = run(tmp_path, broker, "--fail", backend=backend)
    assert outcome.exit_code == 1
    assert outcome.stderr.rstrip().endswith("SystemError: the training is broken")
    (record,) = bus.records(1)
    assert (record.states, record.n_iterations) == (["running", "lost"], 40)
