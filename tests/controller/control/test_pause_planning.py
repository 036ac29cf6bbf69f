"""A plan that has its run wait: for a part of a period, without looks meanwhile, and anew where it may not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from controller.config import PlanConfig
from controller.control.limit_control import LimitControl
from controller.control.plan import PlanInputs
from controller.ports import Provenance, Target
from controller.runtime.clock import Now
from policies.planning import Progress, SlackOptions
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import HOUR_S
from tests.controller.control.control_bench import FULL, begin, decide, limit_control
from tests.controller.runs.test_pools import Workers
from tests.fakes import MIDNIGHT_S, flat_signal

DEADLINE = PlanConfig(objective="deadline", deadline="24h", may_pause=True)
MAY_PAUSE = SlackOptions(idle_power_w=50.0, max_pause_s=12 * HOUR_S)
DEAR_UNTIL_H = 4


def prices(*, unit: str = "EUR/kWh") -> Signal:
    """Return prices that are high until four o'clock, and known for two days."""
    plain = flat_signal(0.1)
    values = np.where(plain.starts_s < MIDNIGHT_S + DEAR_UNTIL_H * HOUR_S, 0.6, 0.1)
    return replace(plain, kind="price" if unit.endswith("R/kWh") else "average", unit=unit, values=values)


def planned(
    run: LimitControl,
    at_s: float,
    *,
    slack: SlackOptions | None = MAY_PAUSE,
    unit: str = "EUR/kWh",
    work_h: float = 8,
    limit_h: float | None = None,
) -> Target:
    """Return what a run that has not begun, and has a day for so many hours of work, is to do at a time."""
    now_s, signal = MIDNIGHT_S + at_s, prices(unit=unit)
    inputs = PlanInputs(
        now_s=now_s,
        history=signal.between(-np.inf, now_s + 900.0),
        forecast=signal.between(now_s + 900.0, np.inf),
        progress=Progress(
            n_iterations=0.0,
            active_s=0.0,
            started_at_s=MIDNIGHT_S,
            total_iterations=work_h * HOUR_S * FULL.fastest.iterations_per_s,
            asked_pause_s=at_s,
        ),
        provenance=Provenance(source="test"),
        slack=slack,
        time_limit_s=None if limit_h is None else MIDNIGHT_S + limit_h * HOUR_S,
    )
    target = decide(run, inputs).target
    assert target is not None
    return target


@pytest.fixture
def run() -> LimitControl:
    return begin(limit_control(plan=DEADLINE), known=FULL)


def test_it_says_until_when_and_why_in_the_words_of_the_signal(run: LimitControl) -> None:
    target = planned(run, 0.0)
    assert (target.reason, target.pause_why) == (
        "paused_in_bad_hours",
        "until about 04:00 UTC: electricity is cheaper later",
    )
    assert target.detail.startswith(f"paused {target.pause_why}; 0.6 EUR/kWh now, 0.1 to 0.6 later")
    grams = planned(begin(limit_control(plan=DEADLINE), known=FULL), 0.0, unit="g/kWh")
    assert "the grid is cleaner later" in grams.pause_why


def test_a_pause_ends_within_its_period(run: LimitControl) -> None:
    slack = replace(MAY_PAUSE, max_pause_s=2 * HOUR_S, paused_for_s=2 * HOUR_S - 100.0)
    assert planned(run, 0.0, slack=slack).pause_why
    assert planned(run, 99.0, slack=slack).pause_why
    after = planned(run, 101.0, slack=slack)
    assert (after.pause_why, after.reason) == ("", "deadline_signal")


def test_what_may_not_wait_is_planned_anew_at_once(run: LimitControl) -> None:
    assert planned(run, 0.0).pause_why
    run.drop_pause()
    after = planned(run, 1.0, slack=replace(MAY_PAUSE, idle_power_w=None))
    assert after.pause_why == ""


def test_nothing_waits_without_leave(run: LimitControl) -> None:
    assert planned(run, 0.0, slack=None).reason == "deadline_signal"
    assert planned(begin(limit_control(plan=DEADLINE)), 0.0).reason == "profiling"


@pytest.mark.parametrize(("n", "may_wait"), [(1, True), (2, False)])
async def test_processes_that_share_a_gpu_are_planned_without_pauses(tmp_path: Path, n: int, may_wait: bool) -> None:
    """They cannot be asked, and a plan that waits for them would ask for ever."""
    workers = Workers(tmp_path, n)
    async with workers.bench.working():
        for k in range(n):
            await workers.begin(k, pausable=True, max_pause_s=2 * HOUR_S)
        leader = workers.bench.training_run(run="w0")._leader
        leader._may_pause = True
        begin(leader.limits, known=FULL)
        slack = leader._slack(Provenance(source="test"), Now(MIDNIGHT_S, 0))
        assert slack is not None
        assert (slack.idle_power_w is not None) == may_wait


def test_no_look_begins_while_it_waits(run: LimitControl) -> None:
    for second in range(0, 1_500, 10):
        assert planned(run, float(second)).pause_why
    assert not run.ledger.is_looking


def test_the_schedulers_time_limit_is_a_deadline_too(run: LimitControl) -> None:
    assert "until the deadline" in planned(run, 0.0, work_h=6, limit_h=6.05).detail
    assert planned(run, 0.0, work_h=6, limit_h=6.05).pause_why == ""
    run.drop_pause()
    later = planned(begin(limit_control(plan=DEADLINE), known=FULL), 0.0, work_h=6, limit_h=48)
    assert later.pause_why, "the deadline is a day"
