"""Four GPUs of a run wait for one that is 8 % slower: the others get lower limits, and the run is as fast as before."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tests.fakes import FakeGpu
from tests.scenarios.site import POWER_RATIO, PRIOR_W, Site, Training, energy_j, prior_gpu, rate_per_s

SPEEDS_RATIO = (1.0, 1.0, 0.92, 1.0)
NOISE_RATIO = 0.005
QUICK = ("profiler.settle_s=6", "profiler.window_s=30", "plan.objective=eta", "plan.eta=0.35")
"""A plan that stays at one limit."""


def waiting_rate(gpus: Sequence[FakeGpu], *, seed: int) -> Callable[[float], float]:
    """Return a rate [1/s] that is the slowest GPU's at the limit that it has, with noise."""
    rng = np.random.default_rng(seed)

    def rate_of_all_per_s(_: float) -> float:
        slowest_per_s = min(
            ratio * rate_per_s(gpu.requested_power_limit_w) for ratio, gpu in zip(SPEEDS_RATIO, gpus, strict=True)
        )
        return slowest_per_s * (1 + NOISE_RATIO * float(rng.standard_normal()))

    return rate_of_all_per_s


async def test_what_the_others_do_not_need_is_saved_and_the_run_is_as_fast(tmp_path: Path) -> None:
    site = Site(tmp_path, [prior_gpu(f"GPU-{n}", n) for n in range(4)], *QUICK, "plan.share_slack=true")
    training = Training(site, site.gpus, rate=waiting_rate(site.gpus, seed=1))
    async with site.controlled():
        await training.train(3_600)
        n_before, begin_s = training.n_iterations, site.clock.now_s()
        await training.train(900)
        n_iterations, duration_s = training.n_iterations - n_before, site.clock.now_s() - begin_s
        limits_w = [gpu.requested_power_limit_w for gpu in site.gpus]
        used_j = sum(energy_j(gpu, begin_s, site.clock.now_s()) for gpu in site.gpus)
        lowered = [site.limits(gpu)[-1].reason == "slack_shared" for gpu in site.gpus]
    assert [gpu.requested_power_limit_w for gpu in site.gpus] == [PRIOR_W] * 4, "all are given back"
    assert lowered == [True, True, False, True]
    plan_w = max(limits_w)
    assert limits_w.index(plan_w) == SPEEDS_RATIO.index(0.92), "the straggler alone keeps the run's limit"
    expected_per_s = 0.92 * rate_per_s(plan_w)
    assert n_iterations / duration_s > (1 - 0.006) * expected_per_s, "no slower than 0.5 %, and noise"
    saved_ratio = 1 - used_j / (4 * POWER_RATIO * plan_w * duration_s)
    assert saved_ratio > 0.1, "three of four GPUs may have 24 % less"


async def test_without_the_option_all_gpus_keep_the_runs_limit(tmp_path: Path) -> None:
    site = Site(tmp_path, [prior_gpu(f"GPU-{n}", n) for n in range(4)], *QUICK)
    training = Training(site, site.gpus, rate=waiting_rate(site.gpus, seed=1))
    async with site.controlled():
        await training.train(1_200)
        assert len({gpu.requested_power_limit_w for gpu in site.gpus}) == 1
