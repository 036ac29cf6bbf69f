"""One contract for both databases: what the db promises to any number of processes at once."""

from contextlib import AsyncExitStack
from functools import partial

import pytest

from policies.batch_size import Choice, Study
from policies.service.config import LearningConfig
from policies.service.errors import RequestError
from policies.service.records import Job, Result
from policies.service.store.store import Store, open_store
from policies.service.trials.learning import BatchSizeLearning
from policies.service.trials.repository import CLAIM_S
from tests.live.policy.postgres import postgres_server
from tests.live.policy.repositories import DONE, TIMEOUT_S, ask, at_once, claim, open_repositories, url
from tests.policies.service.repositories import Repositories, job_key, run_key

__all__ = ["postgres_server", "url"]
pytestmark = pytest.mark.live


class RecordingLearning(BatchSizeLearning):
    """Records how many runs in flight it knew of when it chose."""

    def __init__(self) -> None:
        super().__init__(LearningConfig())
        self.known: list[int] = []

    def choose(self, job: Job, study: Study, number: int) -> Choice:
        self.known.append(len(study.in_flight))
        return super().choose(job, study, number)


class RecordingRepositories(Repositories):
    """Repositories whose learning records."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.learning = self.trials._learning = RecordingLearning()


async def test_fifty_requests_at_once_get_fifty_trials_that_know_those_before_them(url: str) -> None:
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(open_store(url, timeout_s=TIMEOUT_S)) for _ in range(4)]
        dbs = [RecordingRepositories(store) for store in stores]
        trials = await at_once([partial(ask, dbs[i % 4], f"run-{i}") for i in range(50)])
        assert sorted(trial.number for trial in trials) == list(range(50))
        assert sorted(trial.recurrence for trial in trials) == list(range(50))
        assert {known for db in dbs for known in db.learning.known} == set(range(50))  # a choice may be made anew
        assert {trial.run for trial in await dbs[0].jobs.trials(job_key())} == {f"run-{i}" for i in range(50)}


async def test_one_run_that_asks_many_times_at_once_has_one_trial(url: str) -> None:
    async with open_repositories(url) as one, open_repositories(url) as two:
        trials = await at_once([partial(ask, db, "run") for db in (one, two) for _ in range(10)])
        assert len(trials) == 20
        assert all(trial == trials[0] for trial in trials)
        assert len(await one.jobs.trials(job_key())) == 1


async def test_a_result_that_is_told_by_many_counts_once(url: str) -> None:
    async with AsyncExitStack() as stack:
        dbs = [await stack.enter_async_context(open_repositories(url)) for _ in range(3)]
        await ask(dbs[0], "run")
        told = await at_once([partial(db.trials.report, run_key("run"), DONE, now_s=9.0) for db in dbs * 4])
        assert all(one.trial.state == "reached" for one in told)
        (summary,) = await dbs[0].jobs.jobs()
        assert (summary.n_trials, summary.n_ended, summary.n_in_flight) == (1, 1, 0)
        assert (await dbs[0].jobs.posterior(job_key())).n_observations == 1


async def test_pieces_that_are_told_at_once_are_all_kept(url: str) -> None:
    pieces = [
        Result(energy_j=5.0),
        Result(duration_s=6.0),
        Result(max_power_w=7.0),
        Result(gpu_model="A40"),
        Result(n_gpus=8),
        Result(carbon_g=9.0),
    ]
    async with open_repositories(url) as one, open_repositories(url) as two:
        await ask(one, "run")
        await at_once(
            [
                partial((one, two)[i % 2].trials.report, run_key("run"), piece, now_s=2.0)
                for i, piece in enumerate(pieces)
            ]
        )
        whole = Result(energy_j=5.0, duration_s=6.0, max_power_w=7.0, gpu_model="A40", n_gpus=8, carbon_g=9.0)
        assert (await one.jobs.trial(run_key("run"))).result == whole


async def test_of_all_that_claim_a_request_one_answers_it(url: str) -> None:
    async with open_repositories(url) as one, open_repositories(url) as two:
        claims = await at_once([partial(claim, db, "request", now_s=1.0) for db in (one, two) for _ in range(10)])
        assert [found.is_first for found in claims].count(True) == 1
        assert all(found.is_first == (found.trial is not None) for found in claims)
        await two.trials.expire_leases(now_s=CLAIM_S)
        assert not (await claim(one, "request", now_s=CLAIM_S)).is_first
        await two.trials.expire_leases(now_s=1.0 + CLAIM_S)
        assert (await claim(one, "request", now_s=2.0 + CLAIM_S)).is_first


async def test_an_invalid_request_is_refused_by_the_one_that_claims_it(url: str) -> None:
    async with open_repositories(url) as one, open_repositories(url) as two:
        refused = partial(claim, correlation="request", batch_sizes=(), now_s=1.0)
        with pytest.raises(RequestError):
            await refused(one)
        assert not (await refused(two)).is_first
        with pytest.raises(RequestError):
            await refused(two, insists=True)


async def test_many_leases_that_run_out_at_once_are_each_expired_once(url: str) -> None:
    async with open_repositories(url) as one, open_repositories(url) as two:
        await at_once([partial(ask, one, f"run-{i}", job=f"job-{i % 7}") for i in range(70)])
        expired = await at_once([partial(db.trials.expire_leases, now_s=1e6) for db in (one, two, one, two)])
        assert sorted(f"{trial.job}/{trial.run}" for some in expired for trial in some) == sorted(
            f"job-{i % 7}/run-{i}" for i in range(70)
        )
