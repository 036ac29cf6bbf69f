"""Real trainings pause after one step, all ranks after the same one, and go on with the next as if nothing had been."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.bus import Bus
from tests.frameworks.pausing.commander import Commander
from tests.frameworks.process import Launcher, command, environment
from tests.frameworks.trainings.truth import VARIABLE
from tests.live.conftest import Mosquitto

SCRIPT = Path(__file__).parent / "training.py"
STOOD_S = 1.0


class Training:
    """A training in processes of its own."""

    def __init__(self, folder: Path, broker: Mosquitto, *arguments: str, ranks: int = 1) -> None:
        self.folder = folder
        self.ranks = ranks
        launcher: Launcher = "torchrun" if ranks > 1 else "python"
        ours = {"GRIDCHASE_JOB": "toy", "GRIDCHASE_BROKER": broker.url, "GRIDCHASE_QUIET": "1"}
        self.process = subprocess.Popen(
            command(SCRIPT, list(arguments), launcher, ranks),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**{VARIABLE: str(folder), **ours}),
        )

    def end(self) -> tuple[list[dict[str, Any]], str]:
        """Wait for its end; return the account of each rank, and its stderr."""
        _, stderr = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, stderr
        accounts = [json.loads((self.folder / f"{rank}.json").read_text()) for rank in range(self.ranks)]
        return accounts, stderr


@contextmanager
def training(folder: Path, broker: Mosquitto, *arguments: str, ranks: int = 1) -> Iterator[Training]:
    started = Training(folder, broker, *arguments, ranks=ranks)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.communicate()


def stood(accounts: list[dict[str, Any]]) -> list[list[int]]:
    """Return after which steps each rank stood for as long as a pause."""
    return [[step for step, still_s in account["still"] if still_s >= STOOD_S] for account in accounts]


@pytest.mark.parametrize("counted_by", ["optimizer", "caller", "loader"])
@pytest.mark.parametrize(("ranks", "accumulation"), [(1, 1), (2, 1), (2, 4)])
def test_all_ranks_stand_after_the_same_step(
    counted_by: str, ranks: int, accumulation: int, broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    arguments = ["--pausable", f"--counted-by={counted_by}", f"--accumulation={accumulation}"]
    commander = Commander(bus, ranks)
    with training(tmp_path, broker, *arguments, f"--step-s={0.01 / accumulation}", ranks=ranks) as started:
        commander.wait_pausable()
        commander.pause()
        time.sleep(STOOD_S)
        commander.resume()
        accounts, stderr = started.end()
    n_steps = 2 * 4_800 // 8 // ranks // accumulation
    assert [account["steps"] for account in accounts] == [n_steps] * ranks
    (steps,) = {tuple(each) for each in stood(accounts)}
    assert len(steps) == 1, accounts
    assert "paused after" in stderr
    assert "the training goes on after a pause: a test" in stderr
    for record in bus.records(ranks):
        # Where no step is seen, each batch counts.
        assert record.n_iterations == n_steps * (accumulation if counted_by == "loader" else 1)
        assert record.statuses[-1].paused_s == pytest.approx(STOOD_S, abs=0.9)
