"""One job that runs now on these GPUs, now on those, on both databases: its cost bounds."""

from itertools import cycle, islice

import pytest

from policies.service.records import Result, TrialUpdate
from tests.live.policy.repositories import ask, open_repositories, postgres_server, url
from tests.policies.service.repositories import Repositories, run_key

__all__ = ["postgres_server", "url"]
pytestmark = pytest.mark.live
FAST = Result(gpu_model="A100", n_gpus=1, max_power_w=300.0)
SLOW = Result(gpu_model="T4", n_gpus=1, max_power_w=300.0)
MANY = Result(gpu_model="A100", n_gpus=8, max_power_w=2400.0)
EPOCH_J = {FAST: 100.0, SLOW: 900.0, MANY: 900.0}
N_EPOCHS = 5


async def tell(db: Repositories, run: str, on: Result, *, epochs: int, reached: bool = False) -> TrialUpdate:
    """Tell what a run has used after so many epochs."""
    used = {name: getattr(on, name) for name in ("gpu_model", "n_gpus", "max_power_w")}
    energy_j = EPOCH_J[on] * epochs
    result = Result(
        epochs=epochs, energy_j=energy_j, duration_s=energy_j / 300.0, outcome="reached" if reached else None, **used
    )
    return await db.trials.report(run_key(run), result, now_s=2.0)


@pytest.mark.parametrize("other", [SLOW, MANY])
async def test_runs_on_two_kinds_of_gpus_in_turn_are_not_stopped_by_each_others_bounds(url: str, other: Result) -> None:
    async with open_repositories(url) as db:
        for number, on in enumerate(islice(cycle([FAST, other]), 8)):
            await ask(db, f"run-{number}")
            stops = [(await tell(db, f"run-{number}", on, epochs=n)).stop for n in range(1, N_EPOCHS)]
            assert stops == [None] * (N_EPOCHS - 1), number
            await tell(db, f"run-{number}", on, epochs=N_EPOCHS, reached=True)


async def test_a_run_that_costs_too_much_for_its_own_gpus_is_stopped(url: str) -> None:
    async with open_repositories(url) as db:
        for run, on in (("run-0", SLOW), ("run-1", FAST)):
            await ask(db, run)
            await tell(db, run, on, epochs=N_EPOCHS, reached=True)
        trial = await ask(db, "run-2")
        assert trial.cost_bound is not None
        assert (trial.bound_gpu_model, trial.bound_n_gpus) == ("A100", 1)
        told = await tell(db, "run-2", SLOW, epochs=N_EPOCHS)
        assert told.stop is None
        assert told.trial.cost_bound == pytest.approx(9.0 * trial.cost_bound, rel=0.1)
        assert (told.trial.bound_gpu_model, told.trial.bound_n_gpus) == ("T4", 1)
        assert (await tell(db, "run-2", SLOW, epochs=3 * N_EPOCHS)).stop is not None


async def test_on_unknown_gpus_a_run_has_no_bound_until_another_has_ended_there(url: str) -> None:
    async with open_repositories(url) as db:
        await ask(db, "run-0")
        await tell(db, "run-0", FAST, epochs=N_EPOCHS, reached=True)
        await ask(db, "run-1")
        assert (await tell(db, "run-1", SLOW, epochs=10 * N_EPOCHS)).stop is None
        await ask(db, "run-2")
        await tell(db, "run-2", SLOW, epochs=N_EPOCHS, reached=True)
        assert (await tell(db, "run-1", SLOW, epochs=10 * N_EPOCHS + 1)).stop is not None
