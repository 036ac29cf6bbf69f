"""The summary of a run: which numbers it takes from the record, when it claims no saving, and how it reads."""

from typing import Any

import pytest

from publishers.messages.reports import RunEnergy
from publishers.training.reporting.run_summary import OFF, RunSummary, explained, summarize

KWH = 3.6e6


def record(**changes: Any) -> RunEnergy:  # noqa: ANN401 — the record checks them
    """Return the last record of a run that has saved 11.3 % of the energy and 14 % of the carbon."""
    fields: dict[str, Any] = {
        "run": "3f2a",
        "state": "finished",
        "gpu_model": "NVIDIA A40",
        "n_gpus": 1,
        "iterations": 90_000,
        "epochs": 90,
        "duration_s": 29_520.0,
        "energy_j": 1.84 * KWH,
        "carbon_g": 612.0,
        "baseline_energy_j": 1.84 * KWH / (1 - 0.113),
        "baseline_carbon_g": 612.0 / (1 - 0.14),
        "baseline_duration_s": 29_520.0 / 1.021,
        "saved_ratio": 0.14,
        "slowdown_ratio": 1.021,
        "power_limit_w": 220.0,
        "reason": "slowdown_signal",
        "final": True,
    }
    return RunEnergy(**fields | changes)


def of(given: RunEnergy | None, unmeasured: tuple[str, str] = ("too_short", "too short")) -> RunSummary:
    """Return the summary."""
    return summarize("resnet50", "3f2a", given, unmeasured=unmeasured)


def test_the_line_tells_energy_carbon_savings_and_time() -> None:
    summary = of(record())
    assert str(summary) == (
        "resnet50 run 3f2a: 1.84 kWh, 612 g CO2e, saved 11.3 % energy and 14.0 % carbon for 2.1 % more time"
    )
    assert (summary.is_final, summary.energy_j, summary.carbon_g) == (True, 1.84 * KWH, 612.0)
    assert (summary.saved_energy_ratio, summary.saved_carbon_ratio) == pytest.approx((0.113, 0.14))
    assert (summary.slowdown_ratio, summary.reason, summary.iterations) == (1.021, "", 90_000)


@pytest.mark.parametrize(
    ("changes", "ending"),
    [
        ({"final": False, "carbon_g": None}, "run 3f2a, so far: 1.84 kWh, saved 11.3 % energy for 2.1 % more time"),
        ({"carbon_g": None, "baseline_carbon_g": None}, ": 1.84 kWh, saved 11.3 % energy for 2.1 % more time"),
        ({"carbon_g": 700.0, "baseline_carbon_g": 700.0}, "700 g CO2e, saved 11.3 % energy for 2.1 % more time"),
        (
            {"carbon_g": 700.0, "baseline_carbon_g": 690.0},
            "saved 11.3 % energy, used 1.4 % more carbon for 2.1 % more time",
        ),
        (
            {"carbon_g": None, "baseline_carbon_g": None, "cost": 0.4216, "currency": "EUR", "saved_ratio": 0.2},
            "1.84 kWh, 0.422 EUR, saved 11.3 % energy and 20.0 % cost for 2.1 % more time",
        ),
        ({"slowdown_ratio": 0.9996}, "14.0 % carbon in the same time"),
        ({"slowdown_ratio": 0.98}, "14.0 % carbon in 2.0 % less time"),
        ({"baseline_energy_j": 1.84 * KWH, "baseline_carbon_g": 612.0}, "CO2e, nothing saved for 2.1 % more time"),
        ({"incomplete": ["unmeasured", "controller_down"]}, "more time; not all of the run was measured"),
        (
            {"carbon_g": None, "baseline_carbon_g": None, "reason": "signal_absent"},
            "1.84 kWh, saved 11.3 % energy for 2.1 % more time; carbon unknown: no grid signal",
        ),
    ],
)  # fmt: skip
def test_the_line_says_no_more_than_is_known(changes: dict[str, Any], ending: str) -> None:
    assert str(of(record(**changes))).endswith(ending)


@pytest.mark.parametrize(
    ("energy_j", "carbon_g", "text"),
    [
        (0.0, 0.0, "0 Wh, 0 g CO2e"),
        (51.3, 0.00123, "0.0142 Wh, 0.00123 g CO2e"),
        (3_597.0, 9.999, "0.999 Wh, 10 g CO2e"),
        (999.6 * 3_600, 999.6, "1 kWh, 1 kg CO2e"),
        (12.345 * KWH, 4_321.0, "12.3 kWh, 4.32 kg CO2e"),
        (123_456 * KWH, 1e9, "123 MWh, 1,000 t CO2e"),
    ],
)
def test_amounts_have_three_digits_and_a_unit_of_their_size(energy_j: float, carbon_g: float, text: str) -> None:
    assert f": {text}, " in str(of(record(energy_j=energy_j, carbon_g=carbon_g)))


@pytest.mark.parametrize("reason", ["profiling", "profiling_paused", "waiting_for_ranks", None])
def test_before_there_is_a_plan_the_run_was_too_short_to_tell(reason: str | None) -> None:
    baseline_energy_j = None if reason is None else 1.84 * KWH  # of the points measured so far: noise
    summary = of(record(reason=reason, baseline_energy_j=baseline_energy_j))
    assert (summary.reason, summary.saved_energy_ratio, summary.slowdown_ratio) == ("too_short", None, None)
    assert str(summary) == "resnet50 run 3f2a: 1.84 kWh, 612 g CO2e, too short to tell what was saved"


def test_a_run_that_was_faster_than_its_curve_claims_nothing() -> None:
    summary = of(record(slowdown_ratio=0.0436))
    assert (summary.reason, summary.saved_energy_ratio) == ("off_curve", None)
    assert str(summary).endswith(
        "too short to tell what was saved: it ran faster than the curve of an earlier run says"
    )


@pytest.mark.parametrize(
    ("changes", "ending"),
    [
        ({"reason": "not_profiled"}, "nothing saved: not profiled: no limit was stable long enough to be measured"),
        ({"reason": "no_permission"}, "may not set power limits (it takes root or CAP_SYS_ADMIN)"),
        ({"reason": "shared", "detail": "another tenant is on it"}, "nothing saved: another tenant is on it"),
        ({"reason": "new_code", "detail": "forged\x1b[2J\nline"}, "nothing saved: forged\\x1b[2J\\nline"),
        ({"reason": "new_code"}, "nothing saved: new_code"),
        ({"reason": "observe_mode"}, "nothing saved: plan.observe is on: limits are planned, but never written"),
        (
            {"reason": "observe_mode", "would_save_ratio": 0.112},
            "plan.observe is on: limits are planned, but never written (the plan would have saved about 11.2 %)",
        ),
    ],
)  # fmt: skip
def test_without_a_saving_the_line_says_why(changes: dict[str, Any], ending: str) -> None:
    summary = of(record(baseline_energy_j=None, baseline_carbon_g=None, **changes))
    assert (summary.reason, summary.saved_energy_ratio) == (changes["reason"], None)
    assert str(summary).endswith(ending)


def test_where_no_limit_was_ever_written_a_known_curve_claims_no_saving() -> None:
    summary = of(record(reason="observe_mode"))
    assert (summary.reason, summary.saved_energy_ratio) == ("observe_mode", None)


@pytest.mark.parametrize("given", [None, record(n_gpus=0, energy_j=0.0, duration_s=0.0, reason="claim_rejected")])
def test_what_was_not_measured_says_why(given: RunEnergy | None) -> None:
    summary = of(given, explained("no_gpu", "whatever the controller says"))
    assert str(summary) == "resnet50 run 3f2a: not measured: it computed on no GPU of this machine"
    assert (summary.reason, summary.energy_j, summary.is_final) == ("no_gpu", None, given is not None)


def test_a_publisher_that_is_off_has_a_summary_too() -> None:
    assert str(OFF) == "no run: not measured: publishing is off"
