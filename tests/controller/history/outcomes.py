"""Runs that have ended, for the tests of what is remembered of them."""

from typing import Any

import msgspec

from controller.history.run_history import EndedRun, Outcome

OUTCOME = Outcome(
    run="run-1",
    started_at_s=1_000.0,
    ended_at_s=9_000.0,
    end="finished",
    is_complete=True,
    n_iterations=5_000.0,
    active_s=7_500.0,
    energy_j=2e6,
    world_size=1,
    gpu_model="NVIDIA A40",
    n_gpus=1,
)


def outcome(run: str = "run-1", **changes: Any) -> Outcome:  # noqa: ANN401 — the record checks them
    """Return how a run has ended."""
    return msgspec.structs.replace(OUTCOME, run=run, **changes)


def ended_run(number: int = 0, **changes: Any) -> EndedRun:  # noqa: ANN401 — the record checks them
    """Return a run that has ended."""
    return EndedRun(number=number, **msgspec.structs.asdict(outcome(f"run-{number}")) | changes)
