"""One contract for both databases: what the desk promises, to any number of processes at once."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import pytest
from msgspec.structs import replace

from policies.batch_size import Choice, Study
from policies.service.archive import MAX_PAGE
from policies.service.config import LearningConfig
from policies.service.desk import CLAIM_S, Desk
from policies.service.errors import (
    JobMismatchError,
    RequestError,
    TrialConflictError,
    UnknownJobError,
    UnknownTrialError,
)
from policies.service.records import ImportCounts, Job, JobSettings, Result, Timing, Trial
from policies.service.store.store import Store, opened_store
from tests.live.postgres import Postgres, postgres_server

__all__ = ["postgres_server"]
pytestmark = pytest.mark.live
TIMEOUT_S: Final = 20.0
SIZES: Final = (16, 32, 64)
DONE: Final = Result(
    outcome="reached", epochs=5, energy_j=1000.0, duration_s=10.0, max_power_w=300.0, gpu_model="A40", n_gpus=1
)
NO_TIMING: Final = Timing(times=(), too_large=8)
Answer = TypeVar("Answer")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/policy.db"
    server: Postgres = request.getfixturevalue("postgres_server")
    return server.new_database()


@asynccontextmanager
async def a_desk(url: str, learning: LearningConfig | None = None) -> AsyncIterator[Desk]:
    async with opened_store(url, timeout_s=TIMEOUT_S) as store:
        yield Desk(store, learning or LearningConfig())


async def ask(desk: Desk, run: str, *, job: str = "job", now_s: float = 1.0) -> Trial:
    return await desk.ask(job, run, batch_sizes=SIZES, default_batch_size=32, now_s=now_s)


async def at_once(calls: Sequence[Callable[[], Awaitable[Answer]]]) -> list[Answer]:
    async def awaited(call: Callable[[], Awaitable[Answer]]) -> Answer:
        return await call()

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(awaited(call), name=f"call {i}") for i, call in enumerate(calls)]
    return [task.result() for task in running]


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


class Witness(Desk):
    """A desk that notes how many runs in flight it knew of when it chose."""

    def __init__(self, store: Store, learning: LearningConfig) -> None:
        super().__init__(store, learning)
        self.known: list[int] = []

    def _choose(self, job: Job, study: Study, number: int) -> Choice:
        self.known.append(len(study.in_flight))
        return super()._choose(job, study, number)


async def test_fifty_questions_at_once_get_fifty_trials_each_of_which_knows_those_before_it(url: str) -> None:
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(opened_store(url, timeout_s=TIMEOUT_S)) for _ in range(4)]
        desks = [Witness(store, LearningConfig()) for store in stores]
        trials = await at_once([partial(ask, desks[i % 4], f"run-{i}") for i in range(50)])
        assert sorted(trial.number for trial in trials) == list(range(50))
        assert sorted(trial.recurrence for trial in trials) == list(range(50))
        assert sorted(known for desk in desks for known in desk.known) == list(range(50))
        assert {trial.run for trial in await desks[0].trials("job")} == {f"run-{i}" for i in range(50)}


async def test_one_run_that_asks_many_times_at_once_has_one_trial(url: str) -> None:
    async with a_desk(url) as one, a_desk(url) as two:
        trials = await at_once([partial(ask, desk, "run") for desk in (one, two) for _ in range(10)])
        assert len(trials) == 20
        assert all(trial == trials[0] for trial in trials)
        assert len(await one.trials("job")) == 1


async def test_a_result_that_is_told_by_many_counts_once(url: str) -> None:
    async with AsyncExitStack() as stack:
        desks = [await stack.enter_async_context(a_desk(url)) for _ in range(3)]
        await ask(desks[0], "run")
        told = await at_once([partial(desk.tell, "job", "run", DONE, now_s=9.0) for desk in desks * 4])
        assert all(one.trial.state == "reached" for one in told)
        (summary,) = await desks[0].jobs()
        assert (summary.n_trials, summary.n_ended, summary.n_in_flight) == (1, 1, 0)
        assert (await desks[0].posterior("job")).n_observations == 1


async def test_pieces_that_are_told_at_once_are_all_kept(url: str) -> None:
    pieces = [
        Result(energy_j=5.0),
        Result(duration_s=6.0),
        Result(max_power_w=7.0),
        Result(gpu_model="A40"),
        Result(n_gpus=8),
        Result(carbon_g=9.0),
    ]
    async with a_desk(url) as one, a_desk(url) as two:
        await ask(one, "run")
        await at_once(
            [partial((one, two)[i % 2].tell, "job", "run", piece, now_s=2.0) for i, piece in enumerate(pieces)]
        )
        whole = Result(energy_j=5.0, duration_s=6.0, max_power_w=7.0, gpu_model="A40", n_gpus=8, carbon_g=9.0)
        assert (await one.trial("job", "run")).result == whole


async def test_of_all_that_claim_a_request_one_answers_it(url: str) -> None:
    async with a_desk(url) as one, a_desk(url) as two:
        claims = await at_once([partial(desk.claim, "request", now_s=1.0) for desk in (one, two) for _ in range(10)])
        assert sum(claims) == 1
        await two.expire(now_s=CLAIM_S)
        assert not await one.claim("request", now_s=CLAIM_S)
        await two.expire(now_s=1.0 + CLAIM_S)
        assert await one.claim("request", now_s=2.0 + CLAIM_S)


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


async def test_many_leases_that_run_out_at_once_are_each_expired_once(url: str) -> None:
    async with a_desk(url) as one, a_desk(url) as two:
        await at_once([partial(ask, one, f"run-{i}", job=f"job-{i % 7}") for i in range(70)])
        expired = await at_once([partial(desk.expire, now_s=1e6) for desk in (one, two, one, two)])
        assert sorted(f"{trial.job}/{trial.run}" for some in expired for trial in some) == sorted(
            f"job-{i % 7}/run-{i}" for i in range(70)
        )


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


async def test_an_export_makes_the_same_jobs_elsewhere_however_often_it_is_taken_in(url: str, tmp_path: Path) -> None:
    async with a_desk(url) as desk, a_desk(f"sqlite:///{tmp_path}/other.db") as other:
        for i in range(3):
            await ask(desk, f"run-{i}")
            await ask(desk, "run", job=f"job-{i}")
        await desk.tell("job", "run-0", DONE, now_s=9.0)
        exports = await desk.export()
        assert [export.job.name for export in exports] == ["job", "job-0", "job-1", "job-2"]
        assert await desk.export("job") == exports[:1]
        counts = await other.import_(exports, now_s=9.0)
        assert counts == ImportCounts(n_jobs=4, n_trials=6, n_known_jobs=0, n_known_trials=0)
        assert await other.export() == exports
        await desk.forget("job")
        assert [job.name for job in await desk.jobs()] == ["job-0", "job-1", "job-2"]
        await ask(desk, "run-new")
        again = [await desk.import_(exports, now_s=9.0) for _ in range(2)]
        assert (again[0].n_trials, again[0].n_known_trials, again[1].n_trials) == (3, 3, 0)
        trials = await desk.trials("job")
        assert [(trial.number, trial.run) for trial in trials] == [
            (3, "run-2"),
            (2, "run-1"),
            (1, "run-0"),
            (0, "run-new"),
        ]


async def test_an_import_that_contradicts_itself_changes_nothing(url: str) -> None:
    async with a_desk(url) as desk:
        await ask(desk, "run")
        (export,) = await desk.export()
        await desk.forget("job")
        (trial,) = export.trials
        for wrong, fault in (
            (replace(export, trials=(trial, trial)), "run run comes 2 times"),
            (replace(export, trials=(replace(trial, job="other"),)), "job = other"),
            (replace(export, trials=(replace(trial, batch_size=8),)), "batch_size = 8"),
            (replace(export, trials=(replace(trial, lease_s=float("nan")),)), "lease_s"),
            (replace(export, trials=(replace(trial, result=Result(energy_j=-1.0)),)), "energy_j"),
            (replace(export, job=replace(export.job, default_batch_size=8)), "default_batch_size = 8"),
            (replace(export, trials=(replace(trial, timing=NO_TIMING),)), "batch size 8"),
        ):
            good = replace(export, job=replace(export.job, name="good"), trials=())
            with pytest.raises(RequestError, match=fault):
                await desk.import_([good, wrong], now_s=9.0)
        with pytest.raises(RequestError, match="job job comes 2 times"):
            await desk.import_([export, export], now_s=9.0)
        assert await desk.jobs() == []


async def test_an_imported_trial_has_an_end_exactly_where_its_state_is_one(url: str) -> None:
    async with a_desk(url) as desk:
        await ask(desk, "run")
        (export,) = await desk.export()
        await desk.forget("job")
        (trial,) = export.trials
        running = replace(trial, run="runs", state="running", ended_at_s=5.0)
        stopped = replace(trial, run="stopped", state="stopped", ended_at_s=None)
        await desk.import_([replace(export, trials=(running, stopped))], now_s=9.0)
        (summary,) = await desk.jobs()
        assert (summary.n_in_flight, summary.n_ended) == (1, 1)
        assert [one.run for one in await desk.expire(now_s=1e6)] == ["runs"]
