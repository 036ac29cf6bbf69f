"""The rest of the machine in the plan: what a slow GPU costs beside itself."""

from pathlib import Path

import pytest

from tests.scenarios.site import PRIOR_W, Site, Training, prior_gpu

SWEEP_S = 2_000.0


@pytest.mark.parametrize(("host_power_w", "limit_w"), [(0, 100.0), (1_000, PRIOR_W)])
async def test_a_machine_that_draws_much_is_not_kept_waiting_by_a_slow_gpu(
    tmp_path: Path, host_power_w: float, limit_w: float
) -> None:
    # An iteration costs (0.9 p + host) / p^0.3: it would be least at 0 W without a host, at 476 W with one of 1000 W.
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], "plan.max_slowdown=2", f"energy.host_power_w={host_power_w}")
    async with site.controlled():
        await Training(site).train(SWEEP_S)
        assert site.profiles()[-1].state == "planned"
        assert gpu.requested_power_limit_w == limit_w
