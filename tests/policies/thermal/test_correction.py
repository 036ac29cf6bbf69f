"""Tests of the correction of ratios for what looks have not seen of a board's warming."""

from dataclasses import replace

import pytest

from policies.profiling.paired_looks import Pair
from policies.thermal.board import TIME_CONSTANTS_S, ThermalState
from policies.thermal.correction import corrected
from policies.vocabulary.limit_ratios import LimitRatios
from tests.policies.thermal.boards import WarmingBoard

TOP_POWER_W = 600.0


def ratios_at(power_limit_w: float, rate_ratio: float, energy_ratio: float) -> LimitRatios:
    return LimitRatios(
        power_limit_w=power_limit_w,
        rate_ratio=rate_ratio,
        rate_error_ratio=0.001,
        energy_ratio=energy_ratio,
        energy_error_ratio=0.001,
        n_looks=8,
    )


def pair_that_saw(seen_ratio: float) -> Pair:
    return Pair(lower_w=400.0, upper_w=700.0, power_w2=100.0, warmed_w2=(100.0 * seen_ratio,) * len(TIME_CONSTANTS_S))


@pytest.mark.parametrize("seen_ratio", [0.0, 0.1, 0.8])
def test_the_top_is_priced_as_warm_as_it_becomes(seen_ratio: float) -> None:
    """A look of a limit at which a board draws 480 W, against 600 W at the top: a look sees a part of its 4.8 K."""
    board = WarmingBoard(wander_ratio=0.002).train(12)
    [found] = corrected(
        [ratios_at(400.0, 0.96, 1.2)], [pair_that_saw(seen_ratio)], board.state, top_power_w=TOP_POWER_W
    )
    less_w = TOP_POWER_W * (1 - 0.96 / 1.2)
    per_w_ratio = 0.003 * 0.04
    expected = per_w_ratio * less_w * (1 - seen_ratio) / (1 - per_w_ratio * TOP_POWER_W)
    assert found.energy_ratio / 1.2 - 1 == pytest.approx(expected, rel=0.25)
    assert abs(found.energy_ratio / 1.2 - 1 - expected) <= 3 * found.shared_error_ratio / 1.2
    assert (found.rate_ratio, found.rate_error_ratio, found.n_looks) == (0.96, 0.001, 8)


def test_what_looks_have_seen_wholly_needs_no_correction() -> None:
    before = ratios_at(400.0, 0.96, 1.2)
    assert corrected([before], [pair_that_saw(1.0)], ThermalState(), top_power_w=TOP_POWER_W) == (before,)


def test_limits_that_change_no_power_need_no_correction() -> None:
    before = ratios_at(400.0, 1.0, 1.0)
    assert corrected([before], [], ThermalState(), top_power_w=TOP_POWER_W) == (before,)


def test_of_a_board_of_which_nothing_is_known_the_correction_is_not_either() -> None:
    less_w = TOP_POWER_W * (1 - 0.96 / 1.2)
    [found] = corrected([ratios_at(400.0, 0.96, 1.2)], [], ThermalState(), top_power_w=TOP_POWER_W)
    shift_ratio = 0.003 * 27.0 / TOP_POWER_W * less_w
    assert found.energy_ratio / 1.2 - 1 == pytest.approx(shift_ratio, rel=0.15)
    assert 0.7 <= found.shared_error_ratio / (found.energy_ratio - 1.2) <= 1.1


def test_the_lower_the_limit_the_more_is_missing_and_the_errors_are_one() -> None:
    low, high = corrected(
        [ratios_at(400.0, 0.9, 1.25), ratios_at(600.0, 0.98, 1.1)], [], ThermalState(), top_power_w=TOP_POWER_W
    )
    assert low.energy_ratio / 1.25 > high.energy_ratio / 1.1 > 1
    assert low.shared_error_ratio / 1.25 > high.shared_error_ratio / 1.1 > 0


def test_pairs_that_do_not_know_how_warm_the_board_was_do_not_count() -> None:
    before, unknown = ratios_at(400.0, 0.96, 1.2), Pair(lower_w=400.0, upper_w=700.0)
    one, other = (
        corrected([before], pairs, ThermalState(), top_power_w=TOP_POWER_W)
        for pairs in ([pair_that_saw(0.5)], [unknown, pair_that_saw(0.5), replace(unknown, lower_w=300.0)])
    )
    assert one == other
