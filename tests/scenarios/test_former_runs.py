"""What a controller does by the runs that it, or the one before it, remembers."""

import asyncio
from pathlib import Path

from controller.history.run_history import JobKey, RunHistory
from tests.controller.history.outcomes import outcome
from tests.fakes import USER
from tests.scenarios.site import Site, Training, prior_gpu

KEY = JobKey(USER, "resnet50")


def remember(state_dir: Path, n_runs: int, **changes: object) -> None:
    """Let a former controller have led runs, one after the other."""
    with RunHistory(state_dir) as history:
        for number in range(n_runs):
            history.begin(KEY, f"former-{number}")
            history.end(KEY, outcome(f"former-{number}", **changes))


async def test_how_long_former_runs_were_is_planned_by(tmp_path: Path) -> None:
    gpu = prior_gpu()
    remember(tmp_path, 3, batch_size=256, n_iterations=500.0)
    site = Site(tmp_path, [gpu])
    async with site.controlled():
        training = Training(site)
        await training.train(900.0)
        training.publish_status("finished")
        await asyncio.sleep(60)
    details = [change.detail for change in site.limits(gpu) if change.reason.startswith(("slowdown", "behind"))]
    assert details
    assert all("as guessed from 3 former runs" in detail for detail in details)
    with RunHistory(tmp_path) as history:
        *_, ended = history.ended(KEY)
    assert (ended.run, ended.number, ended.n_iterations) == ("run-1", 3, training.n_iterations)
