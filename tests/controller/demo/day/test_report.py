"""The result of a day: the simulation's own table, and the controller's account beneath it."""

from io import StringIO

import msgspec
import pytest
from rich.console import Console

from controller.demo.day.accounting import SimulatedTotals
from controller.demo.day.report import DemoResult, print_day_result
from publishers.messages.reports import RunEnergy
from tests.publishers.training.reporting.test_run_summary import UNKNOWN, record


def result(published: RunEnergy) -> DemoResult:
    """Return a day of which the simulation knows that 11.4 % of the energy were saved."""
    return DemoResult(
        carbon_saved_ratio=0.139,
        energy_saved_ratio=0.114,
        slowdown_ratio=1.021,
        profiling_energy_ratio=0.004,
        run=SimulatedTotals(energy_j=3.6e6, carbon_g=861.0, duration_s=10_210.0, iterations=100),
        baseline=SimulatedTotals(energy_j=4.063e6, carbon_g=1_000.0, duration_s=10_000.0, iterations=100),
        published=published,
        n_limit_changes=73,
        max_slowdown=1.03,
        seed=1,
        zone="GB",
        date="2023-06-04",
        curve="a40",
        workload="ResNet-50",
        grid_source="NESO",
        grid_licence="CC BY 4.0",
        duration_s=60.0,
        broker="mosquitto",
        version="1",
    )


def printed(published: RunEnergy) -> str:
    """Return what is printed in a pipe."""
    console = Console(file=(file := StringIO()), width=80)
    print_day_result(result(published), console)
    return file.getvalue()


def test_the_controllers_own_account_stands_beneath_the_table_with_its_intervals() -> None:
    table, notes = printed(record()).split("┘\n")
    assert notes.replace("\n", " ").startswith(
        "The table holds the simulation's true values. What the controller itself says, from the meters and with 90 %"
        " intervals: 1.840 kWh, saved 11.3 % energy (±0.3) and 14.0 % carbon (±0.4) for 2.1 % more time (±0.1). "
    )
    assert "-11.4 %" in table


@pytest.mark.parametrize(
    "off",
    [{"saved_energy_ratio": 0.069, "saved_energy_ci90_ratio": 0.002}, {"saved_ratio": 0.12}, {"slowdown_ratio": 1.03}],
)
def test_an_account_that_is_far_from_the_truth_is_called_so(off: dict[str, float]) -> None:
    said = "That is far from the truth: this machine was too busy"
    assert said not in printed(record())
    assert said not in printed(record(**off, evidence="too_early"))
    far = printed(record(**off))
    assert said in far.replace("\n", " ")
    assert "--duration-s 300`" in far
    assert max(map(len, far.splitlines())) <= 80


def test_nothing_is_wider_than_the_terminal() -> None:
    lines = printed(record()).splitlines()
    assert [line for line in lines if len(line) > 80] == []


@pytest.mark.parametrize(("evidence", "text"), UNKNOWN.items())
def test_without_evidence_the_account_says_why(evidence: str | None, text: str) -> None:
    said = printed(record(evidence=evidence)).replace("\n", " ")
    assert f"intervals: 1.840 kWh, {text}." in said
    assert "11.3 %" not in said


def test_the_json_has_the_account_with_its_intervals_and_its_evidence() -> None:
    published = msgspec.json.decode(msgspec.json.encode(result(record())))["published"]
    assert published["evidence"] == "measured"
    for name in ("saved", "saved_energy", "slowdown"):
        assert {f"{name}_ratio", f"{name}_ci90_ratio"} <= set(published)
