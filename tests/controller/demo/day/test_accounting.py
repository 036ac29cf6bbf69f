"""True totals: exact integrals of power and carbon, from the first iteration to the last."""

import numpy as np
import pytest

from controller.demo.day.accounting import simulated_totals
from controller.gpu.simulation.event_log import LimitSet, LoadChanged
from controller.gpu.simulation.measured_curve import load_curve
from controller.gpu.simulation.noise import Noise
from controller.gpu.simulation.timeline import GpuTimeline
from controller.runtime.clock import NS_PER_S
from policies.vocabulary.signal import Signal

HOUR_NS = 3_600 * NS_PER_S


def signal(values: list[float]) -> Signal:
    starts_s = 3_600.0 * np.arange(len(values), dtype=np.float64)
    return Signal(
        kind="average",
        zone="X",
        source="test",
        unit="g/kWh",
        starts_s=starts_s,
        values=np.array(values),
        ends_s=3_600.0 * len(values),
        issued_at_s=0.0,
    )


GAUSS = (0.5 - 0.5 / 3**0.5, 0.5 + 0.5 / 3**0.5)


def history() -> GpuTimeline:
    past = GpuTimeline(load_curve(), Noise(1), start_ns=0)
    past.record(LoadChanged(HOUR_NS // 2, loaded=True))
    past.record(LimitSet(HOUR_NS + HOUR_NS // 4, 200.0))
    past.record(LoadChanged(2 * HOUR_NS + HOUR_NS // 3, loaded=False))
    return past


def test_carbon_is_the_integral_of_power_times_intensity() -> None:
    past = history()
    totals = simulated_totals(
        past,
        iterations=7,
        signal=signal([100.0, 300.0, 500.0]),
        time_s=lambda time_ns: time_ns / NS_PER_S,
        time_ns=lambda time_s: round(time_s * NS_PER_S),
    )
    summed_j, summed_g = 0.0, 0.0
    for second in range(1_800, 8_400):  # two points of each second, of Gauss: power is a curve while a board warms
        power_w = sum(past.power_w(round((second + share) * NS_PER_S)) for share in GAUSS) / 2
        summed_j += power_w
        summed_g += power_w * [100.0, 300.0, 500.0][second // 3_600] / 3.6e6
    assert totals.energy_j == pytest.approx(summed_j, rel=1e-9)
    assert totals.carbon_g == pytest.approx(summed_g, rel=1e-9)
    assert (totals.duration_s, totals.iterations) == (6_600.0, 7)


def test_a_signal_that_ends_too_early_is_refused() -> None:
    with pytest.raises(ValueError, match="does not cover"):
        simulated_totals(
            history(),
            iterations=7,
            signal=signal([100.0, 300.0]),
            time_s=lambda time_ns: time_ns / NS_PER_S,
            time_ns=lambda time_s: round(time_s * NS_PER_S),
        )


def test_totals_of_a_running_job_are_refused() -> None:
    past = history()
    past.record(LoadChanged(3 * HOUR_NS, loaded=True))
    with pytest.raises(ValueError, match="still uses"):
        simulated_totals(
            past, iterations=7, signal=signal([1.0, 1.0, 1.0]), time_s=lambda ns: ns / NS_PER_S, time_ns=lambda _: 0
        )
