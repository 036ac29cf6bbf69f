"""Accelerate: its optimizer's steps count, whatever has become of the loader; the tracker says when the run ends."""

from pathlib import Path

import pytest

from tests.frameworks.bus import Bus
from tests.frameworks.process import TRAININGS, Outcome, command, train_published
from tests.live.conftest import Mosquitto

SCRIPT = TRAININGS / "with_accelerate.py"


def run(folder: Path, broker: Mosquitto, *arguments: str, ranks: int = 1) -> Outcome:
    """Train with the tracker."""
    line = command(SCRIPT, ["--callback", *arguments], "torchrun" if ranks > 1 else "python", ranks)
    return train_published(line, folder, broker.url)


@pytest.mark.parametrize(("accumulation", "n_steps"), [pytest.param(1, 80, marks=pytest.mark.further), (4, 20)])
def test_every_step_is_counted(accumulation: int, n_steps: int, broker: Mosquitto, bus: Bus, tmp_path: Path) -> None:
    outcome = run(tmp_path, broker, f"--accumulation={accumulation}", "--validation")
    assert outcome.exit_code == 0, outcome.stderr
    assert [truth["steps"] for truth in outcome.truths] == [n_steps]
    (record,) = bus.records(1)
    assert (record.states, record.n_iterations) == (["running", "finished"], n_steps)
    assert record.counted_by == {"optimizer"}


@pytest.mark.further
@pytest.mark.parametrize("arguments", [["--validation"], ["--wrap"], ["--wrap", "--iterable"]])
def test_every_step_is_counted_on_each_of_two_ranks(
    arguments: list[str], broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    outcome = run(tmp_path, broker, "--bare-first", *arguments, ranks=2)
    assert outcome.exit_code == 0, outcome.stderr
    assert [truth["steps"] for truth in outcome.truths] == [40, 40]
    records = bus.records(2)
    assert [(record.rank, record.states, record.n_iterations) for record in records] == [
        (0, ["running", "finished"], 40),
        (1, ["running", "finished"], 40),
    ]
    assert len({record.run for record in records}) == 1
    assert [truth["digest"] for truth in outcome.bare] == [truth["digest"] for truth in outcome.truths]
