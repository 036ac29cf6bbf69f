"""Tests of paired looks: what wanders cancels, errors shrink, and what is no neighbour is no pair."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.profiling.curve_model import estimate_ratios
from policies.profiling.measurement import PRIOR_SCATTER, Observation, Scatter, WindowNoise
from policies.profiling.paired_looks import EMPTY_POOL, LookLengths, Looks, advance_looks, look_lengths, look_period_s
from policies.vocabulary.limit_ratios import LimitRatios
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.units import DAY_S

TOP_W, LOW_W = 300.0, 200.0
TRUE_RATIO = 0.9
CURVE = PowerProfile.from_rows([(LOW_W, 180.0, 0.88), (240.0, 220.0, 0.95), (TOP_W, 280.0, 1.0)])
STEADY = Scatter(seen_cv_ratio=0.01, n_iterations=1e6)
LENGTHS = LookLengths()


def rate_per_s(power_limit_w: float) -> float:
    """Return the rate of a steady job."""
    return 20.0 if power_limit_w == TOP_W else 20.0 * TRUE_RATIO


def trained(
    looks: Looks,
    power_limit_w: float,
    duration_s: int,
    *,
    factor: Callable[[float], float] = lambda _at_s: 1.0,
    power_w: float | None = None,
    warmth_w: Callable[[float], tuple[float, ...]] = lambda _at_s: (),
    lengths: LookLengths = LENGTHS,
) -> Looks:
    """Train for a while at a limit, in steps of a second, while the job as a whole is `factor` times as fast."""
    for _ in range(duration_s):
        seen = Observation(
            power_limit_w=power_limit_w,
            active_s=1.0,
            n_iterations=rate_per_s(power_limit_w) * factor(looks.active_s),
            energy_j=0.9 * power_limit_w if power_w is None else power_w,
            warmth_w=warmth_w(looks.active_s),
        )
        looks = advance_looks(looks, seen, lengths=lengths, scatter=STEADY, settle_s=1.0)
    return looks


def look(looks: Looks | None = None, *, factor: Callable[[float], float] = lambda _at_s: 1.0) -> Looks:
    """Return the looks after one more at the top."""
    for limit_w, duration_s in [(LOW_W, 25), (TOP_W, 12), (LOW_W, 25)]:
        looks = trained(looks or Looks(), limit_w, duration_s, factor=factor)
    assert looks is not None
    return looks


def ratio_of(looks: Looks, limit_w: float = LOW_W) -> LimitRatios:
    """Return the ratios of a limit."""
    return estimate_ratios(CURVE, looks, [limit_w]).ratios[0]


def test_a_pair_knows_how_much_of_the_warming_it_has_seen() -> None:
    """The power rises by 90 W in the look; one filter of it by 9 W meanwhile, on both sides the other has fallen."""
    looks = Looks()
    for limit_w, duration_s, warmth_w in [
        (LOW_W, 25, (180.0, 190.0)),
        (TOP_W, 12, (189.0, 188.0)),
        (LOW_W, 25, (180.0, 186.0)),
    ]:
        looks = trained(looks, limit_w, duration_s, warmth_w=lambda _, them=warmth_w: them)  # type: ignore[misc]
    [pair] = looks.pairs
    assert (pair.power_w2, *pair.warmed_w2) == pytest.approx((90.0**2, 90.0 * 9.0, 0.0))
    later = trained(trained(looks, TOP_W, 12), LOW_W, 25).pairs[0]
    assert (later.rate.n, later.power_w2, later.warmed_w2) == (2, pair.power_w2, pair.warmed_w2), (
        "of this one it is not"
    )


def test_a_look_shows_the_ratio_of_rates_and_of_energies() -> None:
    looks = look()
    assert (looks.n_pairs, looks.n_looks(TOP_W), looks.n_between(TOP_W, LOW_W)) == (1, 1, 1)
    [pair] = looks.pairs
    assert math.exp(pair.rate.mean_log) == pytest.approx(TRUE_RATIO)
    assert math.exp(pair.energy.mean_log) == pytest.approx((LOW_W / TOP_W) / TRUE_RATIO)


@given(st.floats(-1e-3, 1e-3), st.floats(0.2, 5.0))
def test_what_wanders_evenly_cancels_in_a_look(trend_per_s: float, level: float) -> None:
    """A job that becomes slower or faster all the time, and is as a whole another one, has the same ratio."""
    [pair] = look(factor=lambda at_s: level * math.exp(trend_per_s * at_s)).pairs
    assert math.exp(pair.rate.mean_log) == pytest.approx(TRUE_RATIO, rel=2e-4)


def test_a_change_of_limit_that_comes_anyway_is_a_look_for_nothing() -> None:
    looks = trained(trained(Looks(), LOW_W, 60), TOP_W, 60)
    [pair] = looks.pairs
    assert math.exp(pair.rate.mean_log) == pytest.approx(TRUE_RATIO)
    assert pair.rate.precision < look().pairs[0].rate.precision, "it is less precise than one with two sides"
    back = trained(looks, LOW_W, 60)
    assert (back.n_pairs, back.pairs[0].rate.n) == (2, 2)


@pytest.mark.parametrize(("top_s", "after_s"), [(4, 30), (12, 3)])
def test_what_is_too_short_is_no_side_of_a_look(top_s: int, after_s: int) -> None:
    looks = trained(trained(trained(Looks(), LOW_W, 30), TOP_W, top_s), LOW_W, after_s)
    assert trained(looks, 240.0, 5).n_looks(TOP_W) == (top_s > 6), "the one side that is there counts"


@pytest.mark.parametrize(("limit_w", "factor"), [(TOP_W, 0.5), (LOW_W, 0.2)])
def test_a_job_that_changes_its_speed_between_two_limits_shows_nothing_of_them(limit_w: float, factor: float) -> None:
    looks = Looks()
    for each_w in (LOW_W, TOP_W, LOW_W):
        changed = factor if each_w == limit_w else 1.0
        looks = trained(looks, each_w, 60, factor=lambda _, it=changed: it)  # type: ignore[misc]
    assert (looks.n_pairs, looks.pairs) == (0, ())


def test_after_a_long_pause_there_are_no_neighbours() -> None:
    before = trained(trained(Looks(), LOW_W, 30), TOP_W, 12)
    assert trained(before.after_pause(30.0), LOW_W, 30).n_pairs == 1
    assert trained(before.after_pause(90.0), LOW_W, 30).n_pairs == 0
    assert trained(before.after_pause(40.0).after_pause(40.0), LOW_W, 30).n_pairs == 0


@pytest.mark.parametrize(("shorter_after_s", "lasts_s"), [(3, 4), (5, 6), (10, 11)])
def test_a_look_that_is_shortened_in_its_middle_is_one_look(shorter_after_s: int, lasts_s: int) -> None:
    """Neighbouring windows have just shown how little they differ: from then on 2 s are enough."""
    short = LookLengths(top_s=2.0)
    looks = trained(trained(Looks(), LOW_W, 25), TOP_W, shorter_after_s)
    looks = trained(looks, TOP_W, lasts_s - shorter_after_s, lengths=short)
    looks = trained(looks, LOW_W, 10, lengths=short)
    assert (looks.n_pairs, looks.n_looks(TOP_W)) == (1, 1)
    assert trained(looks, LOW_W, 60, lengths=short).n_pairs == 1
    whole = trained(trained(trained(Looks(), LOW_W, 25), TOP_W, lasts_s), LOW_W, 10, lengths=short)
    assert looks.pairs == whole.pairs, "with both of its sides"


def test_a_look_between_two_limits_is_one_look() -> None:
    """The plan has gone on meanwhile: the seconds at the top are compared with those before and with those after."""
    looks = trained(trained(trained(Looks(), LOW_W, 60), TOP_W, 12), 240.0, 60)
    assert (looks.n_between(LOW_W, TOP_W), looks.n_between(240.0, TOP_W), looks.n_looks(TOP_W)) == (1, 1, 1)
    longer = trained(trained(trained(Looks(), LOW_W, 60), TOP_W, 60), 240.0, 60)
    assert longer.n_looks(TOP_W) == 2, "its end was in no pair yet"
    assert Looks(pairs=looks.pairs).n_looks(TOP_W) == 1, "nor does a restart make two of it"


def test_an_impossible_observation_is_ignored() -> None:
    looks = look()
    seen = Observation(power_limit_w=LOW_W, active_s=-1.0, n_iterations=1.0, energy_j=1.0)
    assert advance_looks(looks, seen, lengths=LENGTHS, scatter=STEADY, settle_s=1.0) is looks


@given(st.integers(1, 6))
def test_errors_shrink_with_each_look(n: int) -> None:
    looks = Looks()
    errors = [ratio_of(looks).rate_error_ratio]
    for _ in range(n):
        looks = look(looks)
        errors.append(ratio_of(looks).rate_error_ratio)
    assert all(after < before for before, after in pairwise(errors))
    found = ratio_of(looks)
    assert abs(found.rate_ratio - TRUE_RATIO) < 2 * found.rate_error_ratio + 1e-4
    assert found.n_looks == looks.n_looks(TOP_W)


def test_a_limit_without_a_look_follows_from_its_neighbours() -> None:
    """The look says that the slope of the curve is off, and 210 W, so near, is known nearly as well."""
    before, after = ratio_of(Looks(), 210.0), ratio_of(look(), 210.0)
    assert after.rate_ratio > before.rate_ratio
    assert ratio_of(look()).rate_error_ratio < after.rate_error_ratio < before.rate_error_ratio
    assert after.n_looks == 0


@pytest.mark.parametrize("limit_w", [TOP_W, TOP_W + 50.0])
def test_the_top_is_the_measure_of_all(limit_w: float) -> None:
    found = ratio_of(look(), limit_w)
    assert (found.rate_ratio, found.energy_ratio) == (1.0, 1.0)
    assert found.rate_error_ratio == pytest.approx(0.0, abs=1e-6)


def test_the_claimed_errors_are_the_true_ones() -> None:
    """Iterations scatter by 1 %, and the whole job wanders within minutes: the errors say what they are."""
    rng = np.random.default_rng(7)
    normalised = []
    for _ in range(60):
        wander = np.cumsum(rng.normal(0.0, 0.0006, 600)) + rng.normal(0.0, 0.01 / math.sqrt(20.0), 600)
        looks = Looks()
        for _ in range(4):
            looks = look(looks, factor=lambda at_s, wander=wander: math.exp(float(wander[int(at_s)])))  # type: ignore[misc]
        found = ratio_of(looks)
        normalised.append((found.rate_ratio - TRUE_RATIO) / found.rate_error_ratio)
    assert abs(np.mean(normalised)) < 0.4
    assert 0.6 < np.std(normalised) < 1.4


def test_a_pair_that_is_far_off_is_clipped() -> None:
    pool = EMPTY_POOL
    for value in (0.0, 0.001, -0.001, 0.0, 0.001):
        pool = pool.plus(value, error_ratio=0.001)
    assert abs(pool.plus(1.0, error_ratio=0.001).mean_log) < 0.001


def test_looks_are_longer_where_iterations_scatter() -> None:
    def top_s(cv_ratio: float, iteration_time_s: float) -> float:
        return look_lengths(Scatter(seen_cv_ratio=cv_ratio, n_iterations=1e6), iteration_time_s=iteration_time_s).top_s

    assert (top_s(0.01, 0.3), top_s(0.02, 0.3), top_s(0.05, 0.3)) == (10.0, 10.0, 30.0)
    assert 10.0 < top_s(0.03, 0.3) < 30.0
    assert top_s(0.01, 60.0) == 240.0, "a few iterations it must be"


def steady(*, rate_ratio: float, power_ratio: float, n: int = 50) -> Scatter:
    """Return the noise of a job whose windows of 2 s differ by so much."""
    noise = WindowNoise(squares_s=((0.0, 0.0),) * n, rate_s=2 * rate_ratio**2, power_s=2 * power_ratio**2)
    return Scatter(seen_cv_ratio=5 * rate_ratio, n_iterations=1e6, windows=noise)


def test_looks_are_short_where_neighbouring_windows_agree() -> None:
    def top_s(scatter: Scatter, iteration_time_s: float = 0.064) -> float:
        return look_lengths(scatter, iteration_time_s=iteration_time_s).top_s

    assert top_s(steady(rate_ratio=0.0003, power_ratio=0.005)) == 2.0, "an H100 that is the bottleneck"
    assert 2.0 < top_s(steady(rate_ratio=0.0003, power_ratio=0.01)) < 10.0, "its energy is what needs time"
    assert 2.0 < top_s(steady(rate_ratio=0.002, power_ratio=0.005)) < 10.0
    assert top_s(steady(rate_ratio=0.02, power_ratio=0.005)) >= 10.0, "the host holds it up"
    assert top_s(steady(rate_ratio=0.0003, power_ratio=0.005, n=3)) == 10.0, "so few say nothing"
    assert top_s(steady(rate_ratio=0.0003, power_ratio=0.005), 0.25) == 3.0, "a dozen iterations"
    assert top_s(steady(rate_ratio=0.0003, power_ratio=0.005), 2.0) == 10.0
    assert top_s(PRIOR_SCATTER) > 10.0


def test_what_windows_have_shown_is_the_least_error_of_a_look() -> None:
    def error_ratio(scatter: Scatter) -> float:
        looks = Looks()
        for limit_w, duration_s in [(LOW_W, 25), (TOP_W, 12), (LOW_W, 25)]:
            for _ in range(duration_s):
                seen = Observation(
                    power_limit_w=limit_w, active_s=1.0, n_iterations=rate_per_s(limit_w), energy_j=0.9 * limit_w
                )
                looks = advance_looks(looks, seen, lengths=LENGTHS, scatter=scatter, settle_s=1.0)
        return 1 / math.sqrt(looks.pairs[0].rate.precision)

    wandering = steady(rate_ratio=0.01, power_ratio=0.01)
    assert error_ratio(wandering) > 3 * error_ratio(steady(rate_ratio=0.0003, power_ratio=0.01))


def periods(n_looks: Iterable[int], *, age_s: float, top_s: float = 10.0, length_s: float | None = None) -> set[float]:
    """Return after how long the next look is due, after some numbers of them."""
    lengths = LookLengths(top_s=top_s)
    return {look_period_s(n, lengths, age_s=age_s, length_s=length_s) for n in n_looks}


def looked(
    n: int, *, bites_s: float, warms_ratio: float = 0.0, noise_ratio: float = 0.0, top_s: float = 2.0
) -> tuple[Looks, int]:
    """Return so many looks where rate and power go to those of a limit within some time, and which one has shown that.

    They take 10 s from then on. The power warms on, by a share of its change within a minute.
    """
    looks, step_s, seen_at = Looks(), 0.2, 0
    rate, power_w, warm_w, rng = rate_per_s(LOW_W), 0.9 * LOW_W, 0.0, np.random.default_rng(3)
    for number in range(n):
        lengths = LookLengths(top_s=10.0 if looks.bites_slowly else top_s)
        for limit_w, settled_s in ((LOW_W, lengths.side_s), (TOP_W, lengths.top_s), (LOW_W, lengths.side_s)):
            lasts_s = settled_s + (2.2 if looks.bites_slowly else 0.7)
            for _ in range(round(lasts_s / step_s)):
                left = math.exp(-step_s / bites_s)
                rate = rate_per_s(limit_w) + left * (rate - rate_per_s(limit_w))
                power_w = 0.9 * limit_w + left * (power_w - 0.9 * limit_w)
                warm_w += (warms_ratio * (limit_w - LOW_W) - warm_w) * step_s / 60.0
                noise_rate, noise_power = 1 + noise_ratio * rng.standard_normal(2)
                seen = Observation(
                    power_limit_w=limit_w,
                    active_s=step_s,
                    n_iterations=rate * noise_rate * step_s,
                    energy_j=(power_w + warm_w) * noise_power * step_s,
                )
                looks = advance_looks(looks, seen, lengths=lengths, scatter=QUIET, settle_s=0.5)
        seen_at = seen_at or (number + 1) * looks.bites_slowly
    return looks, seen_at


QUIET = replace(
    STEADY,
    windows=WindowNoise(squares_s=((1e-8, 1e-5),) * 8, rate_s=1e-8, power_s=1e-5),
)


@pytest.mark.parametrize("bites_s", [0.6, 1.0])
def test_limits_that_bite_slowly_are_waited_for_longer(bites_s: float) -> None:
    """Each look has the same error: it is no scatter. What was seen before that is known counts no more."""
    looks, seen_at = looked(12, bites_s=bites_s)
    assert 1 <= seen_at <= 4
    [pair] = looks.pairs
    assert pair.rate.n <= 2 * 12 - 3
    assert math.exp(pair.rate.mean_log) == pytest.approx(TRUE_RATIO, rel=0.002)


@pytest.mark.parametrize(("noise_ratio", "top_s"), [(0.0, 2.0), (0.02, 2.0), (0.1, 2.0), (0.0, 10.0)])
def test_limits_that_bite_at_once_are_looked_at_shortly_while_a_board_warms(noise_ratio: float, top_s: float) -> None:
    looks, seen_at = looked(40, bites_s=0.1, warms_ratio=0.3, noise_ratio=noise_ratio, top_s=top_s)
    assert seen_at == 0
    assert looks.pairs[0].rate.n >= 40


def test_looks_are_dense_at_first_and_even_later() -> None:
    assert periods(range(8), age_s=1e3) == {120.0}
    assert periods(range(8, 60), age_s=1e4) == {1_800.0}
    assert periods(range(8, 60), age_s=2 * DAY_S) == {3_600.0}
    assert periods(range(8, 60), age_s=1e4, length_s=2e4) == {900.0}
    assert periods(range(8, 60), age_s=1e4, top_s=30.0) == {900.0}
