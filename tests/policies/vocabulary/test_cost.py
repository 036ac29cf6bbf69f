"""Costs: the formulas of the papers, by hand."""

import numpy as np

from policies.vocabulary.cost import chase_cost, zeus_cost
from tests.policies.days import A40


def test_zeus_cost() -> None:
    assert zeus_cost(100.0, 2.0, eta=0.25, max_power_w=200.0) == (25 + 150) / 2


def test_chase_cost() -> None:
    cost = chase_cost(100.0, 2.0, eta=0.25, max_power_w=200.0, value=3.0, max_value=5.0)
    assert cost == (0.25 * 100 * 3 + 0.75 * 200 * 5) / 2


def test_chase_with_a_constant_signal_is_zeus() -> None:
    chase = chase_cost(A40.power_w, A40.iterations_per_s, eta=0.6, max_power_w=235.0, value=7.0, max_value=7.0)
    zeus = zeus_cost(A40.power_w, A40.iterations_per_s, eta=0.6, max_power_w=235.0)
    np.testing.assert_allclose(chase, 7.0 * zeus)
