"""The summary of a run: which numbers it takes from the record, when it claims no saving, and how it reads."""

import re
from typing import Any

import pytest

from publishers.messages.reports import RunEnergy
from publishers.training.reporting.run_energy import RunEnergyFeed
from publishers.training.reporting.run_summary import OFF, RunSummary, explained, percent, summarize

KWH = 3.6e6
NUMBERS = [
    f"{name}{interval}_ratio"
    for name in ("saved_energy", "saved_carbon", "saved_cost", "slowdown")
    for interval in ("", "_ci90")
]
NOTHING = {"saved_ratio": 0.0, "saved_energy_ratio": 0.0, "slowdown_ratio": 1.0}
NOTHING_CHANGED = {
    "evidence": "nothing_changed",
    "baseline_energy_j": 1.84 * KWH,
    "baseline_carbon_g": 612.0,
    **NOTHING,
    **{name.replace("_ratio", "_ci90_ratio"): 0.0 for name in NOTHING},
}
UNKNOWN = {
    "too_early": "too early to tell what was saved",
    "incomplete": "what was saved is not known: not all of the run was measured",
    "curve_changed": "what was saved is not known: a part of it ran on another power curve, or on other GPUs",
    "no_baseline": "what was saved is not known: at the highest limit it would have cost nothing, or may have",
    "limits_differ": "what was saved is not known: its GPUs had unlike limits, which nothing compares",
    "not_computed": "what was saved is not known: it was not computed in time",
    "other_nodes": "what was saved is not known: another node does not know what was saved there",
    "of_tomorrow": "what was saved is not known: of_tomorrow",
    None: "what was saved is not known: its controller gives no interval",
}
"""Each code of evidence that comes without numbers, and what the line says."""


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
        "evidence": "measured",
        "saved_ratio": 0.14,
        "saved_ci90_ratio": 0.004,
        "saved_energy_ratio": 0.113,
        "saved_energy_ci90_ratio": 0.0021,
        "slowdown_ratio": 1.021,
        "slowdown_ci90_ratio": 0.0006,
        "power_limit_w": 220.0,
        "reason": "slowdown_signal",
        "final": True,
    }
    return RunEnergy(**fields | changes)


def of(given: RunEnergy | None, unmeasured: tuple[str, str] = ("too_short", "too short")) -> RunSummary:
    """Return the summary."""
    return summarize("resnet50", "3f2a", given, unmeasured=unmeasured)


def live(given: RunEnergy) -> dict[str, float]:
    """Return the live values."""
    feed = RunEnergyFeed(started_at_s=0.0)
    feed.latest = given
    return feed.live() or {}


def test_the_line_tells_energy_carbon_savings_and_time() -> None:
    summary = of(record())
    assert str(summary) == (
        "resnet50 run 3f2a: 1.84 kWh, 612 g CO2e, saved 11.3 % energy (±0.3) and 14.0 % carbon (±0.4) for 2.1 % more "
        "time (±0.1)"
    )
    assert (summary.is_final, summary.energy_j, summary.carbon_g) == (True, 1.84 * KWH, 612.0)
    assert (summary.saved_energy_ratio, summary.saved_energy_ci90_ratio) == (0.113, 0.0021)
    assert (summary.saved_carbon_ratio, summary.saved_carbon_ci90_ratio) == (0.14, 0.004)
    assert (summary.saved_cost_ratio, summary.saved_cost_ci90_ratio) == (None, None)
    assert (summary.slowdown_ratio, summary.slowdown_ci90_ratio) == (1.021, 0.0006)
    assert (summary.evidence, summary.reason, summary.iterations) == ("measured", "", 90_000)


def test_the_line_of_a_simulated_board_says_so() -> None:
    assert str(of(record(gpu_model="NVIDIA A40 (simulated)"))).startswith("resnet50 run 3f2a (simulated): 1.84 kWh")
    assert not of(record()).is_simulated


@pytest.mark.parametrize(
    ("changes", "ending"),
    [
        (
            {"final": False, "carbon_g": None},
            "run 3f2a, so far: 1.84 kWh, saved 11.3 % energy (±0.3) for 2.1 % more time (±0.1)",
        ),
        ({"baseline_carbon_g": None}, "612 g CO2e, saved 11.3 % energy (±0.3) for 2.1 % more time (±0.1)"),
        ({"saved_ratio": 0.001}, ", saved 11.3 % energy (±0.3) and 0.1 % carbon (±0.4) for 2.1 % more time (±0.1)"),
        ({"saved_ratio": -0.0004}, ", saved 11.3 % energy (±0.3) and 0.0 % carbon (±0.4) for 2.1 % more time (±0.1)"),
        (
            {"saved_ratio": -0.004},
            ", saved 11.3 % energy (±0.3), used 0.4 % more carbon (±0.4) for 2.1 % more time (±0.1)",
        ),
        (
            {"saved_ratio": -0.014, "saved_energy_ratio": -0.002},
            "g CO2e, used 0.2 % more energy (±0.3) and 1.4 % more carbon (±0.4) for 2.1 % more time (±0.1)",
        ),
        (
            {"carbon_g": None, "baseline_carbon_g": None, "cost": 0.4216, "currency": "EUR", "saved_ratio": 0.2},
            "1.84 kWh, 0.422 EUR, saved 11.3 % energy (±0.3) and 20.0 % cost (±0.4) for 2.1 % more time (±0.1)",
        ),
        ({"slowdown_ratio": 0.9996}, "14.0 % carbon (±0.4) for 0.0 % more time (±0.1)"),
        ({"slowdown_ratio": 0.98}, "14.0 % carbon (±0.4) in 2.0 % less time (±0.1)"),
        ({"slowdown_ci90_ratio": 0.00041}, "14.0 % carbon (±0.4) for 2.10 % more time (±0.05)"),
        ({"incomplete": ["unmeasured", "controller_down"]}, "more time (±0.1); not all of the run was measured"),
        (
            {"carbon_g": None, "baseline_carbon_g": None, "reason": "signal_absent"},
            "saved 11.3 % energy (±0.3) for 2.1 % more time (±0.1); carbon unknown: no grid signal",
        ),
    ],
)  # fmt: skip
def test_the_line_says_no_more_than_is_known(changes: dict[str, Any], ending: str) -> None:
    assert str(of(record(**changes))).endswith(ending)


@pytest.mark.parametrize(
    ("ci90_ratio", "text"),
    [
        (0.01, "2.1 % (±1.0)"),
        (0.0031, "2.1 % (±0.4)"),
        (0.003, "2.1 % (±0.3)"),
        (0.0005, "2.1 % (±0.1)"),
        (0.0004, "2.14 % (±0.04)"),
        (0.0, "2.14 % (±0.01)"),
    ],
)
def test_an_interval_is_rounded_up_and_never_to_nothing(ci90_ratio: float, text: str) -> None:
    assert percent(0.0214, ci90_ratio) == text


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


@pytest.mark.parametrize(("evidence", "text"), UNKNOWN.items())
def test_without_evidence_no_outlet_tells_a_number(evidence: str | None, text: str) -> None:
    for given in (record(evidence=evidence), record(evidence=evidence, final=False)):
        summary = of(given)
        assert summary.outcome == text
        assert not re.search("[0-9]", summary.outcome)
        assert [getattr(summary, name) for name in NUMBERS] == [None] * len(NUMBERS)
        assert summary.reason == (evidence or "no_interval")
        assert "saved" not in str(live(given)) + str(summary).replace(text, "")
        assert "slowdown" not in str(live(given))


@pytest.mark.parametrize("end", ["_ratio", "_ci90_ratio"])
@pytest.mark.parametrize("missing", ["saved", "saved_energy", "slowdown"])
@pytest.mark.parametrize("evidence", ["measured", "nothing_changed"])
def test_no_outlet_tells_a_number_without_its_interval(evidence: str, missing: str, end: str) -> None:
    given = record(evidence=evidence, **{missing + end: None})
    summary, values = of(given), live(given)
    summed = [name for name in NUMBERS if getattr(summary, name) is not None]
    for names in (summed, [name for name in values if name.startswith(("saved", "slowdown"))]):
        estimates = {name for name in names if "_ci90_" not in name}
        assert estimates
        assert estimates == {name.replace("_ci90_", "_") for name in names if "_ci90_" in name}
    assert f"{missing}_ratio" not in values
    assert ("saved_energy_j" in values, "saved_carbon_g" in values) == (missing != "saved_energy", missing != "saved")
    assert f"{'saved_carbon' if missing == 'saved' else missing}_ratio" not in summed
    assert summary.outcome.count(" %") == summary.outcome.count("±")


def test_a_record_before_anything_was_measured_is_too_early() -> None:
    summary = of(record(**dict.fromkeys(NOTHING_CHANGED), reason="profiling"))
    assert (summary.reason, summary.evidence) == ("too_early", None)
    assert str(summary) == "resnet50 run 3f2a: 1.84 kWh, 612 g CO2e, too early to tell what was saved"


def test_what_the_record_lacks_is_told_once() -> None:
    summary = of(record(evidence="incomplete", incomplete=["controller_down"]))
    assert str(summary).endswith("g CO2e, what was saved is not known: not all of the run was measured")


@pytest.mark.parametrize(
    ("changes", "reason", "outcome"),
    [
        ({}, "nothing_changed", "nothing saved: its power limit was never lowered"),
        ({"reason": None}, "nothing_changed", "nothing saved: its power limit was never lowered"),
        ({"reason": "profiling"}, "nothing_changed", "nothing saved: its power limit was never lowered"),
        (
            {"reason": "not_profiled"},
            "not_profiled",
            "nothing saved: not profiled: no limit was stable long enough to be measured",
        ),
        (
            {"reason": "no_permission"},
            "no_permission",
            "nothing saved: the controller may not set power limits (it takes root or CAP_SYS_ADMIN)",
        ),
        ({"reason": "shared", "detail": "another tenant is on it"}, "shared", "nothing saved: another tenant is on it"),
        ({"reason": "mig", "detail": "forged\x1b[2J\nline"}, "mig", "nothing saved: forged\\x1b[2J\\nline"),
        ({"reason": "mig"}, "mig", "nothing saved: mig"),
        (
            {"reason": "observe_mode", "would_save_ratio": 0.112, "would_save_ci90_ratio": 0.0261},
            "observe_mode",
            (
                "nothing saved: plan.observe is on: limits are planned, but never written;"
                " the plan would have saved about 11.2 % (±2.7)"
            ),
        ),
        (  # as an earlier version says it: without an interval
            {"reason": "observe_mode", "would_save_ratio": 0.112},
            "observe_mode",
            "nothing saved: plan.observe is on: limits are planned, but never written",
        ),
        ({"reason": "not_profiled", "duration_s": 2.0}, "too_short", "nothing saved: it was too short"),
        ({"reason": "profiling", "duration_s": 2.0}, "too_short", "nothing saved: it was too short"),
        (
            {"reason": "held_out", "detail": "as the controller says it"},
            "held_out",
            "nothing saved: held out at the prior limit, to compare the job's other runs with",
        ),
        ({"iterations": 0}, "no_iterations", "nothing saved: no optimizer steps were seen"),
    ],
)
def test_where_nothing_changed_nothing_was_saved_and_the_line_says_why(
    changes: dict[str, Any], reason: str, outcome: str
) -> None:
    summary = of(record(**NOTHING_CHANGED | changes))
    assert (summary.evidence, summary.reason, summary.outcome) == ("nothing_changed", reason, outcome)
    assert (summary.saved_energy_ratio, summary.saved_energy_ci90_ratio) == (0.0, 0.0)
    assert (summary.saved_carbon_ratio, summary.slowdown_ratio, summary.slowdown_ci90_ratio) == (0.0, 1.0, 0.0)


def test_the_line_ends_with_what_runs_held_out_say() -> None:
    summary = of(record(**NOTHING_CHANGED | {"ab_runs": 12, "ab_held_out_runs": 3}))
    said = "A/B: 3 of 12 comparable runs were held out: too early to compare the others with them"
    assert summary.holdouts == said
    assert str(summary).endswith(f"; {said}")
    assert of(record(**NOTHING_CHANGED)).holdouts == ""


@pytest.mark.parametrize("evidence", [None, "too_early", "nothing_changed"])
def test_without_optimizer_steps_that_is_why_nothing_was_saved(evidence: str | None) -> None:
    summary = of(record(evidence=evidence, iterations=0, saved_ratio=None))
    assert (summary.reason, summary.outcome) == ("no_iterations", "nothing saved: no optimizer steps were seen")


@pytest.mark.parametrize("given", [None, record(n_gpus=0, energy_j=0.0, duration_s=0.0, reason="claim_rejected")])
def test_what_was_not_measured_says_why(given: RunEnergy | None) -> None:
    summary = of(given, explained("no_gpu", "whatever the controller says"))
    assert str(summary) == "resnet50 run 3f2a: not measured: it computed on no GPU of this machine"
    assert (summary.reason, summary.energy_j, summary.is_final) == ("no_gpu", None, given is not None)


def test_a_publisher_that_is_off_has_a_summary_too() -> None:
    assert str(OFF) == "no run: not measured: publishing is off"
