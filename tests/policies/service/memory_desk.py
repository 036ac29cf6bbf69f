"""A desk in memory, with the true life of a trial, whose database can be away or slow; and news and messages for it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from policies.batch_size import Choice
from policies.service.errors import StoreUnavailableError, UnknownTrialError
from policies.service.trials import lifecycle as trials
from policies.service.trials.lifecycle import reconcile_batch_size
from policies.service.trials.records import Result, Timing, Trial, TrialUpdate
from publishers.messages.reports import RunEnergy
from publishers.messages.topics import Topics
from publishers.messages.training import RankStatus, TrialRequest
from tests.fakes import MIDNIGHT_S

NOW_S = MIDNIGHT_S
TOPICS = Topics()
LEASE_S = 600.0


class MemoryDesk:
    """The trials of one process.

    Attributes:
        trials: by job and run.
        calls: what was asked of it, in its order.
        is_away: whether every call fails.
        delay_s: how long each takes.
        error: what every call raises, if anything.
        stop: what `tell` says of a run that goes on.
    """

    def __init__(self, *, chosen: int = 64) -> None:
        self.trials: dict[tuple[str, str], Trial] = {}
        self.calls: list[str] = []
        self.is_away = False
        self.delay_s = 0.0
        self.error: Exception | None = None
        self.stop: str | None = None
        self._chosen = chosen
        self._claimed: set[str] = set()

    async def ask(
        self, job: str, run: str, *, batch_sizes: Sequence[int], default_batch_size: int, now_s: float
    ) -> Trial:
        await self._called("ask")
        assert default_batch_size in batch_sizes
        return self._opened(job, run, Choice(batch_size=self._chosen, reason="thompson", detail="chosen"), now_s)

    async def adopt(
        self,
        job: str,
        run: str,
        *,
        batch_sizes: Sequence[int],
        default_batch_size: int,
        batch_size: int,
        reason: str,
        detail: str,
        now_s: float,
    ) -> Trial:
        await self._called("adopt")
        assert default_batch_size in batch_sizes
        choice = Choice(batch_size=batch_size, reason=reason, detail=detail)
        self.trials[job, run] = trials.adopted(self._opened(job, run, choice, now_s), choice)
        return self.trials[job, run]

    async def claim(self, correlation: str, *, now_s: float) -> bool:
        del now_s
        await self._called("claim")
        is_first = correlation not in self._claimed
        self._claimed.add(correlation)
        return is_first

    async def tell(self, job: str, run: str, result: Result, *, now_s: float) -> TrialUpdate:
        await self._called("tell")
        trial = trials.told(self._trial(job, run), result, now_s)
        self.trials[job, run] = trial
        return TrialUpdate(trial=trial, stop=self.stop)

    async def hear(self, job: str, run: str, *, now_s: float) -> bool:
        await self._called("hear")
        if (job, run) not in self.trials:
            return False
        self.trials[job, run] = trials.heard(self.trials[job, run], now_s)
        return True

    async def note_metric(self, job: str, run: str, *, epoch: int, value: float, reached: bool, now_s: float) -> bool:
        await self._called("note_metric")
        if (job, run) not in self.trials:
            return False
        self.trials[job, run] = trials.measured(
            self.trials[job, run], epoch=epoch, value=value, reached=reached, now_s=now_s
        )
        return True

    async def time(self, job: str, run: str, timing: Timing, *, now_s: float) -> Trial:
        await self._called("time")
        self.trials[job, run] = trials.timed(self._trial(job, run), timing, now_s)
        return self.trials[job, run]

    async def correct(self, job: str, run: str, *, batch_size: int, n_ranks: int | None, now_s: float) -> None:
        await self._called("correct")
        self.trials[job, run] = reconcile_batch_size(
            self._trial(job, run), batch_size, batch_sizes=(32, 64, 128), n_ranks=n_ranks, now_s=now_s
        )

    async def end(self, job: str, run: str, *, now_s: float, was_lost: bool = False) -> Trial | None:
        await self._called("end")
        if (job, run) not in self.trials:
            return None
        self.trials[job, run] = trials.ended(self.trials[job, run], was_lost=was_lost, now_s=now_s)
        return self.trials[job, run]

    async def expire(self, *, now_s: float) -> list[Trial]:
        await self._called("expire")
        expired = [trial for trial in self.trials.values() if trials.is_expired(trial, now_s)]
        lost = [trials.ended(trial, was_lost=True, now_s=now_s) for trial in expired]
        self.trials.update({(trial.job, trial.run): trial for trial in lost})
        return lost

    def open(self, job: str = "resnet50", run: str = "r1") -> None:
        """Have a trial of a run, as after it has asked."""
        self._opened(job, run, Choice(batch_size=self._chosen, reason="thompson", detail="chosen"), NOW_S)

    def state(self, job: str = "resnet50", run: str = "r1") -> str:
        """Return how a run stands."""
        return self.trials[job, run].state

    async def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self.error is not None:
            raise self.error
        if self.is_away:
            raise StoreUnavailableError("the database does not answer")

    def _trial(self, job: str, run: str) -> Trial:
        if (job, run) not in self.trials:
            raise UnknownTrialError(f"there is no trial of {run}")
        return self.trials[job, run]

    def _opened(self, job: str, run: str, choice: Choice, now_s: float) -> Trial:
        return self.trials.setdefault(
            (job, run),
            trials.opened(job=job, run=run, number=0, recurrence=0, choice=choice, lease_s=LEASE_S, now_s=now_s),
        )


_REQUEST = TrialRequest(
    run="r1",
    reply_to=TOPICS.run("resnet50", "r1", "trial/answer"),
    correlation="c1",
    batch_sizes=[32, 64, 128],
    default_batch_size=32,
)
_ENERGY = RunEnergy(
    run="r1",
    state="running",
    gpu_model="NVIDIA A40",
    n_gpus=2,
    iterations=1_000,
    epochs=4,
    duration_s=100.0,
    energy_j=40_000.0,
    max_power_w=600.0,
)
_STATUS = RankStatus(
    run="r1",
    state="running",
    host="node-a",
    boot_id="boot",
    pid=1,
    gpus=[0],
    world_size=1,
    started_at_s=NOW_S,
    heartbeat_s=10.0,
)


def trial_request(**changes: Any) -> TrialRequest:  # noqa: ANN401 — the record checks them
    """Return a question for a batch size."""
    return msgspec.structs.replace(_REQUEST, **changes)


def run_energy(**changes: Any) -> RunEnergy:  # noqa: ANN401 — the record checks them
    """Return the energy of a run that goes on."""
    return msgspec.structs.replace(_ENERGY, **changes)


def final_energy(**changes: Any) -> RunEnergy:  # noqa: ANN401 — the record checks them
    """Return the energy of a run that has finished."""
    return run_energy(**{"state": "finished", "final": True, **changes})


def rank_status(**changes: Any) -> RankStatus:  # noqa: ANN401 — the record checks them
    """Return the status of rank 0."""
    return msgspec.structs.replace(_STATUS, **changes)


async def inline(work: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 — what the function returns
    """Call a function that blocks here and now: on virtual time there are no threads."""
    return work(*arguments)
