"""What is published about a run: one node's part, the sum that its leader makes, and what other nodes have spent."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.accounting.iteration_log import IterationLog
from controller.accounting.other_nodes import MAX_NODES, OtherNodes
from controller.accounting.ranks import Ranks, RunIdentity
from controller.accounting.reports import (
    SPLIT,
    RunReporter,
    energy_report,
    how_counted,
    profile_report,
    summed,
    with_saving,
)
from policies.savings.counterfactual import Saving
from policies.savings.interval import MAX_CI90_RATIO, KnownSaving, PinnedCost, Split, UnknownSaving
from policies.vocabulary.profile import PowerProfile, ProfilePoint
from policies.vocabulary.signal import SignalKind
from publishers.messages.codec import decode, encode
from publishers.messages.reports import KNOWN_EVIDENCE, RunEnergy, RunSchedule
from publishers.messages.topics import Topics
from tests.controller.messages import iterations, ns, rank_status, run_energy
from tests.fakes import KEY, MIDNIGHT_S, FakeBus, LoopClock, flat_signal

POINT = ProfilePoint(
    power_limit_w=200.0, power_w=190.0, iterations_per_s=0.8, power_ci_w=1.5, iterations_per_s_ci=0.01, n=40
)


def log_of(n: int, epoch: int = 0) -> IterationLog:
    """Return a log of some iterations, of which each epoch after the first has one."""
    log = IterationLog()
    n_first = n - epoch
    log.append(iterations(0, [float(i + 1) for i in range(n_first)]), now_ns=ns(1e6))
    for later in range(1, epoch + 1):
        done = n_first + later - 1
        log.append(iterations(done, [done + 1.0], seq=later, first=done, epoch=later), now_ns=ns(1e6))
    return log


def test_a_curve_is_published_with_its_confidence() -> None:
    report = profile_report(PowerProfile((POINT,)), state="planned", gpu_model="A40", n_gpus=2, batch_size=256)
    (entry,) = report.points
    assert (entry.power_limit_w, entry.power_w, entry.iterations_per_s) == (200.0, 190.0, 0.8)
    assert (entry.power_ci_w, entry.iterations_per_s_ci, entry.n) == (1.5, 0.01, 40)
    assert (report.state, report.gpu_model, report.n_gpus, report.batch_size) == ("planned", "A40", 2, 256)


def test_a_curve_without_a_point_is_published_empty() -> None:
    assert profile_report(None, state="waiting", gpu_model="A40", n_gpus=1, batch_size=None).points == []


def test_the_slowest_rank_counts_the_iterations_and_the_furthest_the_epochs() -> None:
    report = energy_report(
        rank_status(reached=True),
        [log_of(10, epoch=2), log_of(8, epoch=1)],
        {"energy_j": 100.0, "duration_s": 9.0, "carbon_g": 1.5},
        state="finished",
        gpu_model="A40",
        n_gpus=2,
        final=True,
    )
    assert (report.iterations, report.epochs, report.reached, report.final) == (8, 3, True, True)
    assert (report.energy_j, report.duration_s, report.carbon_g, report.cost) == (100.0, 9.0, 1.5, None)
    assert decode(encode(report), RunEnergy) == report


@pytest.mark.parametrize(
    ("kind", "unit", "currency"), [("average", "g/kWh", None), ("marginal", "g/kWh", None), ("price", "EUR/kWh", "EUR")]
)
def test_a_record_says_by_which_signal_it_counts_and_what_its_plan_weighs(
    kind: SignalKind, unit: str, currency: str | None
) -> None:
    signal = replace(flat_signal(0.3), kind=kind, unit=unit, source="s" * 300)
    report = energy_report(
        rank_status(),
        [log_of(1)],
        {"energy_j": 1.0, "duration_s": 1.0},
        state="running",
        gpu_model="A40",
        n_gpus=1,
        final=False,
        counting=how_counted(signal, since_s=MIDNIGHT_S, now_s=MIDNIGHT_S + 60, host_power_w=300.0, pue=1.4),
    )
    assert (report.signal_kind, report.signal_source, report.signal_zone) == (kind, "s" * 200, signal.zone)
    assert (report.currency, report.host_power_w, report.pue) == (currency, 300.0, 1.4)
    assert report.signal_unmeasured_s == 0.0
    assert decode(encode(report), RunEnergy) == report


def test_what_is_not_configured_is_not_in_a_record() -> None:
    plain = how_counted(
        replace(flat_signal(1.0), kind="energy", unit="1"), since_s=0.0, now_s=1.0, host_power_w=0.0, pue=1.0
    )
    assert plain == how_counted(None, since_s=0.0, now_s=1.0, host_power_w=0.0, pue=1.0)
    assert set(plain.values()) == {None}


def test_a_run_on_one_node_is_its_own_sum() -> None:
    own = run_energy(saved_ratio=0.2, cost=1.0)
    assert summed(own, []) == own


def measured(**fields: Any) -> RunEnergy:  # noqa: ANN401 — the record checks them
    """Return a part of which it is known what it has saved."""
    known = {"saved_ci90_ratio": 0.004, "saved_energy_ci90_ratio": 0.003, "slowdown_ci90_ratio": 0.001}
    ratios = {"saved_ratio": 0.2, "saved_energy_ratio": 0.2, "slowdown_ratio": 1.02}
    return run_energy(**({"evidence": "measured"} | ratios | known | fields))


def test_nodes_add_up_their_energy_and_the_leader_knows_the_rest() -> None:
    own = measured(energy_j=80.0, saved_energy_ci90_ratio=0.002, duration_s=50.0)
    tenth = {"saved_ratio": 0.1, "saved_energy_ratio": 0.1, "saved_energy_ci90_ratio": 0.006}
    other = measured(energy_j=270.0, duration_s=49.0, n_gpus=4, **tenth)
    whole = summed(own, [other])
    assert (whole.energy_j, whole.baseline_energy_j, whole.n_gpus) == pytest.approx((350.0, 400.0, 5))
    assert (whole.duration_s, whole.slowdown_ratio, whole.slowdown_ci90_ratio) == (50.0, 1.02, 0.001)
    assert (whole.saved_energy_ratio, whole.saved_energy_ci90_ratio) == pytest.approx((0.125, 0.005))
    assert whole.saved_ratio == pytest.approx(0.125), "plain energy counts"
    assert whole.evidence == "measured"


def test_the_prior_limits_of_all_nodes_add_up_where_all_are_known() -> None:
    own = run_energy(max_power_w=600.0)
    assert summed(own, [run_energy(max_power_w=1_200.0)]).max_power_w == 1_800.0
    assert summed(own, [run_energy()]).max_power_w is None


def test_the_limit_of_several_nodes_is_the_mean_over_their_gpus_where_all_are_known() -> None:
    own = run_energy(n_gpus=1, power_limit_w=300.0, reason="slowdown_static", detail="…")
    whole = summed(own, [run_energy(n_gpus=3, power_limit_w=200.0), run_energy(n_gpus=0)])
    assert (whole.power_limit_w, whole.reason, whole.n_gpus) == (225.0, "slowdown_static", 4)
    assert summed(own, [run_energy(n_gpus=3)]).power_limit_w is None


def test_the_saved_ratio_of_several_nodes_is_that_of_carbon_where_there_is_carbon() -> None:
    # 60 of 100 g and 90 of 100 g.
    own, other = measured(energy_j=1.0, carbon_g=60.0, saved_ratio=0.4), measured(carbon_g=90.0, saved_ratio=0.1)
    whole = summed(own, [other])
    assert (whole.saved_ratio, whole.baseline_carbon_g) == pytest.approx((0.25, 200.0))


def test_the_saved_ratio_of_several_nodes_is_that_of_cost_where_there_is_a_price() -> None:
    # 6 of 10 and 9 of 10 are 15 of 20.
    own, other = measured(cost=6.0, saved_ratio=0.4), measured(cost=9.0, saved_ratio=0.1)
    assert summed(own, [other]).saved_ratio == pytest.approx(0.25)


NUMBERS = [
    name
    for name in RunEnergy.__struct_fields__
    if name.startswith(("saved_", "slowdown_", "baseline_", "pinned_extra"))
]


@pytest.mark.parametrize(
    ("own", "other", "evidence"),
    [
        (measured(), run_energy(), "other_nodes"),
        (measured(), run_energy(saved_ratio=0.2, baseline_energy_j=5.0), "other_nodes"),
        (measured(), run_energy(evidence="too_early"), "other_nodes"),
        (run_energy(evidence="too_early"), measured(), "too_early"),
        (run_energy(evidence="incomplete"), run_energy(evidence="too_early"), "incomplete"),
        (measured(cost=-1.0, saved_ratio=2.0), measured(cost=1.0), "no_baseline"),
        (measured(cost=9.0), measured(cost=-8.0), "too_early"),  # the errors add up, the costs do not
        (measured(carbon_g=100.0), measured(), "other_nodes"),  # one node has no signal
        (measured(cost=9.0), measured(carbon_g=9.0), "other_nodes"),
        (measured(cost=-1.0), measured(cost=-1.0), "no_baseline"),
        (measured(), measured(saved_ci90_ratio=None), "other_nodes"),
        (measured(), measured(slowdown_ci90_ratio=None), "other_nodes"),
        (measured(carbon_g=1.0), measured(carbon_g=1e-4, saved_ratio=0.9999), "no_baseline"),
    ],
)
def test_what_one_node_does_not_know_is_not_told_of_the_run(own: RunEnergy, other: RunEnergy, evidence: str) -> None:
    whole = summed(own, [other])
    assert [getattr(whole, name) for name in NUMBERS] == [None] * len(NUMBERS)
    assert whole.evidence == evidence


def _maybe(least: float, most: float) -> st.SearchStrategy[float | None]:
    return (
        st.none() | st.floats(least, most) | st.floats(max(least, -2.0), 2.0) | st.sampled_from([0.0, 1 - 1e-16, 1.0])
    )


SPLIT_RATIOS = [f"saved_{part}_{end}" for part in SPLIT for end in ("ratio", "ci90_ratio")]
RATIOS = [f"{what}_{end}" for what in ("saved", "saved_energy", "slowdown") for end in ("ratio", "ci90_ratio")]
PINNED_EXTRA = [name for name in NUMBERS if name.startswith("pinned_extra")]
ANY_PART = st.builds(
    run_energy,
    evidence=st.sampled_from([None, "too_early", "measured", "measured", "nothing_changed"]),
    n_gpus=st.sampled_from([0, 1, 1]),
    energy_j=st.floats(0.0, 1e18),
    cost=_maybe(-1e18, 1e18),
    **{name: _maybe(0.0 if "_ci90_" in name else -1e18, 1e18) for name in (*RATIOS, *PINNED_EXTRA, *SPLIT_RATIOS)},
)


@given(ANY_PART, ANY_PART)
def test_whatever_another_node_says_no_number_is_told_without_its_interval(own: RunEnergy, other: RunEnergy) -> None:
    whole = summed(own, [other])
    told = {name for name in NUMBERS if getattr(whole, name) is not None}
    if not other.n_gpus:
        assert told == {name for name in NUMBERS if getattr(own, name) is not None}, "the node knows its own"
        return
    assert (whole.evidence in KNOWN_EVIDENCE) == bool(told)
    if told:
        assert set(RATIOS) <= told
        for all_or_none in (PINNED_EXTRA, SPLIT_RATIOS) if whole.evidence == "measured" else ():
            assert {name for name in all_or_none if getattr(whole, name) is not None} in (set(), set(all_or_none))
        assert all(math.isfinite(getattr(whole, name)) for name in told)
        halves = whole.saved_ci90_ratio, whole.saved_energy_ci90_ratio, whole.slowdown_ci90_ratio
        assert all(half is not None and half <= MAX_CI90_RATIO for half in halves)


@pytest.mark.parametrize(("unit", "work"), [("tokens", 3e6), ("images", None), (None, None)])
def test_work_adds_up_over_nodes_that_count_the_same(unit: str | None, work: float | None) -> None:
    own, other = run_energy(work=1e6, work_unit="tokens"), run_energy(work=2e6, work_unit=unit)
    assert [summed(own, [other]).work, summed(other, [own]).work] == [work, work]


def test_a_node_without_a_gpu_knows_nothing_and_takes_nothing_away() -> None:
    idle = run_energy(n_gpus=0, energy_j=0.0)
    for whole in (summed(measured(), [idle]), summed(idle, [measured()])):
        assert (whole.evidence, whole.slowdown_ratio, whole.n_gpus) == ("measured", 1.02, 1)
        assert whole.saved_ratio == pytest.approx(0.2)


ZERO: dict[str, Any] = {
    "evidence": "nothing_changed",
    **dict.fromkeys(("saved_ratio", "saved_ci90_ratio", "saved_energy_ratio", "saved_energy_ci90_ratio"), 0.0),
    "slowdown_ratio": 1.0,
    "slowdown_ci90_ratio": 0.0,
}


PINNED = {"pinned_extra_s": 400.0, "pinned_extra_ci90_s": 4.0, "pinned_extra_energy_ci90_j": 50.0}


def test_a_pin_costs_the_energy_of_all_nodes_and_the_time_of_the_slowest() -> None:
    own = measured(**PINNED, pinned_extra_energy_j=-1_000.0)
    other = measured(**PINNED | {"pinned_extra_s": 410.0, "pinned_extra_ci90_s": 6.0}, pinned_extra_energy_j=200.0)
    whole = summed(own, [other])
    assert (whole.pinned_extra_s, whole.pinned_extra_ci90_s) == (410.0, 6.0)
    assert (whole.pinned_extra_energy_j, whole.pinned_extra_energy_ci90_j) == (-800.0, 100.0)
    for unknown in (summed(own, [measured()]), summed(measured(), [own])):
        assert (unknown.saved_ratio is None, unknown.pinned_extra_s, unknown.pinned_extra_energy_j) == (
            False,
            None,
            None,
        )


def test_a_run_is_as_slow_as_its_slowest_node() -> None:
    whole = summed(measured(duration_s=102.0, **ZERO), [measured()])
    assert whole.evidence == "measured"
    assert (whole.slowdown_ratio, whole.slowdown_ci90_ratio) == (1.02, 0.001)
    assert whole.baseline_duration_s == pytest.approx(100.0)


@pytest.mark.parametrize("used", [{"carbon_g": 0.0}, {"cost": -1.0}, {}])
def test_where_no_node_changed_anything_the_run_has_saved_nothing(used: dict[str, Any]) -> None:
    whole = summed(measured(**ZERO, **used), [measured(**ZERO, **used)])
    assert {name: getattr(whole, name) for name in ZERO} == ZERO


def saving(**fields: float) -> Saving:
    """Return what a run has saved: a tenth of 100 J, in 103 s instead of 100 s."""
    used = {"energy_j": 90.0, "duration_s": 103.0, "signal_energy": 27_000.0}
    baseline = {"baseline_energy_j": 100.0, "baseline_duration_s": 100.0, "baseline_signal_energy": 36_000.0}
    return Saving(**(used | baseline | fields))


def test_the_parts_of_a_saving_are_told_with_their_intervals_and_add_up() -> None:
    parts = saving(following_signal_energy=3_600.0, looks_signal_energy=-360.0, first_pass_signal_energy=-720.0)
    halves = Split(better_limit_ci90_ratio=0.004, following_ci90_ratio=0.003, measuring_ci90_ratio=0.001)
    told = with_saving(run_energy(cost=3.0), KnownSaving(saving=parts, split=halves))
    assert told.baseline_cost == pytest.approx(4.0)
    ratios = told.saved_better_limit_ratio, told.saved_following_ratio, told.saved_measuring_ratio
    assert ratios == pytest.approx((0.18, 0.1, -0.03))
    assert told.saved_ratio == pytest.approx(0.25)
    halves_told = (
        told.saved_better_limit_ci90_ratio,
        told.saved_following_ci90_ratio,
        told.saved_measuring_ci90_ratio,
    )
    assert halves_told == (0.004, 0.003, 0.001)
    unsure = with_saving(run_energy(), KnownSaving(saving=parts, split=None))
    assert (unsure.saved_ratio, unsure.saved_following_ratio) == (told.saved_ratio, None)


def test_the_parts_of_several_nodes_are_weighted_by_their_baselines() -> None:
    none = dict.fromkeys(SPLIT_RATIOS, 0.0)
    known = none | {"saved_better_limit_ratio": 0.2, "saved_better_limit_ci90_ratio": 0.002}
    own = measured(energy_j=80.0, saved_ratio=0.2, **known)
    whole = summed(own, [measured(energy_j=300.0, saved_ratio=0.0, **none)])
    halved = whole.saved_better_limit_ratio, whole.saved_better_limit_ci90_ratio
    assert halved == pytest.approx((0.05, 0.0005))
    unsure = measured(energy_j=300.0, saved_ratio=0.0, **none | {"saved_following_ci90_ratio": None})
    for other in (measured(energy_j=300.0), unsure):
        told = summed(own, [other])
        assert [getattr(told, name) for name in SPLIT_RATIOS] == [None] * len(SPLIT_RATIOS)


def test_a_measured_saving_is_told_with_its_intervals_and_baselines() -> None:
    found = KnownSaving(
        saving=saving(), saved_ci90_ratio=0.004, saved_energy_ci90_ratio=0.003, slowdown_ci90_ratio=0.001
    )
    told = with_saving(run_energy(energy_j=180.0, duration_s=206.0, carbon_g=0.03), found)
    assert told.evidence == "measured"
    assert (told.saved_ratio, told.saved_energy_ratio, told.slowdown_ratio) == pytest.approx((0.25, 0.1, 1.03))
    assert (told.saved_ci90_ratio, told.saved_energy_ci90_ratio, told.slowdown_ci90_ratio) == (0.004, 0.003, 0.001)
    assert (told.baseline_energy_j, told.baseline_duration_s) == pytest.approx((200.0, 200.0)), "of what is used by now"
    assert told.baseline_carbon_g == pytest.approx(0.04)


def test_what_a_pin_has_cost_is_told_with_its_intervals_where_it_is_known() -> None:
    cost = PinnedCost(extra_s=400.0, extra_ci90_s=4.0, extra_energy_j=-1_000.0, extra_energy_ci90_j=50.0)
    told = with_saving(run_energy(), KnownSaving(saving=saving(), pinned=cost))
    assert (told.pinned_extra_s, told.pinned_extra_ci90_s) == (400.0, 4.0)
    assert (told.pinned_extra_energy_j, told.pinned_extra_energy_ci90_j) == (-1_000.0, 50.0)
    assert with_saving(run_energy(), KnownSaving(saving=saving())).pinned_extra_s is None


def test_a_run_that_used_no_carbon_has_a_baseline_all_the_same() -> None:
    told = with_saving(run_energy(carbon_g=0.0), KnownSaving(saving=saving(signal_energy=0.0)))
    assert (told.saved_ratio, told.baseline_carbon_g) == pytest.approx((1.0, 36_000.0 / 3.6e6))


def test_a_run_that_changed_nothing_has_saved_nothing_surely() -> None:
    same = saving(baseline_energy_j=90.0, baseline_duration_s=103.0, baseline_signal_energy=27_000.0)
    told = with_saving(run_energy(energy_j=90.0, duration_s=103.0), KnownSaving(saving=same, is_unchanged=True))
    assert (told.evidence, told.baseline_energy_j, told.baseline_duration_s) == ("nothing_changed", 90.0, 103.0)
    zeros = told.saved_ratio, told.saved_ci90_ratio, told.saved_energy_ratio, told.slowdown_ci90_ratio
    assert (zeros, told.slowdown_ratio) == ((0.0,) * 4, 1.0)


@pytest.mark.parametrize("reason", ["too_early", "incomplete", "curve_changed", "no_baseline"])
def test_what_is_not_known_is_not_told(reason: str) -> None:
    told = with_saving(run_energy(), UnknownSaving(code=reason, n_looks=3))
    assert (told.evidence, [getattr(told, name) for name in NUMBERS]) == (reason, [None] * len(NUMBERS))


def test_of_a_run_that_was_not_measured_nothing_is_told() -> None:
    assert with_saving(run_energy(n_gpus=0), KnownSaving(saving=saving())).evidence is None
    assert with_saving(run_energy(), None).evidence is None


def nodes_of(**parts_j: float) -> OtherNodes:
    """Return other nodes that have used energy [J] in 100 s."""
    nodes = OtherNodes()
    for node, used_j in parts_j.items():
        part = run_energy(energy_j=used_j, duration_s=100.0, carbon_g=used_j / 1e3, cost=used_j / 1e6)
        nodes.on_energy(node.replace("_", "-"), part)
    return nodes


@pytest.mark.parametrize(("kind", "spent"), [("energy", 2.0), ("carbon", 7_200.0), ("price", 7.2)])
def test_the_spending_of_other_nodes_adds_up_in_the_unit_of_the_budget(kind: str, spent: float) -> None:
    nodes = nodes_of(node_b=3.6e6, node_c=3.6e6)
    assert nodes.spent(kind=kind, host_power_w=0.0, pue=1.0) == pytest.approx(spent)


def test_the_machines_of_other_nodes_and_the_building_are_paid_too() -> None:
    nodes = nodes_of(node_b=3.6e6)
    assert nodes.spent(kind="energy", host_power_w=36_000.0, pue=1.5) == pytest.approx(3.0)


def test_the_number_of_summed_nodes_is_bounded() -> None:
    nodes = nodes_of(**{f"node_{number:05d}": 3.6e6 for number in range(MAX_NODES + 5)})
    assert nodes.spent(kind="energy", host_power_w=0.0, pue=1.0) == pytest.approx(MAX_NODES)


def test_a_final_message_counts_only_after_others() -> None:
    nodes = nodes_of(node_b=3.6e6)
    nodes.on_energy("node-b", run_energy(energy_j=7.2e6, final=True))
    nodes.on_energy("node-c", run_energy(energy_j=7.2e6, final=True))
    assert nodes.spent(kind="energy", host_power_w=0.0, pue=1.0) == pytest.approx(2.0), "of an earlier run"


SCHEDULE = RunSchedule(objective="slowdown", entries=[], until_s=100.0)


@pytest.mark.parametrize(
    ("told", "cleared"),
    [
        ([None, None], [True]),  # what a killed controller may have left is cleared once
        ([SCHEDULE, None, None], [False, True]),
        (["left", None], [True]),
        (["left"], []),  # this node has published none: it is the other one's
        ([SCHEDULE, "left", "left"], [False, True]),
        ([None, "left"], [True]),
    ],
)
async def test_a_schedule_is_cleared_once_and_never_that_of_another_node(
    told: list[RunSchedule | str | None], cleared: list[bool]
) -> None:
    bus = FakeBus()
    reporter = RunReporter(
        RunIdentity(user=KEY.user, job=KEY.job, run=KEY.run, node="node-a"),
        bus=bus,
        topics=Topics(),
        ranks=Ranks(name="resnet50", lease_s=60.0),
        other_nodes=OtherNodes(),
        clock=LoopClock(),
    )
    for each in told:
        if isinstance(each, str):
            reporter.leave_lead()
        else:
            reporter.publish_schedule(each)
    assert [payload == b"" for payload in bus.payloads(Topics().run(KEY, "schedule"))] == cleared
