"""Lightning, which finds the callback by itself: each optimizer step counts once, on each device, in one run."""

from pathlib import Path

import pytest

from tests.frameworks.bus import Bus
from tests.frameworks.process import TRAININGS, Outcome, command, train, train_published
from tests.live.conftest import Mosquitto

SCRIPT = TRAININGS / "with_lightning.py"


def run(folder: Path, broker: Mosquitto, *arguments: str) -> Outcome:
    """Train without a line of ours in the script."""
    return train_published(command(SCRIPT, arguments), folder, broker.url)


@pytest.mark.parametrize(
    ("package", "accumulation", "n_steps"),
    [
        ("lightning.pytorch", 4, 20),
        ("pytorch_lightning", 1, 80),
        pytest.param("lightning.pytorch", 1, 80, marks=pytest.mark.further),
        pytest.param("pytorch_lightning", 4, 20, marks=pytest.mark.further),
    ],
)
def test_every_step_of_a_trainer_is_counted(
    package: str, accumulation: int, n_steps: int, broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    outcome = run(tmp_path, broker, f"--package={package}", "--validation", f"--accumulation={accumulation}")
    assert outcome.exit_code == 0, outcome.stderr
    assert [truth["steps"] for truth in outcome.truths] == [n_steps]
    (record,) = bus.records(1)
    assert (record.states, record.n_iterations) == (["running", "finished"], n_steps)
    assert record.counted_by == {"callback"}
    assert record.epochs == {0: n_steps // 2, 1: n_steps // 2}
    assert record.statuses[-1].total_iterations == n_steps
    assert record.statuses[-1].batch_size == 8 * accumulation


@pytest.mark.further
def test_its_own_launcher_makes_one_run_of_two_devices(broker: Mosquitto, bus: Bus, tmp_path: Path) -> None:
    outcome = run(tmp_path / "published", broker, "--devices=2", "--validation")
    assert outcome.exit_code == 0, outcome.stderr
    assert [truth["steps"] for truth in outcome.truths] == [40, 40]
    records = bus.records(2)
    assert [(record.rank, record.states, record.n_iterations) for record in records] == [
        (0, ["running", "finished"], 40),
        (1, ["running", "finished"], 40),
    ]
    assert len({record.run for record in records}) == 1
    bare = train(command(SCRIPT, ["--devices=2", "--validation"]), tmp_path / "bare")
    assert [truth["digest"] for truth in bare.truths] == [truth["digest"] for truth in outcome.truths]


@pytest.mark.further
def test_the_callback_that_is_passed_and_the_one_that_is_found_count_once(
    broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    assert run(tmp_path, broker, "--callback").exit_code == 0
    (record,) = bus.records(1)
    assert (record.states, record.n_iterations) == (["running", "finished"], 80)


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.further
def test_a_loader_that_is_published_too_is_in_the_same_run(
    accumulation: int, broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    outcome = run(tmp_path, broker, "--wrap", "--validation", f"--accumulation={accumulation}")
    assert outcome.exit_code == 0, outcome.stderr
    (record,) = bus.records(1)
    assert (record.states, record.counted_by) == (["running", "finished"], {"callback"})
    assert record.epochs == {0: 40 // accumulation, 1: 40 // accumulation}


def test_where_no_job_is_named_there_is_no_callback(tmp_path: Path) -> None:
    outcome = train(command(SCRIPT, []), tmp_path)
    assert outcome.exit_code == 0, outcome.stderr
    said = (outcome.stdout + outcome.stderr).splitlines()
    assert not [line for line in said if line.startswith("gridchase")]  # Lightning's own lines name files of this clone


@pytest.mark.further
def test_a_resumed_training_publishes_what_is_left_of_it(broker: Mosquitto, bus: Bus, tmp_path: Path) -> None:
    save = f"--save={tmp_path / 'checkpoints'}"
    assert run(tmp_path / "first", broker, save, "--stop-after=50").exit_code == 0
    outcome = run(tmp_path / "second", broker, save, "--resume")
    assert outcome.exit_code == 0, outcome.stderr
    first, second = bus.records(2)
    assert (first.n_iterations, first.epochs) == (50, {0: 40, 1: 10})
    assert (second.n_iterations, second.epochs) == (30, {1: 30})
    assert second.statuses[-1].total_iterations == 30


@pytest.mark.parametrize("passed", [["--callback"], pytest.param([], marks=pytest.mark.further)])
def test_two_trainings_in_one_process_are_two_runs(
    passed: list[str], broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    assert run(tmp_path, broker, "--fits=2", *passed).exit_code == 0
    assert [(record.states, record.n_iterations) for record in bus.records(2)] == [(["running", "finished"], 80)] * 2


@pytest.mark.further
def test_a_training_that_fails_is_lost_with_its_own_error(broker: Mosquitto, bus: Bus, tmp_path: Path) -> None:
    outcome = run(tmp_path, broker, "--fail")
    assert outcome.exit_code == 1
    assert outcome.stderr.rstrip().endswith("SystemError: the training is broken")
    (record,) = bus.records(1)
    assert (record.states, record.n_iterations) == (["running", "lost"], 40)
