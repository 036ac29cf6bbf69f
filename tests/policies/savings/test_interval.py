"""The interval of what was saved, against random draws; and when there is nothing to say."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policies.savings.books import Books, Purpose, open_books
from policies.savings.counterfactual import Counterfactual
from policies.savings.interval import (
    LUCK_RATIO,
    MAX_CI90_RATIO,
    MIN_LOOKS,
    N_PAIRS,
    KnownSaving,
    Segment,
    UnknownSaving,
    correlation_of,
    estimate_saving,
    normal_design,
)
from policies.vocabulary.limit_ratios import LimitRatios
from policies.vocabulary.signal import Signal, constant_signal
from policies.vocabulary.units import HOUR_S, Values
from tests.policies.days import hourly
from tests.policies.savings.histories import (
    LIMITS_W,
    TOP_W,
    Deed,
    books_of,
    deeds,
    histories,
    ratios_at,
    signals,
)


def estimate(
    books: Books, ratios: Sequence[LimitRatios], signal: Signal | None = None, correlation: Values | None = None
) -> KnownSaving | UnknownSaving:
    """Return the estimate of a run on one curve."""
    segment = Segment(books=books, ratios=ratios, top_power_limit_w=TOP_W, correlation=correlation)
    return estimate_saving([segment], signal=signal)


TOO_WIDE = [Deed(duration_s=1.0, power_w=1.0, power_limit_w=LIMITS_W[0])]
"""Work at the lowest limit takes 2.7 times as long: errors of 0.1 % are more than a point of it."""
HOURS = [Deed(duration_s=50_000.0, power_w=100.0, power_limit_w=limit_w) for limit_w in LIMITS_W]


def drawn_ratios(counterfactual: Counterfactual, error_ratio: float, *, seed: int, n: int) -> tuple[Values, Values]:
    """Return n random sets of the ratios of rates and of energies, each of shape (n, 4), with errors below the top."""
    rng, errors = np.random.default_rng(seed), np.array([error_ratio] * 3 + [0.0])
    rates = np.array([each.rate_ratio for each in counterfactual.known])
    energies = np.array([each.energy_ratio for each in counterfactual.known])
    return rates + errors * rng.standard_normal((n, 4)), energies + errors * rng.standard_normal((n, 4))


def drawn_halves(counterfactual: Counterfactual, ratios: tuple[Values, Values]) -> list[float]:
    """Return the half-widths of the 90 % intervals of all ratios that are told, by random draws."""
    own, drawn = counterfactual.saving(), counterfactual.twins(*ratios)
    pairs = [
        (own.signal_energy, drawn.signal_energy),
        (own.energy_j, drawn.energy_j),
        (own.duration_s, drawn.duration_s),
    ]
    if counterfactual.is_at_top:
        return [0.0] * len(pairs)
    return [1.645 * float(np.hypot((ours / baselines).std(), LUCK_RATIO)) for ours, baselines in pairs]


def told_of(found: KnownSaving | UnknownSaving, halves: list[float], *, rel: float) -> KnownSaving | None:
    """Return what is told of a saving: something if no interval is wider than it may be, and nothing else."""
    if max(halves) > (1 + rel) * MAX_CI90_RATIO:
        assert found == UnknownSaving(code="too_early", n_looks=24)
    elif max(halves) < (1 - rel) * MAX_CI90_RATIO:
        assert isinstance(found, KnownSaving)
    return found if isinstance(found, KnownSaving) else None


@settings(max_examples=20)
@given(histories, signals(), st.floats(1e-4, 0.001), st.integers(0, 1_000))
@example(TOO_WIDE, hourly(np.full(24, 100.0)), 0.001, 0)
def test_the_interval_agrees_with_random_draws(
    history: list[Deed], signal: Signal, error_ratio: float, seed: int
) -> None:
    ratios = [ratios_at(limit_w, limit_w / 400.0, 1.1, error_ratio=error_ratio) for limit_w in LIMITS_W[:3]]
    books = books_of(history)
    counterfactual = Counterfactual(books, ratios, top_power_limit_w=TOP_W, signal=signal)
    halves = drawn_halves(counterfactual, drawn_ratios(counterfactual, error_ratio, seed=seed, n=10_000))
    found = told_of(estimate(books, ratios, signal), halves, rel=0.08)
    if found is not None:
        told = [found.saved_ci90_ratio, found.saved_energy_ci90_ratio, found.slowdown_ci90_ratio]
        assert told == pytest.approx(halves, rel=0.08)


@settings(max_examples=6)
@given(histories, signals(), st.floats(1e-4, 0.001), st.integers(0, 1_000))
@example(TOO_WIDE, hourly(np.full(24, 100.0)), 0.001, 0)
def test_the_intervals_of_the_parts_agree_with_random_draws(
    history: list[Deed], signal: Signal, error_ratio: float, seed: int
) -> None:
    ratios = [ratios_at(limit_w, limit_w / 400.0, 1.1, error_ratio=error_ratio) for limit_w in LIMITS_W[:3]]
    books = books_of(history)
    counterfactual = Counterfactual(books, ratios, top_power_limit_w=TOP_W, signal=signal)
    drawn = drawn_ratios(counterfactual, error_ratio, seed=seed, n=400)
    found = told_of(estimate(books, ratios, signal), drawn_halves(counterfactual, drawn), rel=0.15)
    if found is None or counterfactual.is_at_top:
        return
    own, baselines = counterfactual.saving(), counterfactual.twins(*drawn).signal_energy
    parts = counterfactual.parts(*drawn) / baselines[:, None]
    following, measuring = parts[:, 0], parts[:, 1:].sum(axis=1)
    better_limit = 1 - own.signal_energy / baselines - following - measuring
    halves = [1.645 * float(np.hypot(part.std(), LUCK_RATIO)) for part in (better_limit, following, measuring)]
    if found.split is None:
        assert max(halves) > (1 - 0.15) * MAX_CI90_RATIO
        return
    split = found.split
    told = [split.better_limit_ci90_ratio, split.following_ci90_ratio, split.measuring_ci90_ratio]
    assert told == pytest.approx(halves, rel=0.15)


@pytest.mark.parametrize("n_errors", [0, 1, 2, 27, N_PAIRS // 2 + 1, 2 * N_PAIRS])
def test_the_design_is_that_of_independent_standard_errors(n_errors: int) -> None:
    points = normal_design(n_errors)
    assert points.mean(axis=0) == pytest.approx(np.zeros(n_errors), abs=1e-9)
    assert points.T @ points / len(points) == pytest.approx(np.eye(n_errors), abs=1e-9)


@given(st.lists(deeds([TOP_W]), min_size=1, max_size=6))
def test_a_run_at_the_top_alone_has_surely_saved_nothing(history: list[Deed]) -> None:
    found = estimate(books_of(history), [])
    assert isinstance(found, KnownSaving)
    assert (found.saving.saved_ratio, found.saved_ci90_ratio) == pytest.approx((0.0, 0.0), abs=1e-12)


@pytest.mark.parametrize(("n_looks", "is_known"), [(0, False), (MIN_LOOKS - 1, False), (MIN_LOOKS, True)])
def test_before_enough_looks_it_is_too_early_to_tell(n_looks: int, *, is_known: bool) -> None:
    ratios = [ratios_at(200.0, 0.9, 1.1, n_looks=n_looks // 2), ratios_at(250.0, 0.95, 1.1, n_looks=-(-n_looks // 2))]
    found = estimate(books_of(HOURS), ratios)
    assert isinstance(found, KnownSaving) == is_known
    if not is_known:
        assert found == UnknownSaving(code="too_early", n_looks=n_looks)


def test_a_look_that_is_counted_at_two_limits_is_one_look() -> None:
    ratios = [ratios_at(limit_w, limit_w / 400.0, 1.1, n_looks=MIN_LOOKS // 2) for limit_w in (200.0, 250.0)]
    segment = Segment(books=books_of(HOURS), ratios=ratios, top_power_limit_w=TOP_W, n_again=1)
    assert estimate_saving([segment], signal=None) == UnknownSaving(code="too_early", n_looks=MIN_LOOKS - 1)


def test_of_a_run_that_did_nothing_there_is_nothing_to_say() -> None:
    found = estimate(open_books(), [])
    assert found == UnknownSaving(code="too_early", n_looks=0)


def test_of_a_baseline_that_was_paid_for_there_is_no_share() -> None:
    negative = constant_signal(-0.02, kind="price", unit="EUR/kWh", now_s=0.0)
    found = estimate(books_of(HOURS), [ratios_at(200.0, 0.9, 1.1)], negative)
    assert found == UnknownSaving(code="no_baseline", n_looks=8)


@pytest.mark.parametrize(("error_ratio", "is_known"), [(0.0, True), (0.1, False)])
def test_of_a_baseline_that_may_be_nothing_there_is_no_share(error_ratio: float, *, is_known: bool) -> None:
    signal = hourly(np.array([300.0] * 8 + [-300.0] * 8))  # the baseline's second half pays for most of its first
    history = [Deed(duration_s=15.5 * HOUR_S, power_w=100.0, power_limit_w=200.0)]
    ratios = [ratios_at(200.0, 1.0, 1.1, error_ratio=error_ratio)]
    books = books_of(history, begins_s=float(signal.starts_s[0]))
    found = estimate(books, ratios, signal)
    assert isinstance(found, KnownSaving) == is_known


def test_without_errors_the_interval_is_the_twins_luck() -> None:
    found = estimate(books_of(HOURS), [ratios_at(200.0, 0.9, 1.1)])
    assert isinstance(found, KnownSaving)
    halves = found.saved_ci90_ratio, found.saved_energy_ci90_ratio, found.slowdown_ci90_ratio
    assert halves == pytest.approx((1.645 * LUCK_RATIO,) * 3)


def test_errors_that_are_one_add_up() -> None:
    ratios = [ratios_at(limit_w, limit_w / 400.0, 1.1, error_ratio=0.002) for limit_w in reversed(LIMITS_W[:3])]
    one, other = (estimate(books_of(HOURS), ratios, correlation=each) for each in (np.ones((3, 3)), np.eye(3)))
    independent = estimate(books_of(HOURS), ratios)
    assert isinstance(one, KnownSaving)
    assert other == independent
    # A quarter of the energy is at each limit, all ratios err alike, and what was saved is 1 - E / baseline.
    spent, baseline = 4.0, 1 + 3 * 1.1
    sd_ratio = 3 * 0.002 * spent / baseline**2
    assert one.saved_ci90_ratio == pytest.approx(1.645 * np.hypot(sd_ratio, LUCK_RATIO), rel=1e-3)


@pytest.mark.parametrize(("error_ratio", "is_known"), [(0.005, True), (0.01, False)])
@pytest.mark.parametrize("energy_ratio", [1.0, 1.2])
def test_nothing_is_told_within_more_than_a_point(error_ratio: float, energy_ratio: float, *, is_known: bool) -> None:
    """The estimate has no say in it: it may be a zero, or a saving."""
    history = [Deed(duration_s=50_000.0, power_w=100.0, power_limit_w=200.0)]
    found = estimate(books_of(history), [ratios_at(200.0, 1.0, energy_ratio, error_ratio=error_ratio)])
    assert isinstance(found, KnownSaving) == is_known
    if isinstance(found, KnownSaving):
        assert max(found.saved_ci90_ratio, found.saved_energy_ci90_ratio, found.slowdown_ci90_ratio) <= 0.01
    else:
        assert found.code == "too_early"


def test_a_run_at_the_top_that_was_asked_to_wait_has_changed_something() -> None:
    waited = Deed(duration_s=1_000.0, power_w=20.0, power_limit_w=None, pause="asked")
    found = estimate(books_of([Deed(duration_s=9_000.0, power_w=100.0, power_limit_w=TOP_W), waited]), [])
    assert isinstance(found, KnownSaving)
    assert (found.is_unchanged, found.slowdown_ci90_ratio) == (False, 0.0)
    assert found.saving.slowdown_ratio == pytest.approx(10 / 9)
    assert found.saving.saved_energy_ratio == pytest.approx(-20.0 / 900.0)


def test_where_a_price_is_negative_a_run_at_the_top_has_saved_nothing_all_the_same() -> None:
    negative = constant_signal(-0.02, kind="price", unit="EUR/kWh", now_s=0.0)
    found = estimate(books_of([Deed(duration_s=9_000.0, power_w=100.0, power_limit_w=TOP_W)]), [], negative)
    assert isinstance(found, KnownSaving)
    assert (found.is_unchanged, found.saving.saved_ratio) == (True, 0.0)


@settings(max_examples=30)
@given(histories, histories, signals())
def test_two_parts_on_one_curve_are_one_run(one: list[Deed], other: list[Deed], signal: Signal) -> None:
    ratios = [ratios_at(limit_w, limit_w / 400.0, 1.1) for limit_w in LIMITS_W[:3]]
    books = books_of([*one, *other])
    whole = Segment(books=books, ratios=ratios, top_power_limit_w=TOP_W)
    cut = len(books.slots) // 2
    parts = [replace(whole, books=replace(books, slots=slots)) for slots in (books.slots[:cut], books.slots[cut:])]
    once, twice = (estimate_saving(segments, signal=signal) for segments in ([whole], parts))
    assert isinstance(once, KnownSaving)
    assert isinstance(twice, KnownSaving)
    assert twice.saving.energy_j == pytest.approx(once.saving.energy_j)
    assert twice.saving.baseline_energy_j == pytest.approx(once.saving.baseline_energy_j)
    assert twice.saving.baseline_duration_s == pytest.approx(once.saving.baseline_duration_s)
    assert twice.saving.baseline_signal_energy == pytest.approx(once.saving.baseline_signal_energy, rel=1e-6)


def test_errors_of_two_curves_are_independent() -> None:
    history = [Deed(duration_s=50_000.0, power_w=100.0, power_limit_w=200.0)]
    segment = Segment(
        books=books_of(history), ratios=[ratios_at(200.0, 1.0, 1.1, error_ratio=0.003)], top_power_limit_w=TOP_W
    )
    later = replace(segment, books=books_of(history, begins_s=100_000.0))
    one, both = (estimate_saving(segments, signal=None) for segments in ([segment], [segment, later]))
    assert isinstance(one, KnownSaving)
    assert isinstance(both, KnownSaving)
    luck_ratio = 1.645 * LUCK_RATIO
    alone, together = (math.sqrt(each.saved_energy_ci90_ratio**2 - luck_ratio**2) for each in (one, both))
    assert together == pytest.approx(alone / math.sqrt(2), rel=1e-6)


def test_an_error_that_limits_and_curves_share_does_not_average_out() -> None:
    history = [Deed(duration_s=25_000.0, power_w=100.0, power_limit_w=limit_w) for limit_w in (200.0, 250.0)]
    ratios = [replace(ratios_at(limit_w, 1.0, 1.1), shared_error_ratio=0.003) for limit_w in (200.0, 250.0)]
    segment = Segment(books=books_of(history), ratios=ratios, top_power_limit_w=TOP_W)
    later = replace(segment, books=books_of(history, begins_s=100_000.0))
    for segments in ([segment], [segment, later]):
        found = estimate_saving(segments, signal=None)
        assert isinstance(found, KnownSaving)
        half_ratio = 1.645 * np.hypot(0.003 / 1.1**2, LUCK_RATIO)
        assert (found.saved_energy_ci90_ratio, found.saved_ci90_ratio) == pytest.approx((half_ratio,) * 2, rel=1e-6)
        assert found.slowdown_ci90_ratio == pytest.approx(1.645 * LUCK_RATIO)


def test_what_has_no_variance_correlates_with_nothing() -> None:
    covariance = np.array([[4.0, 3.0, 0.0], [3.0, 9.0, 0.0], [0.0, 0.0, 0.0]])
    assert correlation_of(covariance) == pytest.approx(np.array([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 0.0]]))


PINNED = [
    Deed(duration_s=2 * HOUR_S, power_w=100.0, power_limit_w=200.0),
    Deed(duration_s=HOUR_S, power_w=80.0, power_limit_w=150.0, purpose=Purpose.PINNED),
    Deed(duration_s=2 * HOUR_S, power_w=150.0, power_limit_w=TOP_W),
]
PINNED_RATIOS = [ratios_at(150.0, 0.8, 1.2), ratios_at(200.0, 0.9, 1.1)]


def test_a_pin_costs_what_its_work_would_not_have_taken_by_the_plan_before_it() -> None:
    found = estimate(books_of(PINNED), PINNED_RATIOS)
    assert isinstance(found, KnownSaving)
    assert found.pinned is not None
    assert found.pinned.extra_s == pytest.approx(HOUR_S - 0.8 / 0.9 * HOUR_S)
    assert found.pinned.extra_energy_j == pytest.approx(80.0 * HOUR_S * (1 - 1.2 / 1.1))
    assert found.pinned.extra_ci90_s == pytest.approx(1.645 * LUCK_RATIO * HOUR_S)
    assert found.pinned.extra_energy_ci90_j == pytest.approx(1.645 * LUCK_RATIO * 80.0 * HOUR_S)


@pytest.mark.parametrize(
    "history",
    [
        PINNED[1:],
        [replace(PINNED[0], duration_s=HOUR_S / 2), *PINNED[1:]],
        [replace(PINNED[0], purpose=Purpose.FIRST_PASS), *PINNED[1:]],
        [replace(each, purpose=Purpose.PLAN) for each in PINNED],
    ],
    ids=["no plan before", "none in an hour before", "only the first pass", "no pin"],
)
def test_of_a_pin_without_a_plan_before_it_no_cost_is_told(history: list[Deed]) -> None:
    found = estimate(books_of(history), PINNED_RATIOS)
    assert isinstance(found, KnownSaving)
    assert found.pinned is None


def test_the_cost_of_a_pin_that_is_not_known_to_a_point_is_not_told() -> None:
    ratios = [ratios_at(150.0, 0.8, 1.2, error_ratio=0.009), PINNED_RATIOS[1]]
    long = [replace(PINNED[0], duration_s=40 * HOUR_S), PINNED[1]]
    found = estimate(books_of(long), ratios)
    assert isinstance(found, KnownSaving)
    assert found.pinned is None


@settings(max_examples=10)
@given(st.floats(1e-4, 0.003), st.integers(0, 1_000))
def test_the_interval_of_what_a_pin_costs_agrees_with_random_draws(error_ratio: float, seed: int) -> None:
    ratios = [replace(each, rate_error_ratio=error_ratio, energy_error_ratio=error_ratio) for each in PINNED_RATIOS]
    found = estimate(books_of(PINNED), ratios)
    assert isinstance(found, KnownSaving)
    assert found.pinned is not None
    rng = np.random.default_rng(seed)
    (rate_150, rate_200), (energy_150, energy_200) = (
        np.array(means)[:, None] + error_ratio * rng.standard_normal((2, 10_000)) for means in ((0.8, 0.9), (1.2, 1.1))
    )
    for half, amount, drawn in (
        (found.pinned.extra_ci90_s, HOUR_S, 1 - rate_150 / rate_200),
        (found.pinned.extra_energy_ci90_j, 80.0 * HOUR_S, 1 - energy_150 / energy_200),
    ):
        assert half == pytest.approx(1.645 * amount * math.hypot(float(drawn.std()), LUCK_RATIO), rel=0.05)


def test_the_cost_of_pins_on_two_curves_adds_up() -> None:
    segment = Segment(books=books_of(PINNED), ratios=PINNED_RATIOS, top_power_limit_w=TOP_W)
    later = replace(segment, books=books_of(PINNED, begins_s=10 * HOUR_S))
    one, both = estimate_saving([segment], signal=None), estimate_saving([segment, later], signal=None)
    assert isinstance(one, KnownSaving)
    assert isinstance(both, KnownSaving)
    assert one.pinned is not None
    assert both.pinned is not None
    assert both.pinned.extra_s == pytest.approx(2 * one.pinned.extra_s)
    assert both.pinned.extra_ci90_s == pytest.approx(2 * one.pinned.extra_ci90_s)
    without = replace(segment, books=books_of(PINNED[1:], begins_s=10 * HOUR_S))
    partly = estimate_saving([segment, without], signal=None)
    assert isinstance(partly, KnownSaving)
    assert partly.pinned is None, "of one of them it is not known"
