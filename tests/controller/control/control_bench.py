"""Steering on the bench: a run that trains, second by second, at whatever limit is asked for."""

import math
from collections.abc import Callable

from controller.accounting.meter_intervals import MeterInterval
from controller.config import EnergyConfig, PlanConfig, ProfilerConfig
from controller.control.curve_learning import CurveUpdate
from controller.control.limit_control import CurveStart, DecisionInputs, LimitControl, LimitDecision
from controller.control.plan import PlanInputs
from controller.ports import Provenance, Target
from policies.planning import Progress
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.signal import Signal
from tests.controller.messages import ns
from tests.fakes import MIDNIGHT_S

FULL = PowerProfile.from_rows([(200.0, 190.0, 0.98), (240.0, 225.0, 0.99), (300.0, 280.0, 1.0)])
LADDER_W = [300.0, 240.0, 200.0]


def limit_control(
    *,
    run: str = "r1",
    plan: PlanConfig | None = None,
    energy: EnergyConfig | None = None,
    n_blocks: int = 0,
    may_look: bool = True,
    window_s: float = 10.0,
) -> LimitControl:
    """Return the control of a run that measures each limit for `window_s` after 2 s, and then `n_blocks` of 4 s."""
    profiler = ProfilerConfig(settle_s=2.0, window_s=window_s, block_s=4.0, n_blocks=n_blocks)
    rules = (plan or PlanConfig()).rules_of("resnet50")
    return LimitControl(
        job="resnet50", run=run, profiler=profiler, rules=rules, energy=energy or EnergyConfig(), may_look=may_look
    )


def begin(run: LimitControl, known: PowerProfile | None = None, prior: PowerProfile | None = None) -> LimitControl:
    """Let it begin between 200 and 300 W."""
    run.begin(CurveStart(floor_power_limit_w=200.0, ceiling_power_limit_w=300.0, known=known, prior=prior))
    return run


def plan_inputs(
    *,
    at_s: float = 0.0,
    history: Signal | None = None,
    provenance: Provenance | None = None,
    progress: Progress | None = None,
) -> PlanInputs:
    """Return what a plan rests on at a time."""
    return PlanInputs(
        now_s=MIDNIGHT_S + at_s,
        history=history,
        forecast=None,
        progress=progress or Progress(n_iterations=0.0, active_s=0.0, started_at_s=MIDNIGHT_S),
        provenance=provenance or Provenance(source="test"),
    )


def decide(
    run: LimitControl, plan: PlanInputs, *, waits_because: str = "", is_multi_node: bool = False
) -> LimitDecision:
    """Return what is decided for a run, which does not begin by that."""
    return run.decide(
        DecisionInputs(
            now_s=plan.now_s,
            n_iterations=plan.progress.n_iterations,
            waits_because=waits_because,
            is_multi_node=is_multi_node,
            curve_start=lambda: None,
            plan=lambda: plan,
        )
    )


def choose(
    run: LimitControl,
    *,
    at_s: float = 0.0,
    history: Signal | None = None,
    provenance: Provenance | None = None,
    progress: Progress | None = None,
) -> Target:
    """Return the limit that the run should have at a time."""
    plan = plan_inputs(at_s=at_s, history=history, provenance=provenance, progress=progress)
    target = decide(run, plan).target
    assert target is not None
    return target


def rate_per_s(limit_w: float) -> float:
    """Return how fast the job is at a limit."""
    return 4.0 * math.pow(limit_w / 300.0, 0.3)


def interval(power_w: float, iterations_per_s: float, *, duration_s: float = 1.0, gaps_s: float = 0.0) -> MeterInterval:
    """Return an active interval."""
    n_iterations = iterations_per_s * (duration_s - gaps_s)
    return MeterInterval(
        begin_ns=0,
        end_ns=ns(duration_s),
        active=True,
        n_iterations=n_iterations,
        energy_j=power_w * duration_s,
        gaps_s=gaps_s,
        iteration_times_s=(1 / iterations_per_s,) * int(n_iterations),
    )


def train(
    run: LimitControl,
    duration_s: int,
    *,
    begin_s: int = 0,
    rate: Callable[[float], float] = rate_per_s,
    gaps_s: float = 0.0,
    dropped: list[PowerProfile] | None = None,
) -> list[Target]:
    """Train second by second at whatever is asked for; return the targets, one for each second.

    Curves that the job drifts from are added to `dropped`.
    """
    targets = []
    for second in range(duration_s):
        target = choose(run, at_s=begin_s + second)
        targets.append(target)
        seen = interval(0.9 * target.power_limit_w, rate(target.power_limit_w), gaps_s=gaps_s)
        run.ledger.add(seen, (target.power_limit_w, 0))
        update = run.observe(seen, enforced_power_limit_w=target.power_limit_w)
        if update is not None and update.dropped is not None and dropped is not None:
            dropped.append(update.dropped)
    return targets


def is_new(update: CurveUpdate | None) -> bool:
    """Return whether a curve is to be stored."""
    return update is not None and update.is_new


def limits_of(targets: list[Target], reason: str) -> list[float]:
    """Return the limits that were asked for with a reason, each once."""
    return list(dict.fromkeys(target.power_limit_w for target in targets if target.reason == reason))
