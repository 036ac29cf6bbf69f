"""`gridchase run`: trainings without a line of ours in their scripts, by each launcher."""

import signal
import sys
from pathlib import Path

import pytest

from tests.frameworks.bus import Bus, Record
from tests.frameworks.process import TRAININGS, Launcher, command, train
from tests.live.conftest import Mosquitto

COMPILED = """
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
step = torch.compile(optimizer.step, backend="eager")
for _ in range(10):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).sum().backward()
    step()
"""


def records_of(
    script: str,
    folder: Path,
    broker: Mosquitto,
    bus: Bus,
    *arguments: str,
    launcher: Launcher = "python",
    ranks: int = 1,
    **variables: str,
) -> list[Record]:
    """Train, and return what was heard of it."""
    line = command(TRAININGS / f"{script}.py", arguments, launcher, ranks)
    ours = [sys.executable, "-m", "gridchase", "run", "--broker", broker.url, "--"]
    outcome = train([*ours, *line], folder, GRIDCHASE_QUIET="1", **variables)
    assert outcome.exit_code == 0, outcome.stderr
    assert "gridchase:" not in outcome.stderr
    records = bus.records(ranks)
    assert len(outcome.truths) == ranks
    assert [record.job for record in records] == [script] * len(records)
    assert [(record.rank, record.n_iterations) for record in records] == [
        (truth["rank"], truth["steps"]) for truth in outcome.truths
    ]
    assert {tuple(record.states) for record in records} == {("running", "finished")}
    return records


@pytest.mark.parametrize(
    ("script", "launcher", "ranks", "counted_by"),
    [
        pytest.param("with_torch", "python", 1, "optimizer", marks=pytest.mark.further),
        ("with_torch", "torchrun", 2, "optimizer"),
        ("with_transformers", "python", 1, "callback"),
        pytest.param("with_transformers", "torchrun", 2, "callback", marks=pytest.mark.further),
        ("with_lightning", "python", 1, "callback"),
        ("with_keras", "python", 1, "callback"),
        pytest.param("with_accelerate", "torchrun", 2, "optimizer", marks=pytest.mark.further),
    ],
)
def test_a_script_that_nobody_has_touched_is_published(
    script: str, launcher: Launcher, ranks: int, counted_by: str, broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    records = records_of(
        script, tmp_path, broker, bus, "--validation", launcher=launcher, ranks=ranks, KERAS_BACKEND="jax"
    )
    assert len({record.run for record in records}) == 1
    assert set().union(*(record.counted_by for record in records)) == {counted_by}


def test_a_module_is_published_too(broker: Mosquitto, bus: Bus, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "gridchase", "run", "--job", "toy", "--broker", broker.url, "--"]
    line += [sys.executable, "-m", "tests.frameworks.trainings.with_torch", "--accumulation=4"]
    outcome = train(line, tmp_path, GRIDCHASE_QUIET="1")
    assert outcome.exit_code == 0, outcome.stderr
    (record,) = bus.records(1)
    assert (record.job, record.states, record.n_iterations) == ("toy", ["running", "finished"], 20)


def test_what_the_script_publishes_itself_is_not_published_twice(broker: Mosquitto, bus: Bus, tmp_path: Path) -> None:
    (record,) = records_of("with_torch", tmp_path, broker, bus, "--wrap", "--validation")
    assert record.statuses[-1].total_iterations == 80


def test_a_compiled_step_is_counted_and_its_compiler_traces_nothing_of_ours(
    broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    script = tmp_path / "compiled.py"
    script.write_text(COMPILED)
    line = [sys.executable, "-m", "gridchase", "run", "--broker", broker.url, "--", sys.executable, str(script)]
    outcome = train(line, tmp_path, GRIDCHASE_QUIET="1")
    assert (outcome.exit_code, "Dynamo" in outcome.stderr) == (0, False), outcome.stderr
    (record,) = bus.records(1)
    assert (record.n_iterations, record.counted_by) == (10, {"optimizer"})


def test_a_python_below_a_training_that_trains_nothing_publishes_nothing(
    broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    script = tmp_path / "evaluate.py"
    script.write_text("import torch, transformers.trainer, keras\ntorch.nn.Linear(1, 1)(torch.ones(1))\n")
    line = [sys.executable, "-m", "gridchase", "run", "--broker", broker.url, "--", sys.executable, str(script)]
    assert train(line, tmp_path, KERAS_BACKEND="torch").exit_code == 0
    assert bus.heard == 0


@pytest.mark.parametrize(
    ("kind", "n_runs", "exit_code", "state"),
    [("several", 1, 1, "lost"), ("interrupted", 1, -signal.SIGINT, "lost"), ("spawned", 2, 0, "finished")],
)
def test_scripts_of_other_kinds_count_and_end_as_without_us(
    kind: str, n_runs: int, exit_code: int, state: str, broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    line = [sys.executable, "-m", "gridchase", "run", "--job", "toy", "--broker", broker.url, "--"]
    outcome = train([*line, *command(TRAININGS / "kinds.py", [kind])], tmp_path, GRIDCHASE_QUIET="1")
    assert outcome.exit_code == exit_code, outcome.stderr
    records, done = bus.records(n_runs), [int(n) for n in outcome.stdout.split()]
    if n_runs == 1:  # trainings of one process that `gridchase run` does not tell apart
        done = [sum(done)]
    assert sorted(record.n_iterations for record in records) == sorted(done)
    assert [record.states[-1] for record in records] == [state] * n_runs
