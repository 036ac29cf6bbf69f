"""Real trainings pause after one step, all ranks after the same one, and go on with the next as if nothing had been."""

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.bus import Bus
from tests.frameworks.pausing.commander import Commander
from tests.frameworks.pausing.started import started
from tests.live.conftest import Mosquitto, wait_until

SCRIPT = Path(__file__).parent / "training.py"
STOOD_S = 1.0
training = partial(started, SCRIPT)


def stood(accounts: list[dict[str, Any]]) -> list[list[int]]:
    """Return after which steps each rank stood for as long as a pause."""
    return [[step for step, still_s in account["still"] if still_s >= STOOD_S] for account in accounts]


@pytest.mark.parametrize(
    ("counted_by", "ranks", "accumulation"),
    [
        ("loader", 1, 1),
        ("caller", 2, 1),
        ("optimizer", 2, 4),
        pytest.param("optimizer", 1, 1, marks=pytest.mark.further),
        pytest.param("optimizer", 2, 1, marks=pytest.mark.further),
        pytest.param("caller", 1, 1, marks=pytest.mark.further),
        pytest.param("caller", 2, 4, marks=pytest.mark.further),
        pytest.param("loader", 2, 1, marks=pytest.mark.further),
        pytest.param("loader", 2, 4, marks=pytest.mark.further),
    ],
)
def test_all_ranks_stand_after_the_same_step(
    counted_by: str, ranks: int, accumulation: int, broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    n_steps, step_s = 600, 0.02  # 12 s, however many batches a step has: nothing is asked of a run that has ended
    batches = [f"--samples={n_steps // 2 * accumulation * ranks * 8}", f"--step-s={step_s / accumulation}"]
    arguments = ["--pausable", f"--counted-by={counted_by}", f"--accumulation={accumulation}", *batches]
    commander = Commander(bus, ranks)
    with training(tmp_path, broker, *arguments, ranks=ranks) as run:
        commander.wait_pausable()
        commander.pause()
        time.sleep(STOOD_S)
        commander.resume()
        accounts, stderr = run.end()
    assert [account["steps"] for account in accounts] == [n_steps] * ranks
    (steps,) = {tuple(each) for each in stood(accounts)}
    assert len(steps) == 1, accounts
    assert "paused after" in stderr
    assert "the training goes on after a pause: a test" in stderr
    for record in bus.records(ranks):
        # Where no step is seen, each batch counts.
        assert record.n_iterations == n_steps * (accumulation if counted_by == "loader" else 1)
        assert record.statuses[-1].paused_s == pytest.approx(STOOD_S, abs=0.9)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.further)])
def test_a_second_pause_and_workers_that_load_with_a_timeout(
    ranks: int, broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    """Each pause is longer than a worker's own timeout is, less what is loaded ahead."""
    commander = Commander(bus, ranks)
    with training(tmp_path, broker, "--pausable", "--workers", "--alone", f"--epochs={2 * ranks}", ranks=ranks) as run:
        for pause_id, stood_s in (("p1", STOOD_S), ("p2", 7.0)):
            commander.pause_id = pause_id
            commander.wait_pausable()
            commander.pause()
            time.sleep(stood_s)
            commander.resume()
        accounts, _ = run.end()
    assert {len(each) for each in stood(accounts)} == {2}
    assert len({tuple(each) for each in stood(accounts)}) == 1


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.further), 2])
def test_no_pause_is_longer_than_the_training_and_its_process_group_allow(
    ranks: int, broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    """Nobody says resume; a group of several ranks whose collectives fail after 6 s allows 3 s."""
    most = ["--max-pause-s=3"] if ranks == 1 else ["--timeout-s=6"]
    commander = Commander(bus, ranks)
    with training(tmp_path, broker, "--pausable", *most, f"--epochs={2 * ranks}", ranks=ranks) as run:
        commander.wait_pausable()
        assert commander.statuses()[0].max_pause_s == 3.0
        commander.pause()
        wait_until(lambda: not commander.paused(), 20.0)
        accounts, stderr = run.end()
    assert len({tuple(each) for each in stood(accounts)}) == 1
    for account in accounts:
        assert max(still_s for _, still_s in account["still"]) == pytest.approx(3.0, abs=1.0)
    assert "has lasted 3 s, the most it may" in stderr


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.further), 2])
def test_all_ranks_end_their_loops_after_the_same_step(ranks: int, broker: Mosquitto, bus: Bus, tmp_path: Path) -> None:
    commander = Commander(bus, ranks)
    with training(tmp_path, broker, "--pausable", "--early-stop", "--epochs=50", ranks=ranks) as run:
        commander.wait_pausable()
        commander.say("stop")
        accounts, _ = run.end()
    (n_steps,) = {account["steps"] for account in accounts}
    assert n_steps < 50 * 300 // ranks
    assert {record.n_iterations for record in bus.records(ranks)} == {n_steps}


def test_ctrl_c_ends_a_pause_at_once_in_the_trainings_own_code(broker: Mosquitto, bus: Bus, tmp_path: Path) -> None:
    commander = Commander(bus)
    with training(tmp_path, broker, "--pausable", "--epochs=50") as run:
        commander.wait_pausable()
        commander.pause()
        run.process.send_signal(signal.SIGINT)
        began_s = time.monotonic()
        (account,), _ = run.end()
    assert account["caught"] == "KeyboardInterrupt"
    assert time.monotonic() - began_s < 30.0
    assert account["steps"] < 50 * 300


def test_a_rank_that_is_killed_while_all_wait_leaves_nobody_waiting(
    broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    """The other's next collective fails, or its store does: in any case the launcher ends it, as without us."""
    commander = Commander(bus, 2)
    with training(tmp_path, broker, "--pausable", "--epochs=50", ranks=2) as run:
        commander.wait_pausable()
        commander.pause()
        os.kill(commander.statuses()[1].pid, signal.SIGKILL)
        _, stderr = run.process.communicate(timeout=60)
    assert run.process.returncode == 1
    assert "Signal 9" in stderr


def test_ranks_of_which_one_alone_is_published_are_not_pausable(broker: Mosquitto, bus: Bus, tmp_path: Path) -> None:
    commander = Commander(bus)
    with training(tmp_path, broker, "--pausable", "--only-rank-0", "--samples=800", ranks=2) as run:
        accounts, _ = run.end()
    assert [account["steps"] for account in accounts] == [100, 100]
    assert not any(status.pausable for record in bus.records(1) for status in record.statuses)
    assert commander.paused() == []
