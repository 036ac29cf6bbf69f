"""Sums of runs: each run once, errors shared within a job, and no number without evidence."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.history.energy_history.growth import Amounts, run_amounts, run_growth
from controller.history.energy_history.report import PARTS, Entry, Part, entry_of, saving_parts, sum_of_gpus
from publishers.messages.reports import RunEnergy
from tests.controller.history.energy_history.records import measured, run_record, split

USED = run_record(duration_s=1_000.0, energy_j=9e5, carbon_g=90.0)
KNOWN = measured(USED, saved_ratio=0.1, ci90_ratio=0.02)


def part(record: RunEnergy = KNOWN, *, job: str = "bert", run: str = "r1", amounts: Amounts | None = None) -> Part:
    """Return a run with all that it used."""
    return Part("ada", job, run, record, run_growth(None, record)[1] if amounts is None else amounts)


def test_one_run_is_its_own_record() -> None:
    entry = entry_of("bert", [part()])
    assert (entry.runs, entry.measured_runs, entry.energy_j, entry.carbon_g) == (1, 1, 9e5, 90.0)
    assert entry.saved_carbon_g == pytest.approx(10.0)
    assert entry.saved_carbon_ci90_g == pytest.approx(2.0)
    assert entry.saved_carbon_ratio == pytest.approx(0.1)
    assert (entry.slowdown_ratio, entry.slowdown_ci90_ratio) == pytest.approx((1.03, 0.004))
    assert entry.saved_energy_j == pytest.approx(1e5)


def test_errors_add_up_within_a_job_and_their_squares_between_jobs() -> None:
    of_one = entry_of("bert", [part(run="r1"), part(run="r2")])
    assert of_one.saved_carbon_ci90_g == pytest.approx(4.0)
    assert of_one.slowdown_ci90_ratio == pytest.approx(0.004)
    of_two = entry_of("all", [part(job="a"), part(job="b")])
    assert of_two.saved_carbon_ci90_g == pytest.approx(2.0 * math.sqrt(2))
    assert of_two.saved_carbon_g == pytest.approx(20.0)
    assert of_two.slowdown_ci90_ratio == pytest.approx(0.004 / math.sqrt(2))


def test_a_slowdown_without_an_interval_is_not_told() -> None:
    entry = entry_of("bert", [part(msgspec.structs.replace(KNOWN, slowdown_ci90_ratio=None))])
    assert (entry.slowdown_ratio, entry.slowdown_ci90_ratio) == (None, None)


def test_without_evidence_there_is_no_number_of_what_was_saved() -> None:
    final = msgspec.structs.replace(USED, final=True, evidence="too_early")
    entry = entry_of("bert", [part(final)])
    assert (entry.runs, entry.measured_runs, entry.carbon_g) == (1, 0, 90.0)
    saved = [name for name in Entry.__struct_fields__ if name.startswith(("saved_", "slowdown_"))]
    assert [getattr(entry, name) for name in saved] == [None] * len(saved)


def test_what_is_known_of_some_runs_is_said_of_these() -> None:
    entry = entry_of("bert", [part(run="r1"), part(USED, run="r2")])
    assert (entry.runs, entry.measured_runs, entry.carbon_g) == (2, 1, 180.0)
    assert entry.saved_carbon_ratio == pytest.approx(0.1)


def test_a_part_of_a_run_has_the_share_of_its_interval() -> None:
    half = {name: None if value is None else value / 2 for name, value in run_amounts(KNOWN).items()}
    entry = entry_of("today", [part(amounts=half)])
    assert entry.saved_carbon_g == pytest.approx(5.0)
    assert entry.saved_carbon_ci90_g == pytest.approx(1.0)


def test_what_a_saving_is_made_of_adds_up_to_it() -> None:
    parts = [part(split(KNOWN, 0.03), job="a"), part(split(KNOWN, 0.05), job="b")]
    found = saving_parts(entry_of("", parts))
    assert [it.name for it in found] == ["better_limit", "following", "measuring"]
    assert [it.saved for it in found] == pytest.approx([14.0, 8.0, -2.0])
    assert sum(it.saved for it in found) == pytest.approx(entry_of("", parts).saved_carbon_g or 0.0)
    assert [it.ci90 for it in found] == pytest.approx([0.5 * math.sqrt(2)] * 3)


@pytest.mark.parametrize(
    "other",
    [
        part(run="r2"),
        part(split(KNOWN, 0.03), run="r2", amounts=run_amounts(KNOWN)),
        part(msgspec.structs.replace(split(KNOWN, 0.03), saved_following_ci90_ratio=None), run="r2"),
    ],
    ids=["a run does not know its parts", "it has known them only since", "a part has no interval"],
)
def test_what_a_saving_is_made_of_is_not_told_of_a_part_of_it(other: Part) -> None:
    assert saving_parts(entry_of("", [part(split(KNOWN, 0.03)), other])) == []


def test_what_a_days_saving_is_made_of_is_the_growth_of_the_parts() -> None:
    account, _ = run_growth(None, split(KNOWN, 0.03))
    later = run_record(time_s=(KNOWN.time_s or 0.0) + 900.0, duration_s=2_000.0, energy_j=18e5, carbon_g=170.0)
    _, grown = run_growth(account, split(measured(later, saved_ratio=0.15), 0.06))
    today = part(split(measured(later, saved_ratio=0.15), 0.06), amounts=grown)
    found = saving_parts(entry_of("", [today]))
    assert [it.saved for it in found] == pytest.approx([0.10 * 200 - 8, 0.06 * 200 - 3, -0.01 * 200 + 1])


def test_without_evidence_at_its_end_what_a_saving_was_made_of_is_taken_back() -> None:
    account, _ = run_growth(None, split(KNOWN, 0.03))
    _, grown = run_growth(account, msgspec.structs.replace(USED, final=True, evidence="incomplete"))
    assert [grown[f"{name}_carbon_g"] for name in PARTS] == pytest.approx([-8.0, -3.0, 1.0])


def test_several_currencies_have_no_sum() -> None:
    priced = [msgspec.structs.replace(USED, carbon_g=None, cost=8.0, currency=currency) for currency in ("EUR", "USD")]
    euros = [part(measured(priced[0], saved_ratio=0.2), run=run) for run in ("r1", "r2")]
    entry = entry_of("bert", euros)
    assert (entry.cost, entry.currency) == (16.0, "EUR")
    assert entry.saved_cost == pytest.approx(4.0)
    assert entry.saved_cost_ratio == pytest.approx(0.2)
    mixed = entry_of("bert", [*euros, part(measured(priced[1], saved_ratio=0.2), run="r3")])
    assert (mixed.cost, mixed.currency, mixed.saved_cost) == (None, None, None)
    assert mixed.saved_energy_j is not None


def test_a_record_that_names_no_currency_leaves_the_sum_alone() -> None:
    priced = msgspec.structs.replace(USED, carbon_g=None, cost=8.0, currency="EUR")
    unnamed = msgspec.structs.replace(priced, currency=None)
    entry = entry_of("bert", [part(priced, run="r1"), part(unnamed, run="r2")])
    assert (entry.cost, entry.currency) == (16.0, "EUR")


@pytest.mark.parametrize(
    ("currencies", "cost", "currency"),
    [
        (("EUR", "EUR"), 6.0, "EUR"),
        (("EUR", None), 6.0, "EUR"),
        (("EUR", "USD"), None, None),
        ((None, None), 6.0, None),
    ],
)
def test_costs_of_gpus_add_up_in_one_currency(
    currencies: tuple[str | None, str | None], cost: float | None, currency: str | None
) -> None:
    total = sum_of_gpus("total", [Entry(name="gpu", cost=3.0, currency=each) for each in currencies])
    assert (total.cost, total.currency) == (cost, currency)


def test_gpus_add_up() -> None:
    gpus = [Entry(name=f"node/GPU-{number}", energy_j=1e6, carbon_g=None) for number in range(3)]
    assert sum_of_gpus("total", gpus) == Entry(name="total", energy_j=3e6)


def test_work_in_several_units_has_no_sum_and_runs_that_tell_none_do_not_count() -> None:
    tokens = [msgspec.structs.replace(USED, work=work, work_unit="tokens") for work in (1e6, 2e6)]
    told = [part(record, run=f"r{number}") for number, record in enumerate(tokens)]
    entry = entry_of("bert", [*told, part(USED, run="silent")])
    assert (entry.work, entry.work_unit, entry.worked_energy_j, entry.energy_j) == (3e6, "tokens", 18e5, 27e5)
    assert entry.energy_per_work_j == pytest.approx(0.6)
    images = part(msgspec.structs.replace(USED, work=1e3, work_unit="images"), run="r9")
    assert entry_of("bert", [*told, images]).work is None


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.0, 0.5), st.floats(1.0, 1e9)), max_size=20))
def test_groups_add_up_to_the_total(runs: list[tuple[str, float, float]]) -> None:
    parts = [
        part(
            measured(run_record(duration_s=10.0, energy_j=joules, carbon_g=joules / 1e4), saved_ratio=ratio),
            job=job,
            run=f"r{number}",
        )
        for number, (job, ratio, joules) in enumerate(runs)
    ]
    total = entry_of("total", parts)
    jobs = [entry_of(job, [each for each in parts if each.job == job]) for job in {each.job for each in parts}]
    saved_g = sum(job.saved_carbon_g or 0.0 for job in jobs)
    assert (total.saved_carbon_g or 0.0) == pytest.approx(saved_g, rel=1e-6, abs=1e-3)
    widest_g = sum(job.saved_carbon_ci90_g or 0.0 for job in jobs)
    assert (total.saved_carbon_ci90_g or 0.0) <= widest_g + 1e-6
