"""A board that warms, as its meters show it."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from policies.thermal.board import Metered, ThermalState, advance_thermal

TOP_W = 700.0
STEP_S = 2.0


@dataclass
class WarmingBoard:
    """A board, and what is learnt of it.

    Attributes:
        per_k_ratio: it draws so much more for each kelvin.
        slow_k_per_w, fast_k_per_w: it becomes so much warmer for each watt, slowly and at once.
        time_constant_s: how slowly [s].
        wander_ratio: the standard deviation of what the job's energy wanders by in five minutes.
        sensor: what it tells of a temperature [°C].
        slow_w: the filtered power that the slow part of the temperature goes by [W].
    """

    per_k_ratio: float = 0.003
    slow_k_per_w: float = 0.04
    fast_k_per_w: float = 0.01
    time_constant_s: float = 60.0
    wander_ratio: float = 0.0
    sensor: Callable[[float], float | None] = round
    seed: int = 1
    slow_w: float = 100.0
    at_s: float = 0.0
    state: ThermalState = field(default_factory=ThermalState)
    _off: float = 0.0

    def __post_init__(self) -> None:
        """Begin with the dice."""
        self._rng = np.random.default_rng(self.seed)

    def work(self, power_w: float, lasts_s: float, *, limit_w: float | None = TOP_W) -> None:
        """Train for a while at a limit, or pause; the power is that of a board at 60 °C."""
        for _ in range(round(lasts_s / STEP_S)):
            keep = math.exp(-STEP_S / 300.0)
            self._off = keep * self._off + math.sqrt(1 - keep**2) * self.wander_ratio * self._rng.standard_normal()
            before_c = 30.0 + self.slow_k_per_w * self.slow_w + self.fast_k_per_w * power_w
            drawn_w = power_w * math.exp(self.per_k_ratio * (before_c - 60.0) + self._off)
            self.slow_w = drawn_w + (self.slow_w - drawn_w) * math.exp(-STEP_S / self.time_constant_s)
            after_c = 30.0 + self.slow_k_per_w * self.slow_w + self.fast_k_per_w * power_w
            seen_c = self.sensor((before_c + after_c) / 2)
            self.state = advance_thermal(
                self.state,
                Metered(
                    begins_s=self.at_s,
                    duration_s=STEP_S,
                    energy_j=drawn_w * STEP_S,
                    n_iterations=0.0 if limit_w is None else 4.0 * STEP_S,
                    power_limit_w=limit_w,
                    temperature_c=seen_c,
                ),
            )
            self.at_s += STEP_S

    def train(self, n_rounds: int) -> "WarmingBoard":
        """Train at a low and at a high limit, with a validation in each round."""
        for _ in range(n_rounds):
            self.work(600.0, 300.0)
            self.work(450.0, 300.0, limit_w=480.0)
            self.work(150.0, 120.0, limit_w=None)
        return self


def told(values: Iterable[float | None]) -> Callable[[float], float | None]:
    """Return a sensor that tells some values, one after the other."""
    them = iter(values)
    return lambda _: next(them)
