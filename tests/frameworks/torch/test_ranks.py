"""Several ranks: each trains on its own samples, as bare, and every step of each is counted.

A wrapper that is no `DataLoader` switched sharding off, in silence: each rank trained on all the samples.
"""

from pathlib import Path

import pytest

from tests.frameworks.bus import Bus
from tests.frameworks.process import TRAININGS, Launcher, command, train, train_published
from tests.live.conftest import Mosquitto


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.further), 2])
@pytest.mark.parametrize(
    ("script", "arguments", "n_steps"),
    [
        pytest.param("with_torch.py", ["--wrap"], 80, marks=pytest.mark.further),
        ("with_torch.py", ["--wrap", "--accumulation=4", "--validation"], 20),
        pytest.param("with_accelerate.py", ["--wrap"], 80, marks=pytest.mark.further),
        ("with_accelerate.py", ["--wrap", "--iterable"], 80),
        pytest.param(
            "with_accelerate.py", ["--wrap", "--accumulation=4", "--validation"], 20, marks=pytest.mark.further
        ),
        pytest.param("with_accelerate.py", ["--wrap-after"], 80, marks=pytest.mark.further),
        pytest.param("with_accelerate.py", ["--wrap-after", "--iterable"], 80, marks=pytest.mark.further),
        ("with_accelerate.py", ["--wrap-after", "--accumulation=4", "--validation"], 20),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value).removesuffix(".py"),
)
def test_each_rank_sees_its_own_batches_and_counts_its_steps(
    script: str, arguments: list[str], n_steps: int, ranks: int, broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    launcher: Launcher = "torchrun" if ranks > 1 else "python"
    line = command(TRAININGS / script, ["--bare-first", *arguments], launcher, ranks)
    outcome = train_published(line, tmp_path, broker.url)
    assert outcome.exit_code == 0, outcome.stderr
    assert [truth["steps"] for truth in outcome.truths] == [n_steps // ranks] * ranks
    records = bus.records(ranks)
    assert [(record.rank, record.n_iterations) for record in records] == [
        (rank, n_steps // ranks) for rank in range(ranks)
    ]
    assert [record.counted_by for record in records] == [{"optimizer"}] * ranks
    assert [truth["digest"] for truth in outcome.bare] == [truth["digest"] for truth in outcome.truths]
    knows_requests = "with_torch" in script or "--wrap-after" in arguments
    for record in records:
        assert all(bool(message.requests_ns()) is knows_requests for message in record.messages)
        assert record.statuses[-1].total_iterations == (n_steps // ranks if knows_requests else None)


@pytest.mark.parametrize(
    ("arguments", "n_steps"),
    [pytest.param([], 80, marks=pytest.mark.further), (["--accumulation=4", "--validation"], 20)],
)
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.further), 2])
def test_a_loader_that_lightning_makes_anew_is_sharded_and_every_step_counted(
    arguments: list[str], n_steps: int, ranks: int, broker: Mosquitto, bus: Bus, tmp_path: Path
) -> None:
    arguments = [f"--devices={ranks}", *arguments]
    line = command(TRAININGS / "with_lightning.py", ["--wrap", *arguments])
    outcome = train_published(line, tmp_path / "published", broker.url)
    assert outcome.exit_code == 0, outcome.stderr
    assert [truth["steps"] for truth in outcome.truths] == [n_steps // ranks] * ranks
    records = bus.records(ranks)
    assert [record.n_iterations for record in records] == [n_steps // ranks] * ranks
    bare = train(command(TRAININGS / "with_lightning.py", arguments), tmp_path / "bare")
    assert [truth["digest"] for truth in bare.truths] == [truth["digest"] for truth in outcome.truths]
