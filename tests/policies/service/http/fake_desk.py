"""A desk in memory, for tests of what stands in front of it: jobs and trials as the real one has them, no learning."""

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from policies.batch_size.study import Choice
from policies.service.errors import (
    JobMismatchError,
    RequestError,
    TrialConflictError,
    UnknownJobError,
    UnknownTrialError,
)
from policies.service.records import (
    ENDED,
    IN_FLIGHT,
    ImportCounts,
    Job,
    JobExport,
    JobSettings,
    JobSummary,
    Posterior,
    Result,
    Timing,
    Trial,
    TrialUpdate,
)


class FakeDesk:
    """Gives every run the default of its job.

    Attributes:
        failure: raised by whatever is asked, where it is set.
        opened: while it is cleared, nobody gets an answer.
        n_asked: how many have come so far.
        stop: what `tell` answers.
    """

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.opened = asyncio.Event()
        self.opened.set()
        self.n_asked = 0
        self.stop: str | None = None
        self._jobs: dict[str, Job] = {}
        self._trials: dict[str, dict[str, Trial]] = {}

    async def check(self) -> None:
        """Fail as told, or not."""
        await self._reached()

    async def ask(
        self, job: str, run: str, *, batch_sizes: Sequence[int], default_batch_size: int, now_s: float
    ) -> Trial:
        """Return the trial of a run."""
        await self._reached()
        sizes = tuple(sorted(set(batch_sizes)))
        faults = ["batch_sizes: each once"] * (len(sizes) < len(batch_sizes))
        faults += [f"default_batch_size = {default_batch_size}: no candidate"] * (default_batch_size not in sizes)
        if faults:
            raise RequestError(faults)
        new = Job(name=job, batch_sizes=sizes, default_batch_size=default_batch_size, created_at_s=now_s)
        known = self._jobs.setdefault(job, new)
        if (known.batch_sizes, known.default_batch_size) != (sizes, default_batch_size):
            raise JobMismatchError(f"job {job} has batch sizes {list(known.batch_sizes)}: take another name")
        trials = self._trials.setdefault(job, {})
        trial = Trial(
            job=job,
            run=run,
            recurrence=len(trials),
            batch_size=default_batch_size,
            state="open",
            reason="default_first",
            detail="nothing is known yet",
            requested_at_s=now_s,
            heard_at_s=now_s,
            lease_s=600.0,
            number=len(trials),
        )
        return trials.setdefault(run, trial)

    async def tell(self, job: str, run: str, result: Result, *, now_s: float) -> TrialUpdate:
        """Take in a result."""
        trial = await self.trial(job, run)
        if trial.state in ENDED and result.outcome not in {None, trial.state}:
            raise TrialConflictError(f"run {run} has {trial.state} already")
        if trial.state not in ENDED:
            trial = replace(trial, state=result.outcome or "running", result=result, heard_at_s=now_s)
        self._trials[job][run] = trial
        return TrialUpdate(trial=trial, stop=self.stop)

    async def time(self, job: str, run: str, timing: Timing, *, now_s: float) -> Trial:
        """Take in what a run has timed."""
        trial = await self.trial(job, run)
        if timing.batch_size is not None and timing.too_large is None:
            raise RequestError(["batch_size: only with too_large"])
        self._trials[job][run] = replace(trial, timing=timing, heard_at_s=now_s)
        return self._trials[job][run]

    async def jobs(self) -> list[JobSummary]:
        """Return all jobs."""
        await self._reached()
        return [
            JobSummary(
                name=name,
                batch_sizes=job.batch_sizes,
                default_batch_size=job.default_batch_size,
                n_trials=len(trials := self._trials[name].values()),
                n_in_flight=sum(trial.state in IN_FLIGHT for trial in trials),
                n_ended=sum(trial.state in ENDED for trial in trials),
            )
            for name, job in sorted(self._jobs.items())
        ]

    async def job(self, name: str) -> Job:
        """Return a job."""
        await self._reached()
        if name not in self._jobs:
            raise UnknownJobError(f"there is no job {name}")
        return self._jobs[name]

    async def trials(self, name: str, *, limit: int = 100, before: int | None = None) -> list[Trial]:
        """Return a job's trials, newest first."""
        await self.job(name)
        found = [trial for trial in self._trials[name].values() if before is None or trial.number < before]
        return sorted(found, key=lambda trial: -trial.number)[:limit]

    async def trial(self, name: str, run: str) -> Trial:
        """Return the trial of a run."""
        await self.job(name)
        if run not in self._trials[name]:
            raise UnknownTrialError(f"job {name} has no run {run}")
        return self._trials[name][run]

    async def posterior(self, name: str) -> Posterior:
        """Return nothing but the default as the next choice."""
        job = await self.job(name)
        choice = Choice(batch_size=job.default_batch_size, reason="default_first", detail="nothing is known yet")
        return Posterior(job=name, policy="gridchase", eta=0.5, n_observations=0, beliefs=(), next=choice)

    async def configure(self, name: str, settings: JobSettings) -> Job:
        """Replace a job's settings."""
        self._jobs[name] = replace(await self.job(name), settings=settings)
        return self._jobs[name]

    async def export(self, name: str | None = None) -> list[JobExport]:
        """Return a job, or all, with their trials."""
        names = sorted(self._jobs) if name is None else [(await self.job(name)).name]
        return [JobExport(job=self._jobs[one], trials=tuple(self._trials[one].values())) for one in names]

    async def import_(self, exports: Sequence[JobExport], *, now_s: float) -> ImportCounts:
        """Take in jobs that are new."""
        del now_s
        await self._reached()
        new = [one for one in exports if one.job.name not in self._jobs]
        for one in new:
            self._jobs[one.job.name] = one.job
            self._trials[one.job.name] = {trial.run: trial for trial in one.trials}
        n_trials = sum(len(one.trials) for one in new)
        n_known = sum(len(one.trials) for one in exports) - n_trials
        return ImportCounts(
            n_jobs=len(new), n_trials=n_trials, n_known_jobs=len(exports) - len(new), n_known_trials=n_known
        )

    async def forget(self, name: str) -> None:
        """Drop a job."""
        await self.job(name)
        del self._jobs[name], self._trials[name]

    async def _reached(self) -> None:
        self.n_asked += 1
        await self.opened.wait()
        if self.failure is not None:
            raise self.failure
