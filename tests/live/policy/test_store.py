"""One contract for both databases: what the desk promises of jobs, runs and their results."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from policies.service.config import LearningConfig
from policies.service.errors import (
    JobMismatchError,
    RequestError,
    TrialConflictError,
    UnknownJobError,
    UnknownTrialError,
)
from policies.service.trials.jobs import MAX_PAGE
from policies.service.records import JobSettings, Result
from tests.live.policy.postgres import postgres_server
from tests.live.policy.repositories import DONE, SIZES, a_desk, ask, url

__all__ = ["postgres_server", "url"]
pytestmark = pytest.mark.live


async def test_a_question_makes_a_trial_and_the_same_question_gets_it_again(url: str) -> None:
    async with a_desk(url) as desk:
        trial = await desk.ask("job", "run", batch_sizes=(64, 16, 32), default_batch_size=32, now_s=5.0)
        assert (trial.batch_size, trial.state, trial.number, trial.recurrence) == (32, "open", 0, 0)
        assert await ask(desk, "run", now_s=9.0) == await desk.trial("job", "run") == trial
        assert (await desk.job("job")).batch_sizes == (16, 32, 64)


@pytest.mark.parametrize(
    ("job", "run", "batch_sizes", "default", "faults"),
    [
        ("job", "run", (), 32, ["batch_sizes has 0"]),
        ("job", "run", range(1, 258), 32, ["batch_sizes has 257"]),
        ("job", "run", (32, 32, 16), 8, ["batch_sizes has 32 more than once", "default_batch_size = 8"]),
        ("job", "run", (0, 32), 32, ["batch_sizes has 0: must be whole"]),
        ("a/b", "", (32,), 32, ["run = ''", "job = 'a/b'"]),
    ],
)
async def test_what_cannot_be_a_job_is_refused_with_every_fault(
    tmp_path: Path, job: str, run: str, batch_sizes: Sequence[int], default: int, faults: list[str]
) -> None:
    async with a_desk(f"sqlite:///{tmp_path}/policy.db") as desk:
        with pytest.raises(RequestError) as refused:
            await desk.ask(job, run, batch_sizes=batch_sizes, default_batch_size=default, now_s=1.0)
        assert len(refused.value.faults) == len(faults)
        assert all(said.startswith(fault) for said, fault in zip(refused.value.faults, faults, strict=True))
        assert await desk.jobs() == []


async def test_another_job_under_the_same_name_is_refused(url: str) -> None:
    async with a_desk(url) as desk:
        await ask(desk, "run")
        for sizes, default in (((16, 32), 32), (SIZES, 16)):
            with pytest.raises(JobMismatchError, match=r"has batch sizes 16, 32, 64 and default 32.*forget job"):
                await desk.ask("job", "other", batch_sizes=sizes, default_batch_size=default, now_s=1.0)


async def test_progress_and_end_are_kept_as_they_were_told(url: str) -> None:
    async with a_desk(url) as desk:
        await ask(desk, "run")
        assert (await desk.tell("job", "run", Result(epochs=2, energy_j=9.5), now_s=3.0)).trial.state == "running"
        assert await desk.note_metric("job", "run", epoch=4, value=0.75, reached=True, now_s=4.0)
        trial = await desk.end("job", "run", now_s=5.0)
        assert trial == await desk.trial("job", "run")
        assert (trial.state, trial.ended_at_s, trial.last_metric) == ("reached", 5.0, 0.75)
        full = replace(DONE, reached_epochs=5, carbon_g=3.5, money=-0.25, currency="EUR", failure="none")
        await ask(desk, "whole")
        assert (await desk.tell("job", "whole", full, now_s=6.0)).trial.result == full
        assert (await desk.trial("job", "whole")).result == full


async def test_what_is_told_of_an_unknown_run_is_refused(url: str) -> None:
    async with a_desk(url) as desk:
        await ask(desk, "run")
        for job, run in (("job", "other"), ("other", "run")):
            with pytest.raises(UnknownTrialError):
                await desk.tell(job, run, DONE, now_s=1.0)
            assert not await desk.hear(job, run, now_s=1.0)
            assert not await desk.note_metric(job, run, epoch=0, value=0.5, reached=False, now_s=1.0)
            assert await desk.end(job, run, now_s=1.0) is None


async def test_a_run_has_one_end(url: str) -> None:
    async with a_desk(url) as desk:
        await ask(desk, "run")
        await desk.tell("job", "run", DONE, now_s=1.0)
        with pytest.raises(TrialConflictError):
            await desk.tell("job", "run", Result(outcome="failed"), now_s=2.0)


async def test_a_run_over_its_bound_is_told_to_stop_for_as_long_as_it_goes_on(url: str) -> None:
    async with a_desk(url, LearningConfig(eta=1.0)) as desk:
        for i in range(3):
            await ask(desk, f"run-{i}")
            await desk.tell("job", f"run-{i}", DONE, now_s=2.0)
        bound = (await ask(desk, "dear", now_s=3.0)).cost_bound
        assert bound is not None
        tell = partial(desk.tell, "job", "dear")
        assert (await tell(Result(energy_j=0.9 * bound, epochs=3), now_s=4.0)).stop is None
        assert "the bound of" in str((await tell(Result(energy_j=1.1 * bound), now_s=5.0)).stop)
        assert (await tell(Result(epochs=4), now_s=6.0)).stop is not None
        assert (await desk.trial("job", "dear")).stop_ordered_at_s == 5.0
        over = await desk.end("job", "dear", now_s=7.0, was_lost=True)
        assert over is not None
        assert over.state == "stopped"
        assert (await tell(Result(energy_j=2 * bound), now_s=8.0)).stop is None


async def test_a_lease_is_renewed_by_what_is_heard_and_runs_out_in_silence(url: str) -> None:
    async with a_desk(url, LearningConfig(lease_s=100.0)) as desk:
        await ask(desk, "run", now_s=0.0)
        await ask(desk, "silent", now_s=0.0)
        assert await desk.hear("job", "run", now_s=90.0)
        assert [trial.run for trial in await desk.expire(now_s=150.0)] == ["silent"]
        assert await desk.expire(now_s=150.0) == []
        assert (await desk.trial("job", "silent")).state == "lost"
        assert (await ask(desk, "retry", now_s=160.0)).recurrence == 1
        assert (await desk.tell("job", "silent", DONE, now_s=200.0)).trial.state == "reached"


async def test_a_run_that_was_answered_without_the_database_is_taken_in_once(url: str) -> None:
    async with a_desk(url) as desk:
        adopt = partial(desk.adopt, "job", "run", batch_sizes=SIZES, default_batch_size=32)
        trial = await adopt(batch_size=32, reason="store_unavailable", detail="it was away", now_s=5.0)
        assert (trial.batch_size, trial.reason, trial.cost_bound) == (32, "store_unavailable", None)
        assert await adopt(batch_size=32, reason="store_unavailable", detail="again", now_s=6.0) == trial
        with pytest.raises(RequestError, match="batch_size = 8"):
            await adopt(batch_size=8, reason="store_unavailable", detail="", now_s=7.0)


async def test_the_list_of_jobs_counts_trials_by_their_states(url: str) -> None:
    async with a_desk(url) as desk:
        for i in range(4):
            await ask(desk, f"run-{i}", now_s=float(i))
        await desk.tell("job", "run-0", DONE, now_s=9.0)
        await desk.end("job", "run-1", now_s=9.0)
        await ask(desk, "run", job="alone", now_s=7.0)
        alone, job = await desk.jobs()
        assert (alone.name, alone.n_trials, alone.n_in_flight, alone.best_batch_size) == ("alone", 1, 1, None)
        assert (job.n_trials, job.n_in_flight, job.n_ended, job.last_asked_at_s) == (4, 2, 1, 3.0)
        assert job.best_batch_size in SIZES


async def test_trials_come_in_pages_the_newest_first(url: str) -> None:
    async with a_desk(url) as desk:
        for i in range(5):
            await ask(desk, f"run-{i}")
        pages = [await desk.trials("job", limit=2, before=before) for before in (None, 3, 1, 0)]
        assert [[trial.number for trial in page] for page in pages] == [[4, 3], [2, 1], [0], []]
        assert len(await desk.trials("job", before=1 << 53)) == 5
        for limit in (0, MAX_PAGE + 1):
            with pytest.raises(RequestError, match="limit"):
                await desk.trials("job", limit=limit)


async def test_the_posterior_says_what_the_next_question_will_be_answered(url: str) -> None:
    async with a_desk(url) as desk:
        await ask(desk, "run")
        await desk.tell("job", "run", DONE, now_s=2.0)
        posterior = await desk.posterior("job")
        assert [belief.batch_size for belief in posterior.beliefs] == list(SIZES)
        trial = await ask(desk, "next", now_s=3.0)
        chosen = posterior.next
        assert (trial.batch_size, trial.reason, trial.cost_bound) == (
            chosen.batch_size,
            chosen.reason,
            chosen.cost_bound,
        )


async def test_another_weight_of_energy_lifts_the_bounds_of_those_in_flight(url: str) -> None:
    async with a_desk(url) as desk:
        await ask(desk, "run")
        await desk.tell("job", "run", DONE, now_s=2.0)
        assert (await ask(desk, "next", now_s=3.0)).cost_bound is not None
        await desk.configure("job", JobSettings(beta=3.0))
        assert (await desk.trial("job", "next")).cost_bound is not None
        job = await desk.configure("job", JobSettings(eta=0.25, policy="zeus"))
        assert job == await desk.job("job")
        assert job.settings == JobSettings(eta=0.25, policy="zeus")
        assert (await desk.trial("job", "next")).cost_bound is None


async def test_what_is_not_there_is_unknown(url: str) -> None:
    async with a_desk(url) as desk:
        calls = (desk.job, desk.trials, desk.posterior, desk.export, desk.forget)
        for call in (*calls, partial(desk.configure, settings=JobSettings())):
            with pytest.raises(UnknownJobError, match="there is no job nowhere"):
                await call("nowhere")
        with pytest.raises(UnknownTrialError):
            await desk.trial("nowhere", "run")
