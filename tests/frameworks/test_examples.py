"""Each example runs as its first lines say, and is published: as many iterations as it says it has made steps."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.frameworks.bus import Bus
from tests.frameworks.process import ROOT, train_published
from tests.live.conftest import Mosquitto

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
STEPS = {
    "accelerate_loop": 32,
    "flax_loop": 64,
    "keras_fit": 56,
    "lightning_trainer": 32,
    "plain_torch": 64,
    "torchrun_ddp": 32,
    "transformers_trainer": 32,
}


def command_of(example: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command line that an example names, and its variables."""
    (line,) = re.findall(r"^GRIDCHASE_JOB=.*$", example.read_text(encoding="utf-8"), re.MULTILINE)
    words = shlex.split(line)
    variables = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
    command = words[len(variables) :]
    assert command[-1] == f"examples/{example.name}"
    return [*command[:-1], str(example)], variables


def test_every_example_is_listed() -> None:
    assert [example.stem for example in EXAMPLES] == sorted(STEPS)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_an_example_is_published_as_it_runs(example: Path, broker: Mosquitto, bus: Bus, tmp_path: Path) -> None:
    command, variables = command_of(example)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    outcome = train_published(command, tmp_path, broker.url, **variables, PATH=path)
    assert outcome.exit_code == 0, outcome.stderr
    n_ranks = 2 if command[0] == "torchrun" else 1
    assert re.findall(r"(\d+) steps", outcome.stdout) == [str(STEPS[example.stem])] * n_ranks
    records = bus.records(n_ranks)
    assert [record.rank for record in records] == list(range(n_ranks))
    assert {status.world_size for record in records for status in record.statuses} == {n_ranks}
    assert [(record.job, record.states, record.n_iterations) for record in records] == [
        ("example", ["running", "finished"], STEPS[example.stem])
    ] * n_ranks
    assert len({record.run for record in records}) == 1
