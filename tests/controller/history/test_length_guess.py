"""The guessed length of a run, by former runs of its job: which of them count, and what they tell."""

from typing import Any

import pytest

from controller.history.length_guess import guessed_length
from controller.history.run_history import EndedRun
from policies.planning.run_length import GuessedLength
from tests.controller.history.outcomes import ended_run
from tests.controller.messages import rank_status

STARTED_S = 1_000_000.0


def former(n_iterations: float = 5_000.0, n_runs: int = 3, **changes: Any) -> list[EndedRun]:  # noqa: ANN401 — the record checks them
    """Return runs of one length that were done at batch size 256."""
    return [ended_run(n, batch_size=256, n_iterations=n_iterations, **changes) for n in range(n_runs)]


def guessed(
    runs: list[EndedRun],
    *,
    n_iterations: float = 100.0,
    n_unobserved: float = 0.0,
    elapsed_s: float = 1_000.0,
    **status: Any,  # noqa: ANN401 — the record checks them
) -> GuessedLength | None:
    """Return what is guessed of a run."""
    return guessed_length(
        runs,
        rank_status(started_at_s=STARTED_S, **status),
        gpu_model="NVIDIA A40",
        n_iterations=n_iterations,
        n_unobserved=n_unobserved,
        now_s=STARTED_S + elapsed_s,
    )


def test_former_runs_tell_a_length() -> None:
    found = guessed(former())
    assert found is not None
    assert found.total_iterations == pytest.approx(5_000.0)
    assert found.n_runs == 3


def test_an_announced_length_wins() -> None:
    assert guessed(former(), total_iterations=7_000) is None


@pytest.mark.parametrize(
    "changes",
    [{"end": "lost"}, {"end": "silent"}, {"is_complete": False}, {"world_size": 2}, {"n_iterations": 0.0}],
)
def test_runs_that_were_others_or_broken_off_tell_none(changes: dict[str, Any]) -> None:
    assert guessed(former(**changes)) is None


def test_another_batch_size_is_another_length() -> None:
    assert guessed(former(), batch_size=512) is None


def test_who_was_joined_late_ends_as_soon_as_the_others() -> None:
    found = guessed(former(), n_unobserved=1_000.0)
    assert found is not None
    assert found.total_iterations == pytest.approx(4_000.0)


def limited(*pairs: tuple[float, float]) -> list[EndedRun]:
    """Return runs of so many iterations, which used so much of their time limits."""
    return [
        ended_run(
            n,
            batch_size=256,
            n_iterations=n_iterations,
            started_at_s=0.0,
            ended_at_s=used_ratio * 50_000.0,
            time_limit_s=50_000.0,
        )
        for n, (n_iterations, used_ratio) in enumerate(pairs)
    ]


def test_what_they_used_of_their_time_limits_tells_a_length_where_it_scatters_less() -> None:
    runs = limited((4_000.0, 0.8), (2_000.0, 0.8), (6_000.0, 0.8))
    found = guessed(runs, time_limit_s=STARTED_S + 10_000.0)
    assert found is not None
    assert found.total_iterations == pytest.approx(100.0 * 0.8 / 0.1)
    assert found.is_certain


def test_their_iterations_tell_it_where_these_scatter_less() -> None:
    runs = limited((4_000.0, 0.8), (4_000.0, 0.4), (4_000.0, 0.6))
    found = guessed(runs, time_limit_s=STARTED_S + 10_000.0)
    assert found is not None
    assert found.total_iterations == pytest.approx(4_000.0)


def test_on_other_gpus_the_time_limit_tells_nothing() -> None:
    runs = [ended_run(n, batch_size=256, n_iterations=0.0, time_limit_s=20_000.0, gpu_model="H100") for n in range(3)]
    assert guessed(runs, time_limit_s=STARTED_S + 10_000.0) is None
