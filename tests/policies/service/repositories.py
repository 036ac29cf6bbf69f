"""Both repositories of one database, as the service has them."""

from functools import partial

from policies.service.config import LearningConfig
from policies.service.records import JobKey, Trial
from policies.service.store.store import Store
from policies.service.trials.jobs import JobRepository
from policies.service.trials.lifecycle import with_inferred_end
from policies.service.trials.repository import TrialRepository
from publishers.messages.topics import RunKey
from tests.fakes import USER


def job_key(name: str = "job") -> JobKey:
    """Return a job of the tests' user."""
    return JobKey(USER, name)


def run_key(run: str = "run", job: str = "job") -> RunKey:
    """Return a run of one of these jobs."""
    return RunKey(USER, job, run)


class Repositories:
    """The repository of trials, for runs, and that of jobs, for people."""

    def __init__(self, store: Store, learning: LearningConfig | None = None) -> None:
        self.store = store
        self.trials = TrialRepository(store, learning or LearningConfig())
        self.jobs = JobRepository(store, learning or LearningConfig())

    async def end(self, run: RunKey, *, now_s: float, was_lost: bool = False) -> Trial:
        """Return the trial of a run that is over, though nobody said how."""
        end = partial(with_inferred_end, was_lost=was_lost, now_s=now_s)
        return (await self.trials.report(run, end=end, now_s=now_s)).trial
