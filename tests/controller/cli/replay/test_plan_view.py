"""The tables of `gridchase replay plan`: whatever the numbers and the names are, none of them is cut."""

import re
from dataclasses import replace
from io import StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from controller.cli.replay.plan_view import SavingsReport, percent, tables
from policies.replay.power_limit.evaluation import POLICIES, SavingsRow, mean_savings_rows

ROW = SavingsRow(
    policy="max",
    max_slowdown=1.05,
    signal="wind",
    eta=None,
    carbon_saved_ratio=0.1769,
    energy_saved_ratio=0.1,
    slowdown_ratio=1.12,
    slowdown_worst_ratio=1.1465,
    n_starts=20,
)


def rows(
    signal: str = "wind", *, budgets: tuple[float, ...] = (1.05,), saved_ratio: float = 0.1769
) -> list[SavingsRow]:
    return [
        replace(ROW, policy=policy, signal=signal, max_slowdown=budget, carbon_saved_ratio=saved_ratio)
        for budget in budgets
        for policy in POLICIES
    ]


def report(*signals: list[SavingsRow]) -> SavingsReport:
    found = [row for each in signals for row in each]
    return SavingsReport(
        title="p100", rows=found + (mean_savings_rows(found) if len(signals) > 1 else []), n_signals=len(signals)
    )


def printed(found: SavingsReport, width: int = 80) -> list[str]:
    """Return the lines of each table in turn, on a terminal of so many columns."""
    console = Console(file=StringIO(), width=width)
    for table in tables(found, console.width):
        console.print(table, crop=False)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


def headed(lines: list[str]) -> list[list[str]]:
    """Return the budgets at the head of each table."""
    return [line.split()[3:] for line in lines if line.startswith(" at most slower")]


@pytest.mark.parametrize(
    ("saved_ratio", "width", "side_by_side"),
    [
        (0.1769, 80, [["12.0", "15.0"], ["20.0"]]),
        (0.1769, 120, [["12.0", "15.0", "20.0"]]),
        (-123.4567, 80, [["12.0", "15.0"], ["20.0"]]),
        (0.1769, 30, [["12.0"], ["15.0"], ["20.0"]]),
    ],
)
def test_as_many_budgets_as_fit_are_side_by_side(saved_ratio: float, width: int, side_by_side: list[list[str]]) -> None:
    lines = printed(report(rows(budgets=(1.12, 1.15, 1.2), saved_ratio=saved_ratio)), width)
    assert "…" not in "".join(lines)
    assert headed(lines) == side_by_side


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(1.0, 10.0), min_size=1, max_size=5, unique=True),
    st.floats(-1e6, 1.0),
    st.integers(20, 150),
)
def test_no_number_is_ever_cut(budgets: list[float], saved_ratio: float, width: int) -> None:
    found = report(*(rows(name, budgets=tuple(budgets), saved_ratio=saved_ratio) for name in ("a" * 40, "wind")))
    lines = printed(found, width)
    text = "\n".join(lines)
    assert "…" not in text
    assert sum(map(len, headed(lines))) == len(budgets)
    whole = len(re.findall(rf"(?<![\d.-]){re.escape(percent(saved_ratio))}(?![\d.])", text))
    assert whole >= (len(POLICIES) + 3 * 5) * len(budgets)  # over all; and by signal, with the mean
    assert len(re.findall(r" 12\.00 +14\.65\b", text)) == len(POLICIES) * len(budgets)


@pytest.mark.parametrize("budget", [1.05, 9.95])
def test_tables_have_80_columns_if_the_numbers_allow_it(budget: float) -> None:
    names = ("electricity-maps-germany-hourly-2021", "wind")
    lines = printed(report(*(rows(name, budgets=(budget,), saved_ratio=-98_765.4321) for name in names)))
    assert "…" not in "".join(lines)
    assert max(map(len, lines)) <= 80


def test_names_that_differ_in_their_last_character_stay_distinct() -> None:
    names = [f"electricity-maps-germany-hourly-{year}" for year in (2021, 2022)]
    lines = [line.strip() for line in printed(report(*(rows(name) for name in names)))]
    assert "…" not in "".join(lines)
    assert [lines[index + 1] for index, line in enumerate(lines) if line.startswith("electricity")] == [
        *("y-2021", "y-2022"),
        *("y-2021", "y-2022"),  # the rows that run under the controller have a table of their own
    ]


def test_names_are_not_markup() -> None:
    text = "\n".join(printed(report(rows("price[eur]"), rows("price[gbp]"))))
    assert {"price[eur]", "price[gbp]"} <= set(text.split())
    assert "price[eur], runs: 20" in "\n".join(printed(report(rows("price[eur]"))))


def test_each_eta_has_a_line_of_its_own() -> None:
    etas = [replace(ROW, policy="chase", eta=eta) for eta in (0.5, 0.12345671, 0.12345672)]
    named = [line.split()[1] for line in printed(report(etas)) if line.startswith(" chase")]
    assert named == ["0.5", "0.12345671", "0.12345672"]
