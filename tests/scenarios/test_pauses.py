"""A run that waits because it was asked to: its hold stays, its record is honest about the time and the energy."""

import asyncio
from pathlib import Path

import pytest

from tests.fakes import FakeGpu
from tests.scenarios.site import PRIOR_W, Site, Training, prior_gpu

IDLE_W = 50.0
TRAINED_S = 4_300.0
"""No look is under way then."""
"""No look at the prior limit is under way then."""
LEASE_S = 60.0


class PausedTraining(Training):
    """A training that can be asked to wait."""

    async def wait(self, duration_s: float) -> None:
        """Wait between two iterations, and say so."""
        self.flush()
        gpu, draw_w = self.gpus[0], self.gpus[0].draw_w
        gpu.draw_w = lambda _: IDLE_W
        self.say(pausable=True, max_pause_s=3_600.0, paused_since_ns=self._clock.monotonic_ns())
        await self.pause(duration_s)
        self.say(pausable=True, max_pause_s=3_600.0, paused_since_ns=None, paused_s=duration_s)
        gpu.draw_w = draw_w


async def trained(state_dir: Path, gpu: FakeGpu, *, wait_s: float, is_asked: bool = True) -> Site:
    """Return a site on which a run has trained, waited, and trained again, the record published."""
    site = Site(state_dir, [gpu])
    async with site.controlled():
        training = PausedTraining(site)
        await training.train(TRAINED_S)
        limit_w, waits_s = gpu.requested_power_limit_w, site.clock.now_s()
        if is_asked:
            await training.wait(wait_s)
        else:
            training.flush()
            training.say(in_pause=True)
            draw_w, gpu.draw_w = gpu.draw_w, lambda _: IDLE_W
            await training.pause(wait_s)
            gpu.draw_w = draw_w
            training.say(in_pause=False)
        limits_w = [limit_w, *(other_w for time_s, other_w in gpu.history if time_s >= waits_s)]
        assert max(limits_w) < PRIOR_W, "the hold stays, with the limits of its plan"
        await training.train(TRAINED_S)
        training.publish_status("finished")
        await asyncio.sleep(600)
    assert gpu.requested_power_limit_w == PRIOR_W
    return site


async def test_a_pause_that_was_asked_for_outlasts_the_lease_and_counts_as_slowdown(tmp_path: Path) -> None:
    wait_s = 10 * LEASE_S
    asked = (await trained(tmp_path / "asked", prior_gpu(), wait_s=wait_s)).energies()[-1]
    own = (await trained(tmp_path / "own", prior_gpu(), wait_s=wait_s, is_asked=False)).energies()[-1]
    assert (asked.state, asked.final, own.paused_s) == ("finished", True, None)
    assert asked.paused_s == pytest.approx(wait_s, abs=25)
    assert asked.duration_s == pytest.approx(own.duration_s, rel=1e-3)
    assert asked.energy_j == pytest.approx(own.energy_j, rel=1e-3)
    assert own.baseline_duration_s is not None
    assert asked.baseline_duration_s == pytest.approx(own.baseline_duration_s - wait_s, abs=25)
    assert own.baseline_energy_j is not None
    assert asked.baseline_energy_j == pytest.approx(own.baseline_energy_j - wait_s * IDLE_W, rel=5e-3)
    assert own.slowdown_ratio is not None
    assert asked.baseline_duration_s is not None
    slowdown_ratio = asked.duration_s / asked.baseline_duration_s
    assert asked.slowdown_ratio == pytest.approx(slowdown_ratio, rel=1e-3)
    assert slowdown_ratio > own.slowdown_ratio
