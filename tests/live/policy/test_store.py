"""One contract for both databases: what the repositories promise of jobs, runs and their results."""

import dataclasses
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from policies.batch_size import Choice, Study, describe
from policies.service.config import LearningConfig
from policies.service.errors import (
    JobMismatchError,
    RequestError,
    TooManyJobsError,
    TrialConflictError,
    UnknownJobError,
    UnknownTrialError,
)
from policies.service.records import JobKey, JobSettings, Result
from policies.service.trials import learning, repository
from policies.service.trials.jobs import MAX_PAGE
from policies.service.trials.repository import TrainedBatchSize
from policies.vocabulary.units import DAY_S
from publishers.messages.topics import RunKey
from tests.live.policy.postgres import postgres_server
from tests.live.policy.repositories import DONE, SIZES, ask, open_repositories, url
from tests.policies.service.repositories import Repositories, job_key, run_key

__all__ = ["postgres_server", "url"]
pytestmark = pytest.mark.live


async def test_a_question_makes_a_trial_and_the_same_question_gets_it_again(url: str) -> None:
    async with open_repositories(url) as db:
        trial = await db.trials.get_or_create(
            run_key("run"), batch_sizes=(64, 16, 32), default_batch_size=32, now_s=5.0
        )
        assert (trial.batch_size, trial.state, trial.number, trial.recurrence) == (32, "open", 0, 0)
        assert await ask(db, "run", now_s=9.0) == await db.jobs.trial(run_key("run")) == trial
        assert (await db.jobs.job(job_key())).batch_sizes == (16, 32, 64)


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
    async with open_repositories(f"sqlite:///{tmp_path}/policy.db") as db:
        with pytest.raises(RequestError) as refused:
            await db.trials.get_or_create(
                run_key(run, job), batch_sizes=batch_sizes, default_batch_size=default, now_s=1.0
            )
        assert len(refused.value.faults) == len(faults)
        assert all(said.startswith(fault) for said, fault in zip(refused.value.faults, faults, strict=True))
        assert await db.jobs.jobs() == []


async def test_another_job_under_the_same_name_is_refused(url: str) -> None:
    async with open_repositories(url) as db:
        await ask(db, "run")
        for sizes, default in (((16, 32), 32), (SIZES, 16)):
            with pytest.raises(JobMismatchError, match=r"has batch sizes 16, 32, 64 and default 32.*forget alice/job"):
                await db.trials.get_or_create(
                    run_key("other"), batch_sizes=sizes, default_batch_size=default, now_s=1.0
                )


async def test_progress_and_end_are_kept_as_they_were_reported(url: str) -> None:
    async with open_repositories(url) as db:
        await ask(db, "run")
        assert (
            await db.trials.report(run_key("run"), Result(epochs=2, energy_j=9.5), now_s=3.0)
        ).trial.state == "running"
        await db.trials.report_metric(run_key("run"), epoch=4, value=0.75, reached=True, now_s=4.0)
        trial = await db.end(run_key("run"), now_s=5.0)
        assert trial == await db.jobs.trial(run_key("run"))
        assert (trial.state, trial.ended_at_s, trial.last_metric) == ("reached", 5.0, 0.75)
        full = replace(DONE, reached_epochs=5, carbon_g=3.5, money=-0.25, currency="EUR", failure="none")
        await ask(db, "whole")
        assert (await db.trials.report(run_key("whole"), full, now_s=6.0)).trial.result == full
        assert (await db.jobs.trial(run_key("whole"))).result == full


async def test_reports_of_an_unknown_run_is_refused(url: str) -> None:
    async with open_repositories(url) as db:
        await ask(db, "run")
        for job, run in (("job", "other"), ("other", "run")):
            with pytest.raises(UnknownTrialError):
                await db.trials.report(run_key(run, job), DONE, now_s=1.0)
            with pytest.raises(UnknownTrialError):
                await db.trials.renew_lease(run_key(run, job), now_s=1.0)
            with pytest.raises(UnknownTrialError):
                await db.trials.report_metric(run_key(run, job), epoch=0, value=0.5, reached=False, now_s=1.0)
            with pytest.raises(UnknownTrialError):
                await db.end(run_key(run, job), now_s=1.0)


async def test_a_run_has_one_end(url: str) -> None:
    async with open_repositories(url) as db:
        await ask(db, "run")
        await db.trials.report(run_key("run"), DONE, now_s=1.0)
        with pytest.raises(TrialConflictError):
            await db.trials.report(run_key("run"), Result(outcome="failed"), now_s=2.0)


async def test_a_run_over_its_bound_is_ordered_to_stop_for_as_long_as_it_goes_on(url: str) -> None:
    async with open_repositories(url, LearningConfig(eta=1.0)) as db:
        for i in range(3):
            await ask(db, f"run-{i}")
            await db.trials.report(run_key(f"run-{i}"), DONE, now_s=2.0)
        bound = (await ask(db, "dear", now_s=3.0)).cost_bound
        assert bound is not None
        tell = partial(db.trials.report, run_key("dear"))
        assert (await tell(Result(energy_j=0.7 * bound, epochs=3), now_s=4.0)).stop is None
        assert (await tell(Result(energy_j=0.9 * bound), now_s=4.5)).stop is None
        assert "the bound of" in str((await tell(Result(energy_j=1.1 * bound), now_s=5.0)).stop)
        assert (await tell(Result(epochs=4), now_s=6.0)).stop is not None
        assert (await db.jobs.trial(run_key("dear"))).stop_ordered_at_s == 5.0
        over = await db.end(run_key("dear"), now_s=7.0, was_lost=True)
        assert over.state == "stopped"
        assert (await tell(Result(energy_j=2 * bound), now_s=8.0)).stop is None


async def test_a_run_stops_before_the_epoch_that_would_exceed_its_bound(url: str) -> None:
    async with open_repositories(url, LearningConfig(eta=1.0)) as db:
        await ask(db, "run")
        await db.trials.report(run_key("run"), DONE, now_s=2.0)
        bound = (await ask(db, "dear", now_s=3.0)).cost_bound
        assert bound is not None
        told = await db.trials.report(run_key("dear"), Result(energy_j=0.9 * bound, epochs=3), now_s=4.0)
        assert "with its next epoch" in str(told.stop)


async def test_a_run_beside_the_first_gets_its_bound_once_that_has_reached_its_target(url: str) -> None:
    async with open_repositories(url, LearningConfig(eta=1.0)) as db:
        await ask(db, "first")
        assert (await ask(db, "beside")).cost_bound is None
        tell = partial(db.trials.report, run_key("beside"))
        assert (
            await tell(Result(energy_j=1e3, epochs=1, gpu_model="A40", n_gpus=1), now_s=2.0)
        ).trial.cost_bound is None
        await db.trials.report(run_key("first"), replace(DONE, gpu_model="A40", n_gpus=1), now_s=3.0)
        assert (await tell(Result(energy_j=2e3), now_s=4.0)).trial.cost_bound is None  # within an epoch
        told = (await tell(Result(energy_j=2e3, epochs=2), now_s=5.0)).trial
        assert told.cost_bound is not None
        assert told.bound_gpu_model == "A40"
        assert (await tell(Result(energy_j=10 * told.cost_bound), now_s=6.0)).stop is not None


async def test_a_lease_is_renewed_by_what_is_heard_and_runs_out_in_silence(url: str) -> None:
    async with open_repositories(url, LearningConfig(lease_s=100.0)) as db:
        await ask(db, "run", now_s=0.0)
        await ask(db, "silent", now_s=0.0)
        await db.trials.renew_lease(run_key("run"), now_s=90.0)
        assert [trial.run for trial in await db.trials.expire_leases(now_s=150.0)] == ["silent"]
        assert await db.trials.expire_leases(now_s=150.0) == []
        assert (await db.jobs.trial(run_key("silent"))).state == "lost"
        assert (await ask(db, "retry", now_s=160.0)).recurrence == 1
        assert (await db.trials.report(run_key("silent"), DONE, now_s=200.0)).trial.state == "reached"


async def test_a_run_that_was_answered_without_the_database_is_recorded_once(url: str) -> None:
    async with open_repositories(url) as db:
        record = partial(db.trials.record_answer, run_key("run"), batch_sizes=SIZES, default_batch_size=32)
        choice = Choice(batch_size=32, reason="store_unavailable", detail="it was away")
        trial = await record(choice=choice, now_s=5.0)
        assert (trial.batch_size, trial.reason, trial.cost_bound) == (32, "store_unavailable", None)
        assert await record(choice=dataclasses.replace(choice, detail="again"), now_s=6.0) == trial
        with pytest.raises(RequestError, match="batch_size = 8"):
            await record(choice=dataclasses.replace(choice, batch_size=8), now_s=7.0)


async def test_the_list_of_jobs_counts_trials_by_their_states(url: str) -> None:
    async with open_repositories(url) as db:
        for i in range(4):
            await ask(db, f"run-{i}", now_s=float(i))
        await db.trials.report(run_key("run-0"), DONE, now_s=9.0)
        await db.end(run_key("run-1"), now_s=9.0)
        await ask(db, "run", job="alone", now_s=7.0)
        alone, job = await db.jobs.jobs()
        assert (alone.name, alone.n_trials, alone.n_in_flight, alone.best_batch_size) == ("alone", 1, 1, None)
        assert (job.n_trials, job.n_in_flight, job.n_ended, job.last_asked_at_s) == (4, 2, 1, 3.0)
        assert job.best_batch_size == 32, "the only one that has reached the target"


async def test_trials_come_in_pages_the_newest_first(url: str) -> None:
    async with open_repositories(url) as db:
        for i in range(5):
            await ask(db, f"run-{i}")
        pages = [await db.jobs.trials(job_key(), limit=2, before=before) for before in (None, 3, 1, 0)]
        assert [[trial.number for trial in page] for page in pages] == [[4, 3], [2, 1], [0], []]
        assert len(await db.jobs.trials(job_key(), before=1 << 53)) == 5
        for limit in (0, MAX_PAGE + 1):
            with pytest.raises(RequestError, match="limit"):
                await db.jobs.trials(job_key(), limit=limit)


async def test_the_posterior_says_what_the_next_question_will_be_answered(url: str) -> None:
    async with open_repositories(url) as db:
        await ask(db, "run")
        await db.trials.report(run_key("run"), DONE, now_s=2.0)
        posterior = await db.jobs.posterior(job_key())
        assert [belief.batch_size for belief in posterior.beliefs] == list(SIZES)
        trial = await ask(db, "next", now_s=3.0)
        chosen = posterior.next
        assert (trial.batch_size, trial.reason, trial.cost_bound) == (
            chosen.batch_size,
            chosen.reason,
            chosen.cost_bound,
        )


async def test_another_weight_of_energy_lifts_the_bounds_of_those_in_flight(url: str) -> None:
    async with open_repositories(url) as db:
        await ask(db, "run")
        await db.trials.report(run_key("run"), DONE, now_s=2.0)
        assert (await ask(db, "next", now_s=3.0)).cost_bound is not None
        await db.jobs.configure(job_key(), JobSettings(beta=3.0))
        assert (await db.jobs.trial(run_key("next"))).cost_bound is not None
        job = await db.jobs.configure(job_key(), JobSettings(eta=0.25, policy="zeus"))
        assert job == await db.jobs.job(job_key())
        assert job.settings == JobSettings(eta=0.25, policy="zeus")
        assert (await db.jobs.trial(run_key("next"))).cost_bound is None


async def test_what_is_not_there_is_unknown(url: str) -> None:
    async with open_repositories(url) as db:
        calls = (db.jobs.job, db.jobs.trials, db.jobs.posterior, db.jobs.export, db.jobs.forget)
        for call in (*calls, partial(db.jobs.configure, settings=JobSettings())):
            with pytest.raises(UnknownJobError, match="there is no job alice/nowhere"):
                await call(job_key("nowhere"))
        with pytest.raises(UnknownTrialError):
            await db.jobs.trial(run_key("run", "nowhere"))


NOW_S = 10 * DAY_S
LEASE_S = LearningConfig().lease_s


async def test_a_dead_run_that_a_clock_ahead_has_heard_of_is_released_after_its_lease(url: str) -> None:
    async with open_repositories(url) as db:
        await db.trials.get_or_create(run_key("run"), batch_sizes=(16, 32), default_batch_size=32, now_s=NOW_S)
        await db.trials.renew_lease(run_key("run"), now_s=NOW_S + DAY_S)
        assert await db.trials.expire_leases(now_s=NOW_S + 1.0) == []
        assert (await db.jobs.trial(run_key("run"))).heard_at_s == NOW_S + 1.0
        assert await db.trials.expire_leases(now_s=NOW_S + LEASE_S) == []
        (expired,) = await db.trials.expire_leases(now_s=NOW_S + LEASE_S + 2.0)
        assert (expired.run, expired.state) == ("run", "lost")


async def test_a_run_id_that_is_used_again_gets_the_same_size_and_why_nothing_is_learned(url: str) -> None:
    async with open_repositories(url) as db:
        first = await db.trials.get_or_create(run_key("run"), batch_sizes=(16, 32), default_batch_size=32, now_s=NOW_S)
        await db.trials.report(run_key("run"), Result(outcome="reached", epochs=5), now_s=NOW_S)
        soon, late = [
            await db.trials.get_or_create(
                run_key("run"), batch_sizes=(16, 32), default_batch_size=32, now_s=NOW_S + after_s
            )
            for after_s in (LEASE_S, LEASE_S + 1.0)
        ]
        assert (soon.batch_size, soon.reason) == (first.batch_size, first.reason)
        assert (late.batch_size, late.reason, late.number) == (first.batch_size, "run_has_ended", first.number)
        assert (await db.jobs.trial(run_key("run"))).reason == first.reason


async def test_a_run_becomes_one_of_the_batch_size_that_it_trains_with(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_repositories(url) as db:
        caplog.set_level(logging.INFO)
        for size, state in ((64, "open"), (64, "open"), (48, "lost"), (16, "lost")):
            await ask(db, "run")
            await db.trials.report(run_key("run"), trained=TrainedBatchSize(batch_size=size, n_ranks=1), now_s=2.0)
            trial = await db.jobs.trial(run_key("run"))
            assert (trial.batch_size, trial.state) == (64, state)
        ours = [record.levelname for record in caplog.records if record.name == "policies.service.trials.repository"]
        assert ours == ["INFO", "WARNING"]
        with pytest.raises(UnknownTrialError):
            await db.trials.report(run_key("nobody"), trained=TrainedBatchSize(batch_size=16), now_s=2.0)


async def test_a_bound_of_another_weight_of_energy_or_a_guessed_power_stops_nobody(url: str) -> None:
    async with open_repositories(url, LearningConfig(eta=0.5)) as db:
        await ask(db, "run-0")
        await db.trials.report(run_key("run-0"), DONE, now_s=2.0)
        trial = await ask(db, "run-1")
        assert (trial.cost_bound is not None, trial.bound_eta) == (True, 0.5)
        dear = Result(epochs=1, energy_j=1e6, duration_s=1e4)
        assert (await db.trials.report(run_key("run-1"), dear, now_s=3.0)).stop is None
        other = Repositories(db.store, LearningConfig(eta=1.0))
        assert (await other.trials.report(run_key("run-1"), dear, now_s=4.0)).stop is None
        told = await db.trials.report(run_key("run-1"), Result(max_power_w=100.0), now_s=5.0)
        assert told.stop is not None


async def test_a_job_that_cannot_be_computed_does_not_hide_the_others(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_repositories(url) as db:
        for job in ("bad", "good"):
            await ask(db, "run", job=job)
            await db.trials.report(run_key("run", job), DONE, now_s=2.0)

        def fragile(study: Study, settings: object) -> object:
            if study.observations[0].cost != pytest.approx(2000.0):
                raise FloatingPointError("overflow")
            return describe(study, settings)  # type: ignore[arg-type]  # as it was called

        best = (await db.jobs.jobs())[1].best_batch_size
        assert best is not None
        monkeypatch.setattr(learning, "describe", fragile)
        await db.trials.report(run_key("run", "bad"), Result(energy_j=9000.0), now_s=3.0)
        summaries = await db.jobs.jobs()
        assert [(one.name, one.best_batch_size) for one in summaries] == [
            ("bad", None),
            ("good", best),
        ]
        assert "bad: the posterior of its batch sizes cannot be computed: overflow" in caplog.text


async def test_two_users_jobs_of_one_name_are_two_jobs(url: str) -> None:
    async with open_repositories(url) as db:
        own, other = run_key("run"), RunKey("bob", "job", "run")
        for number, run in enumerate((own, other)):
            sizes = tuple(size << number for size in SIZES)
            await db.trials.get_or_create(run, batch_sizes=sizes, default_batch_size=sizes[1], now_s=1.0)
        await db.trials.report(own, DONE, now_s=2.0)
        assert [(job.key, job.n_ended, job.n_in_flight) for job in await db.jobs.jobs()] == [
            (("alice", "job"), 1, 0),
            (("bob", "job"), 0, 1),
        ]
        assert await db.jobs.with_name("job") == [("alice", "job"), ("bob", "job")]
        assert (await db.jobs.posterior(JobKey("bob", "job"))).n_observations == 0
        assert (await db.jobs.trial(other)).state == "open"
        await db.jobs.configure(job_key(), JobSettings(eta=1.0))
        assert (await db.jobs.job(JobKey("bob", "job"))).settings.eta is None
        (lost,) = await db.trials.expire_leases(now_s=1e6)
        assert lost.key == other
        await db.jobs.forget(job_key())
        assert [export.job.key for export in await db.jobs.export()] == [("bob", "job")]


async def test_a_flood_of_names_is_bounded_for_each_user(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "MAX_JOBS", 3)
    async with open_repositories(url) as db:
        for number in range(3):
            await ask(db, "run", job=f"job-{number}")
        with pytest.raises(TooManyJobsError, match="user alice has 3 jobs"):
            await ask(db, "run", job="one-more")
        assert (await ask(db, "other", job="job-0")).number == 1, "known jobs go on"
        other = RunKey("bob", "one-more", "run")
        assert (await db.trials.get_or_create(other, batch_sizes=SIZES, default_batch_size=32, now_s=1.0)).number == 0
