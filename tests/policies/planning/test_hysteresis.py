"""What keeps a limit that is nearly as good: the same rule without a signal as with one that does not vary."""

import numpy as np
import pytest

from policies.planning import CurrentLimit, Progress, SlowdownObjective, SwitchingRules
from policies.vocabulary.profile import PowerProfile, ProfilePoint
from policies.vocabulary.signal import constant_signal
from policies.vocabulary.units import HOUR_S
from tests.policies.planning.decisions import NOW_S, decided


@pytest.mark.parametrize("more_w", [0.0, 5.0, 10.0, 15.0])
@pytest.mark.parametrize("n_iterations", [None, 5e5])
def test_hysteresis_is_the_same_without_and_with_a_constant_signal(
    more_w: float, n_iterations: float | None
) -> None:
    limits_w = np.arange(100.0, 301.0, 5.0)
    rates_per_s = 10 * (1 - np.exp(-(limits_w - 20) / 80))
    profile = PowerProfile(
        tuple(
            ProfilePoint(power_limit_w=limit_w, power_w=limit_w, iterations_per_s=rate_per_s)
            for limit_w, rate_per_s in zip(limits_w.tolist(), rates_per_s.tolist(), strict=True)
        )
    )
    rules = SwitchingRules(period_s=300.0, min_dwell_s=60.0, min_gain_ratio=0.01)
    objective, so_far = (
        SlowdownObjective(max_slowdown=1.1),
        Progress(n_iterations=0.0, active_s=0.0, started_at_s=NOW_S, total_iterations=n_iterations),
    )
    steady = constant_signal(200.0, kind="average", unit="gCO2eq/kWh", now_s=NOW_S)
    first = decided(objective, profile=profile, rules=rules, so_far=so_far)
    current = CurrentLimit(power_limit_w=first.power_limit_w + more_w, since_s=NOW_S - HOUR_S)
    kept = [
        decided(objective, profile=profile, rules=rules, so_far=so_far, current=current, history=history).power_limit_w
        for history in (None, steady)
    ]
    assert kept == [current.power_limit_w] * 2
