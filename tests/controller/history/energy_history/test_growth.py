"""Growth adds up to the last cumulative value, whatever happens to clocks, controllers and records."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.history.energy_history.growth import (
    LATE_S,
    ONLY_GROWING,
    QUARTER_S,
    RUN_AMOUNTS,
    Amounts,
    RunAccount,
    added,
    day_of,
    gpu_growth,
    quarter_of,
    run_amounts,
    run_growth,
)
from controller.runtime.machine_zone import MACHINE_ZONE
from policies.vocabulary.units import HOUR_S
from publishers.messages.reports import RunEnergy
from tests.controller.history.energy_history.records import machine_zone, measured, run_record
from tests.fakes import MIDNIGHT_S

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["goes on", "older checkpoint", "begins anew", "clock steps back", "part is missing"]),
        st.floats(1.0, 7_200.0),
        st.floats(0.0, 1e6),
        st.booleans(),
    ),
    max_size=12,
)


def records(steps: list[tuple[str, float, float, bool]], *, is_known_at_last: bool) -> list[RunEnergy]:
    """Return what a controller publishes of a run that all this happens to; the last record is final."""
    time_s, made, last = MIDNIGHT_S, [], run_record()
    for what, seconds, joules, is_known in steps:
        time_s += -1_800.0 if what == "clock steps back" else seconds
        duration_s, energy_j = last.duration_s + seconds, last.energy_j + joules
        if what == "begins anew":
            duration_s, energy_j = seconds / 2, joules
        elif what in {"older checkpoint", "part is missing"}:
            energy_j = last.energy_j * 0.7
        record = run_record(time_s=time_s, duration_s=duration_s, energy_j=energy_j, carbon_g=energy_j / 1e4)
        made.append(measured(record, saved_ratio=0.1) if is_known else record)
        last = record
    final = msgspec.structs.replace(last, time_s=time_s + 1, final=True, state="finished")
    return [*made, measured(final, saved_ratio=0.2) if is_known_at_last else final]


@given(STEPS, st.booleans())
def test_what_was_counted_is_the_last_record_and_the_accounts_before(
    steps: list[tuple[str, float, float, bool]], is_known_at_last: bool
) -> None:
    account: RunAccount | None = None
    total: Amounts = {}
    made = records(steps, is_known_at_last=is_known_at_last)
    for record in made:
        account, grown = run_growth(account, record)
        total = added(total, grown)
        assert {name: total.get(name) or 0.0 for name in RUN_AMOUNTS} == pytest.approx(
            {name: account.counted.get(name) or 0.0 for name in RUN_AMOUNTS}, abs=1e-6
        )
        if not record.final:
            assert (grown.get("energy_j") or 0.0) >= 0
    assert account is not None
    last = run_amounts(made[-1])
    assert {name: total.get(name) for name in RUN_AMOUNTS if name != "baseline_cost"} == pytest.approx(
        {
            name: None if value is None else (account.earlier.get(name) or 0.0) + value
            for name, value in last.items()
            if name != "baseline_cost"
        },
        abs=1e-6,
    )


def grown_by(*made: RunEnergy) -> list[Amounts]:
    """Return the growth with each record."""
    account, growths = None, []
    for record in made:
        account, grown = run_growth(account, record)
        growths.append(grown)
    return growths


def test_what_was_saved_before_there_was_evidence_counts_when_it_becomes_known() -> None:
    early = run_record(duration_s=900.0, energy_j=1e6, carbon_g=100.0)
    late = run_record(duration_s=1_800.0, energy_j=2e6, carbon_g=200.0)
    first, second = grown_by(early, measured(late, saved_ratio=0.2))
    assert (first["baseline_carbon_g"], first["compared_carbon_g"]) == (None, None)
    assert (second["carbon_g"], second["compared_carbon_g"], second["baseline_carbon_g"]) == (100.0, 200.0, 250.0)


def test_evidence_that_is_lost_for_a_while_takes_nothing_back_but_for_good_it_does() -> None:
    known = measured(run_record(duration_s=900.0, energy_j=1e6, carbon_g=100.0), saved_ratio=0.2)
    unknown = run_record(duration_s=1_000.0, energy_j=2e6, carbon_g=150.0, evidence="other_nodes")
    _, held, final = grown_by(known, unknown, msgspec.structs.replace(unknown, final=True))
    assert held["baseline_carbon_g"] == 0
    assert (final["baseline_carbon_g"], final["compared_carbon_g"]) == (-125.0, -100.0)


def test_a_leader_that_has_not_heard_the_other_nodes_again_adds_nothing() -> None:
    whole = run_record(time_s=MIDNIGHT_S, duration_s=7_200.0, energy_j=2e6)
    half = run_record(time_s=MIDNIGHT_S + 30, duration_s=7_230.0, energy_j=1.1e6)
    again = run_record(time_s=MIDNIGHT_S + 60, duration_s=7_260.0, energy_j=2.2e6)
    _, missing, caught_up = grown_by(whole, half, again)
    assert missing == {}
    assert caught_up["energy_j"] == pytest.approx(0.2e6)


def test_books_that_were_lost_begin_anew_on_top_of_what_was_counted() -> None:
    before = run_record(time_s=MIDNIGHT_S, duration_s=7_200.0, energy_j=2e6)
    after = run_record(time_s=MIDNIGHT_S + 600, duration_s=500.0, energy_j=1e5)
    later = run_record(time_s=MIDNIGHT_S + 1_200, duration_s=1_100.0, energy_j=3e5, final=True)
    assert [grown["energy_j"] for grown in grown_by(before, after, later)] == [2e6, 1e5, 2e5]


def test_an_older_checkpoint_after_a_long_time_away_is_no_new_account() -> None:
    made = [(3_600.0, 3_600.0, 1e6), (10_800.0, 3_570.0, 0.99e6), (10_830.0, 3_600.0, 1e6), (10_860.0, 3_630.0, 1.01e6)]
    growths = grown_by(
        *(run_record(time_s=MIDNIGHT_S + at_s, duration_s=s, energy_j=energy_j) for at_s, s, energy_j in made)
    )
    assert [grown.get("energy_j") for grown in growths] == [1e6, None, 0.0, pytest.approx(0.01e6)]


def test_a_price_gives_the_baseline_of_the_cost_by_the_share_that_was_saved() -> None:
    record = run_record(duration_s=900.0, energy_j=1e6, carbon_g=None, cost=8.0)
    (grown,) = grown_by(measured(record, saved_ratio=0.2))
    assert (grown["compared_cost"], grown["baseline_cost"], grown["baseline_carbon_g"]) == (8.0, 10.0, None)


def test_the_baseline_of_the_cost_is_that_of_the_record() -> None:
    record = measured(run_record(duration_s=900.0, energy_j=1e6, carbon_g=100.0, cost=8.0), saved_ratio=0.2)
    for carbon_g in (100.0, None):  # without carbon, the share that was saved is of the cost
        told = msgspec.structs.replace(record, carbon_g=carbon_g, baseline_cost=9.0)
        (grown,) = grown_by(told)
        assert (grown["compared_cost"], grown["baseline_cost"]) == (8.0, 9.0)


@pytest.mark.parametrize("back_s", [HOUR_S, LATE_S / 2, LATE_S * 2])
def test_a_record_that_has_used_more_counts_also_where_the_clock_was_set_back(back_s: float) -> None:
    newest = run_record(time_s=MIDNIGHT_S, duration_s=900.0, energy_j=1e6)
    after = msgspec.structs.replace(newest, time_s=MIDNIGHT_S - back_s, duration_s=930.0, energy_j=2e6)
    assert [grown.get("energy_j") for grown in grown_by(newest, after)] == [1e6, 1e6]


def test_after_values_began_anew_older_records_wait_unless_the_clock_was_far_ahead() -> None:
    newest = run_record(time_s=MIDNIGHT_S, duration_s=900.0, energy_j=1e6)
    anew = msgspec.structs.replace(newest, time_s=MIDNIGHT_S + 5.0, duration_s=5.0, energy_j=1e3)
    late, far = (
        msgspec.structs.replace(newest, time_s=MIDNIGHT_S - back_s, energy_j=2e6) for back_s in (60.0, LATE_S * 2)
    )
    assert [grown.get("energy_j") for grown in grown_by(newest, anew, late)] == [1e6, 1e3, None]
    assert grown_by(newest, anew, far)[-1]["energy_j"] == pytest.approx(2e6 - 1e3)


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 1e6)), min_size=1))
def test_counters_of_gpus_lose_nothing_and_gain_nothing_over_restarts(steps: list[tuple[bool, float]]) -> None:
    before: Amounts = {"energy_j": None, "carbon_g": None, "cost": None}
    used_j = counter_j = counted_j = 0.0
    for is_restarted, joules in steps:
        used_j += joules
        counter_j = joules if is_restarted else counter_j + joules
        after: Amounts = {"energy_j": counter_j, "carbon_g": None, "cost": None}
        grown = gpu_growth(before, after, is_same_controller=not is_restarted)
        assert grown is not None
        grown_j = grown["energy_j"]
        assert grown_j is not None
        assert grown_j >= 0
        counted_j, before = counted_j + grown_j, after
    assert counted_j == pytest.approx(used_j)


@pytest.mark.parametrize(("month", "day", "hours"), [(3, 29, 23), (6, 11, 24), (10, 25, 25)])
def test_a_day_is_as_long_as_its_zone_says(month: int, day: int, hours: int) -> None:
    zone = ZoneInfo("Europe/Berlin")
    noon = datetime(2026, month, day, 12, tzinfo=zone)
    begin_s, end_s = day_of(noon.timestamp(), zone)
    assert end_s - begin_s == hours * 3_600
    assert datetime.fromtimestamp(begin_s, zone).hour == 0
    assert begin_s % QUARTER_S == 0


@pytest.mark.parametrize(
    ("name", "eve"),
    [
        ("Africa/Cairo", "2026-04-23T23:30"),
        ("America/Santiago", "2025-09-06T23:30"),
        ("America/Havana", "2026-03-07T23:30"),
        ("America/Havana", "2026-11-01T00:30"),
        ("Asia/Beirut", "2026-03-28T23:30"),
        ("Pacific/Apia", "2011-12-29T23:30"),
    ],
)
def test_a_moment_is_within_its_day_also_where_the_clock_skips_midnight(name: str, eve: str) -> None:
    zone = ZoneInfo(name)
    with machine_zone(name):
        eve_s = int(datetime.fromisoformat(eve).replace(tzinfo=zone).timestamp())
        for at_s in range(eve_s, eve_s + 7_200, QUARTER_S):
            begin_s, end_s = day_of(at_s, None)
            assert begin_s <= at_s < end_s
            assert (begin_s, end_s) == day_of(at_s, zone) == day_of(at_s, MACHINE_ZONE)


def test_a_quarter_hour_begins_at_a_multiple_of_fifteen_minutes() -> None:
    at = datetime(2026, 6, 11, 12, 44, 59, tzinfo=UTC).timestamp()
    assert quarter_of(at) == datetime(2026, 6, 11, 12, 30, tzinfo=UTC).timestamp()
    assert set(ONLY_GROWING) < set(RUN_AMOUNTS)
