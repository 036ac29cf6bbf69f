"""What is published of the hours ahead: only what is known, and only what the record may hold."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from controller.config import EnergyConfig, PlanConfig
from controller.control.multi_node import NodeShare
from controller.control.plan import PlanInputs, PlannedTarget
from controller.ports import Provenance
from policies.planning import Progress
from policies.planning.hours_ahead import MIN_FORECASTS, Evidence
from policies.vocabulary.limit_ratios import LimitRatios
from policies.vocabulary.profile import PowerProfile, ProfilePoint
from policies.vocabulary.units import HOUR_S
from publishers.messages.codec import decode, encode
from publishers.messages.reports import MAX_SCHEDULED, RunSchedule
from tests.fakes import MIDNIGHT_S
from tests.policies.planning import decisions

SO_FAR = Progress(
    n_iterations=4 * HOUR_S,
    active_s=HOUR_S,
    started_at_s=MIDNIGHT_S - HOUR_S,
    total_iterations=400 * HOUR_S,
    base_s=HOUR_S,
)


def scheduled(
    so_far: Progress = SO_FAR,
    *,
    rate_ci_ratio: float = 0.004,
    n_looks: int = 8,
    step_s: float = HOUR_S,
    evidence: Evidence | None = None,
    share: NodeShare | None = None,
) -> RunSchedule:
    """Return what is published of a run whose rates are known so well, under a signal that changes in steps."""
    curve = PowerProfile(
        tuple(
            ProfilePoint(
                power_limit_w=limit_w,
                power_w=power_w,
                iterations_per_s=rate_per_s,
                power_ci_w=1.0,
                iterations_per_s_ci=rate_ci_ratio * rate_per_s,
                n=100,
                active_s=100.0,
            )
            for limit_w, power_w, rate_per_s in (
                (240.0, 225.0, 3.8),
                (255.0, 240.0, 3.88),
                (270.0, 253.0, 3.94),
                (285.0, 266.0, 3.975),
                (300.0, 280.0, 4.0),
            )
        )
    )
    forecast = decisions.ahead([100.0, 500.0] * round(24 * HOUR_S / step_s), now_s=MIDNIGHT_S, step_s=step_s)
    inputs = PlanInputs(
        now_s=MIDNIGHT_S,
        history=decisions.ahead([300.0] * 24 * 15, now_s=MIDNIGHT_S - 15 * 24 * HOUR_S),
        forecast=forecast,
        progress=so_far,
        provenance=Provenance(source="test"),
    )
    rules = PlanConfig(max_slowdown=1.03).rules_of("resnet50")
    plan = PlannedTarget(job="resnet50", rules=rules, energy=EnergyConfig(), bounds_w=(240.0, 300.0))
    plan.choose(curve, inputs)
    assert plan.made is not None
    made = replace(plan.made, inputs=replace(plan.made.inputs, share=share))
    schedule = plan.schedule(made, n_looks=n_looks, evidence=evidence)
    assert isinstance(decode(encode(schedule), RunSchedule), RunSchedule)
    return schedule


def slowdown(schedule: RunSchedule) -> tuple[float | None, float | None]:
    """Return the slowdown at the end of the run, and the half-width of its interval."""
    return schedule.expected_slowdown_ratio, schedule.expected_slowdown_ci90_ratio


def test_a_slowdown_is_told_from_eight_looks_on_and_hours_ahead_have_an_error() -> None:
    assert slowdown(scheduled(n_looks=7)) == (None, None)
    ratio, ci90_ratio = slowdown(scheduled(n_looks=8))
    assert ratio == pytest.approx(1.03, abs=0.005)
    assert ci90_ratio is not None
    assert 0.001 < ci90_ratio <= 0.01, "the hours so far have no error"


def test_a_slowdown_that_is_not_known_to_a_point_is_not_told() -> None:
    assert slowdown(scheduled(rate_ci_ratio=0.05)) == (None, None)
    assert slowdown(scheduled(replace(SO_FAR, total_iterations=4.4 * HOUR_S, base_error_ratio=0.02))) == (None, None)


def test_an_end_that_is_too_far_to_be_a_time_is_not_told() -> None:
    assert scheduled(replace(SO_FAR, total_iterations=1e13)).expected_end_s is None
    assert scheduled().expected_end_s is not None


def test_a_schedule_that_is_cut_reaches_as_far_as_what_is_told() -> None:
    schedule = scheduled(step_s=120.0)
    starts_s = [each.starts_s for each in schedule.entries]
    assert len(starts_s) == MAX_SCHEDULED
    assert schedule.until_s == starts_s[-1] + 120.0
    assert min(np.diff([*starts_s, schedule.until_s])) > 0


def test_of_one_limit_alone_no_second_is_told() -> None:
    for entry in scheduled().entries:
        assert (entry.second_power_limit_w is None) == (entry.second_ratio is None)
        assert entry.second_ratio is None or 0.005 <= entry.second_ratio <= 0.995


def known(*, error_ratio: float = 0.002, forecast_error: float | None = 10.0) -> Evidence:
    """Return limits whose energies are known so well, and how far forecasts are off [g/kWh]."""

    def ratios(limits_w: Sequence[float]) -> tuple[list[LimitRatios], np.ndarray]:
        known = [
            LimitRatios(
                power_limit_w=limit_w,
                rate_ratio=1 - (300 - limit_w) / 1_200,
                rate_error_ratio=0.001,
                energy_ratio=1 + (300 - limit_w) / 300,
                energy_error_ratio=error_ratio if limit_w < 300 else 0.0,
            )
            for limit_w in limits_w
        ]
        return known, np.eye(len(known))

    errors = np.random.default_rng(1).normal(0.0, forecast_error or 0.0, (MIN_FORECASTS, 24))
    return Evidence(ratios=ratios, forecast_errors=None if forecast_error is None else errors)


def saved(schedule: RunSchedule) -> tuple[float | None, ...]:
    """Return what is expected to be saved of the signal and of energy, each with the half-width of its interval."""
    return (
        schedule.expected_saved_ratio,
        schedule.expected_saved_ci90_ratio,
        schedule.expected_saved_energy_ratio,
        schedule.expected_saved_energy_ci90_ratio,
    )


def test_what_will_be_saved_is_told_from_eight_looks_on_with_its_interval() -> None:
    assert saved(scheduled(n_looks=7, evidence=known())) == (None,) * 4
    assert saved(scheduled()) == (None,) * 4
    ratio, ci90_ratio, energy_ratio, energy_ci90_ratio = saved(scheduled(evidence=known()))
    assert ratio is not None
    assert energy_ratio is not None
    assert 0.05 < energy_ratio < ratio, "clean hours are fast"
    assert energy_ci90_ratio is not None
    assert ci90_ratio is not None
    assert 0.001 < energy_ci90_ratio < ci90_ratio <= 0.01


def test_what_will_be_saved_is_not_told_where_it_is_not_known_to_a_point() -> None:
    assert saved(scheduled(evidence=known(error_ratio=0.05))) == (None,) * 4
    for forecast_error in (None, 1e3):
        *signal, energy_ratio, _ = saved(scheduled(evidence=known(forecast_error=forecast_error)))
        assert signal == [None, None]
        assert energy_ratio is not None


def test_of_a_run_on_several_nodes_the_saving_is_told_where_all_know_theirs() -> None:
    share = NodeShare(n_gpus=1, n_ranks=1, world_size=2)
    assert None not in saved(scheduled(evidence=known(), share=share))
    assert saved(scheduled(evidence=replace(known(), ratios=lambda _: None), share=share)) == (None,) * 4
