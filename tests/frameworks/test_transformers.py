"""Hugging Face's `Trainer` with its callback: each optimizer step counts once, on each rank, in one run."""

from pathlib import Path

import pytest

from tests.frameworks.bus import Bus
from tests.frameworks.process import TRAININGS, Outcome, command, train_published
from tests.live.conftest import Mosquitto

SCRIPT = TRAININGS / "with_transformers.py"


def run(folder: Path, broker: Mosquitto, *arguments: str, ranks: int = 1) -> Outcome:
    """Train with the callback."""
    line = command(SCRIPT, ["--callback", *arguments], "torchrun" if ranks > 1 else "python", ranks)
    return train_published(line, folder, broker.url)


@pytest.mark.parametrize(("accumulation", "n_steps"), [pytest.param(1, 80, marks=pytest.mark.further), (8, 10)])
def test_every_step_of_a_trainer_is_counted(
    accumulation: int, n_steps: int, broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    outcome = run(tmp_path, broker, "--validation", f"--accumulation={accumulation}")
    assert outcome.exit_code == 0, outcome.stderr
    assert [truth["steps"] for truth in outcome.truths] == [n_steps]
    (record,) = bus.records(1)
    assert (record.states, record.n_iterations) == (["running", "finished"], n_steps)
    assert record.counted_by == {"callback"}
    assert record.epochs == {0: n_steps // 2, 1: n_steps // 2}
    assert record.statuses[-1].total_iterations == n_steps
    assert record.statuses[-1].batch_size == 8 * accumulation


@pytest.mark.parametrize(("ranks", "n_steps"), [(1, 10), (2, 6)])
def test_the_tokens_that_a_trainer_counts_are_the_work_of_its_steps(
    ranks: int, n_steps: int, broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    """A sample has four of them; the last step of an epoch of two ranks has half as many batches."""
    outcome = run(tmp_path, broker, "--tokens", "--validation", "--accumulation=8", ranks=ranks)
    assert outcome.exit_code == 0, outcome.stderr
    for record in bus.records(ranks):
        work = [amount for message in record.messages for amount in message.amounts_of_work() or ()]
        assert work == ([4 * 8 * 8] * n_steps if ranks == 1 else 2 * [4 * 8 * 8, 4 * 8 * 8, 4 * 8 * 4])
        assert record.statuses[-1].work_unit == "tokens"


@pytest.mark.parametrize(("accumulation", "n_steps"), [pytest.param(1, 40, marks=pytest.mark.further), (8, 6)])
def test_every_step_is_counted_on_each_of_two_ranks_in_one_run(
    accumulation: int, n_steps: int, broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    outcome = run(tmp_path, broker, "--bare-first", "--validation", f"--accumulation={accumulation}", ranks=2)
    assert outcome.exit_code == 0, outcome.stderr
    assert [truth["steps"] for truth in outcome.truths] == [n_steps, n_steps]
    records = bus.records(2)
    assert [(record.rank, record.states, record.n_iterations) for record in records] == [
        (0, ["running", "finished"], n_steps),
        (1, ["running", "finished"], n_steps),
    ]
    assert len({record.run for record in records}) == 1
    assert {record.statuses[-1].world_size for record in records} == {2}
    assert [truth["digest"] for truth in outcome.bare] == [truth["digest"] for truth in outcome.truths]


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


@pytest.mark.further
def test_two_trainings_in_one_process_are_two_runs(broker: Mosquitto, bus: Bus, tmp_path: Path) -> None:
    assert run(tmp_path, broker, "--fits=2").exit_code == 0
    assert [(record.states, record.n_iterations) for record in bus.records(2)] == [(["running", "finished"], 80)] * 2


@pytest.mark.parametrize("accumulation", [pytest.param(1, marks=pytest.mark.further), 4])
def test_a_loader_that_is_published_too_is_in_the_same_run(
    accumulation: int, broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    arguments = ["--wrap", "--validation", "--fits=3", f"--accumulation={accumulation}"]
    assert run(tmp_path, broker, *arguments).exit_code == 0
    for record in bus.records(3):
        assert (record.states, record.counted_by) == (["running", "finished"], {"callback"})
        assert record.epochs == {0: 40 // accumulation, 1: 40 // accumulation}


def test_a_training_that_fails_is_lost_with_its_own_error(broker: Mosquitto, bus: Bus, tmp_path: Path) -> None:
    outcome = run(tmp_path, broker, "--fail")
    assert outcome.exit_code == 1
    assert outcome.stderr.rstrip().endswith("SystemError: the training is broken")
    (record,) = bus.records(1)
    assert (record.states, record.n_iterations) == (["running", "lost"], 40)
