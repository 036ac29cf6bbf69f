"""A first run that times its batch sizes, on a real bus and database: the second one need not, and knows the costs."""

import asyncio
import threading
from collections import Counter
from pathlib import Path

import pytest

from gridchase import Publisher
from policies.service.app import store_url
from policies.service.records import Posterior, Trial
from policies.service.store.store import open_store
from tests.live.conftest import Mosquitto, eventually
from tests.live.policy.runs import BATCH_SIZES
from tests.live.policy.test_bus import JOB, config_of, runs_on, service, until_ended
from tests.policies.service.repositories import Repositories, job_key

pytestmark = pytest.mark.live


class OutOfMemoryError(RuntimeError):
    """Named as PyTorch's."""


class Gpu:
    """Takes 0.5 ms for an iteration, and 20 µs more for each sample."""

    def __init__(self, *, memory: int) -> None:
        self.calls: Counter[int] = Counter()
        self._memory = memory

    def train(self, size: int) -> None:
        if size > self._memory:
            raise OutOfMemoryError("CUDA out of memory")
        self.calls[size] += 1
        threading.Event().wait(0.0005 + 0.00002 * size)


def begin(url: str, run: str, gpu: Gpu, *, default: int) -> tuple[int, tuple[int, ...]]:
    """Ask and time as a training process does; return its batch size, and what it was asked to time."""
    with Publisher(job=JOB, run=run, broker=url, rank=0, world_size=1, gpus=[]) as publisher:
        batch_size = publisher.batch_size(BATCH_SIZES, default=default, probe=gpu.train)
        publisher.metric(0.9, reached=True)
        assert publisher.trial is not None
        return batch_size, publisher.trial.untimed


async def test_the_second_run_need_not_time_what_the_first_one_has(broker: Mosquitto, tmp_path: Path) -> None:
    config, gpu = config_of(broker.url), Gpu(memory=128)
    async with runs_on(broker.url) as runs, service(config, tmp_path):
        assert await asyncio.to_thread(begin, broker.url, "r1", gpu, default=32) == (32, tuple(BATCH_SIZES))
        assert set(gpu.calls) == set(BATCH_SIZES)
        runs.say_energy(JOB, "r1", epochs=4, energy_j=40_000.0, final=True)
        (trial,) = await until_ended(tmp_path, config, 1)
        gpu.calls.clear()
        _, untimed = await asyncio.to_thread(begin, broker.url, "r2", gpu, default=32)
        assert (untimed, gpu.calls) == ((), {})
        await eventually(lambda: runs.answers[JOB, "r2"])
        assert all(answer.untimed == [] for answer in runs.answers[JOB, "r2"])
        async with open_store(store_url(config, tmp_path), timeout_s=5.0) as store:
            _check_costs(trial, await Repositories(store, config.learning).jobs.posterior(job_key(JOB)))


def _check_costs(trial: Trial, posterior: Posterior) -> None:
    """Check that batch sizes that never ran are believed to cost what their times say."""
    assert trial.timing is not None
    times_s = {one.batch_size: one.iteration_time_s / one.batch_size for one in trial.timing.times}
    assert set(times_s) == set(BATCH_SIZES)
    first, *others = posterior.beliefs
    assert first.epoch_cost is not None
    assert first.epoch_cost_is_known
    for belief in others:
        assert not belief.epoch_cost_is_known
        assert belief.epoch_cost == pytest.approx(first.epoch_cost * times_s[belief.batch_size] / times_s[32], rel=0.02)


async def test_a_default_that_does_not_fit_is_found_before_the_training(broker: Mosquitto, tmp_path: Path) -> None:
    config, gpu = config_of(broker.url), Gpu(memory=64)
    async with runs_on(broker.url) as runs, service(config, tmp_path):
        batch_size, _ = await asyncio.to_thread(begin, broker.url, "r1", gpu, default=128)
        assert (batch_size, set(gpu.calls)) == (64, {32, 64})
        runs.say_energy(JOB, "r1", epochs=4, energy_j=40_000.0, final=True)
        (trial,) = await until_ended(tmp_path, config, 1)
        assert (trial.batch_size, trial.reason, trial.state) == (64, "too_large", "reached")
        async with open_store(store_url(config, tmp_path), timeout_s=5.0) as store:
            beliefs = (await Repositories(store, config.learning).jobs.posterior(job_key(JOB))).beliefs
        assert [(belief.n_reached, belief.is_pruned) for belief in beliefs] == [(0, False), (1, False), (0, True)]
