"""The plan's configuration: what is asked of a single job, deadlines in both forms, and every fault of the tables."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from controller.config import PlanConfig, deadline_s, load_config
from controller.errors import ConfigError

START_S = 1_000.0


def plan_of(*overrides: str) -> PlanConfig:
    """Return the plan of a configuration."""
    return load_config(None, [f"plan.{override}" for override in overrides]).plan


def faults_of(*overrides: str) -> list[str]:
    """Return the faults of a plan."""
    with pytest.raises(ConfigError) as caught:
        plan_of(*overrides)
    return caught.value.faults


def test_a_job_without_a_table_has_what_is_asked_of_all() -> None:
    plan = plan_of("max_slowdown=1.05", 'job=[{name="bert", max_slowdown=1.2}]')
    assert (plan.rules_of("resnet50").max_slowdown, plan.rules_of("bert").max_slowdown) == (1.05, 1.2)


def test_a_table_changes_only_the_keys_it_names() -> None:
    rules = plan_of("max_slowdown=1.05", "period_s=90", 'job=[{name="bert", period_s=30}]').rules_of("bert")
    assert (rules.max_slowdown, rules.period_s, rules.objective) == (1.05, 30.0, "slowdown")


@pytest.mark.parametrize(("job", "eta"), [("bert-large", 0.1), ("bert-base", 0.2), ("bart", 0.3), ("gpt", 0.5)])
def test_the_tables_own_name_counts_before_patterns_and_the_first_pattern_before_later_ones(
    job: str, eta: float
) -> None:
    tables = ('{name="bert-*", eta=0.2}', '{name="b*", eta=0.3}', '{name="bert-large", eta=0.1}')
    assert plan_of(f"job=[{', '.join(tables)}]").rules_of(job).eta == eta


@pytest.mark.parametrize(
    ("deadline", "expected_s"),
    [
        ("36h", START_S + 36 * 3_600),
        ("0.5h", START_S + 1_800),
        ("2026-07-01T18:00:00+02:00", datetime(2026, 7, 1, 16, tzinfo=UTC).timestamp()),
        ("2026-07-01T16:00Z", datetime(2026, 7, 1, 16, tzinfo=UTC).timestamp()),
    ],
)
def test_a_deadline_is_a_moment_or_hours_after_the_start(deadline: str, expected_s: float) -> None:
    assert deadline_s(deadline, started_at_s=START_S) == expected_s
    assert plan_of("objective=deadline", f'deadline="{deadline}"').deadline == deadline


def test_a_moment_of_toml_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "controller.toml"
    file.write_text('[plan]\nobjective = "deadline"\ndeadline = 2026-07-01T18:00:00+02:00\n', encoding="utf-8")
    assert load_config(file).plan.deadline == "2026-07-01T18:00:00+02:00"


@pytest.mark.parametrize(
    "deadline", ["tomorrow", "36", "-1h", "5", "2026-07-01T18:00:00", "2026-07-01", "1e3h", "true"]
)
def test_a_deadline_without_a_zone_or_a_unit_is_refused(deadline: str) -> None:
    (fault,) = faults_of(f"deadline={deadline}")
    assert fault.startswith("plan.deadline = ")
    assert '"36h"' in fault


def test_all_faults_of_all_tables_are_told_at_once() -> None:
    faults = faults_of(
        'job=[{name="a b", eta=7}, {eta=0.5}, 3, {name="x", per=1}, {name="y", deadline=2026-07-01T18:00:00}]',
        "max_slowdown=0",
    )
    starts = [fault.partition(":")[0] for fault in faults]
    assert starts == [
        "plan.job[0].eta = 7",
        "plan.job[0].name = 'a b'",
        "plan.job[1].name = None",
        "plan.job[2].name = None",
        "plan.job[3].per",
        "plan.job[4].deadline = '2026-07-01T18",
        "plan.max_slowdown = 0",
    ]


def test_tables_that_are_no_list_are_refused() -> None:
    assert faults_of("job=resnet50") == ["plan.job = 'resnet50': must be a list of tables, each [[plan.job]]"]


@pytest.mark.parametrize("objective", ["deadline", "budget"])
def test_an_objective_without_its_key_says_which_is_missing(objective: str) -> None:
    (fault,) = faults_of(f"objective={objective}")
    assert fault.startswith(f"plan.{objective} = ")
    (fault,) = faults_of(f'job=[{{name="bert"}}, {{name="gpt", objective="{objective}"}}]')
    assert fault.startswith(f"plan.job[1].{objective} = ")


def test_what_an_objective_needs_may_stand_in_either_place() -> None:
    assert plan_of("budget=5", 'job=[{name="bert", objective="budget"}]').rules_of("bert").budget == 5


@pytest.mark.parametrize(("objective", "there", "none"), [("budget", "100", "0.0"), ("deadline", '"8h"', '""')])
def test_a_table_that_takes_away_what_the_objective_needs_is_refused(objective: str, there: str, none: str) -> None:
    tables = f'job=[{{name="a", {objective}={none}}}, {{name="b", eta=0.1}}, {{name="c", {objective}={none}}}]'
    faults = faults_of(f"objective={objective}", f"{objective}={there}", tables)
    assert [fault.partition(" = ")[0] for fault in faults] == [f"plan.job[{n}].{objective}" for n in (0, 2)]
