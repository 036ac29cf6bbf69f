"""A training that waits while its controller asks for it, by the publisher's own rules, and what it truly costs."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

from controller.orders.pauses import LEASE_S
from policies.vocabulary.signal import Signal
from publishers.messages.codec import decode
from publishers.messages.reports import Command
from publishers.messages.topics import RunKey
from publishers.training.pausing.orders import PauseOrders
from tests.fakes import MIDNIGHT_S, USER, FixedProvider
from tests.policies.days import integral
from tests.scenarios.site import BOOT_ID, TOPICS, Site, Training

KEY: Final = RunKey(USER, "resnet50", "run-1")
FIRST_S: Final = MIDNIGHT_S + 1.0
"""When the first iteration begins: a controller has a second to start."""
LOOK_S: Final = LEASE_S / 10
"""How often it looks whether it is still asked to wait."""


class DayAheadPrices(FixedProvider):
    """Prices that are settled ahead."""

    async def fetch_forecast(self, *, now_s: float, until_s: float) -> Signal | None:
        return None if self.series is None else self.series.between(now_s, until_s)


class PausableTraining(Training):
    """A training that waits between two steps while it is asked to.

    Attributes:
        total: how many iterations it does.
        waits: from when to when it has waited [Unix s].
        obeys: whether it does; one with a hanging rank does not.
        is_waiting: whether it waits now.
    """

    obeys = True
    is_waiting = False

    def __init__(
        self,
        site: Site,
        *,
        total: int,
        idle_w: float,
        max_pause_s: float,
        rate: Callable[[float], float],
        **status: Any,  # noqa: ANN401 — the record checks them
    ) -> None:
        super().__init__(site, rate=rate, pausable=True, max_pause_s=max_pause_s, total_iterations=total, **status)
        self.total, self.waits, self._max_pause_s = total, list[tuple[float, float]](), max_pause_s
        self._prior_w, self._idle_w, self._draw_w = self.gpus[0].requested_power_limit_w, idle_w, self.gpus[0].draw_w
        self._orders = PauseOrders(KEY, boot_id=BOOT_ID, clock_ns=site.clock.monotonic_ns)
        self._paused_s = 0.0

    def listen(self) -> None:
        """Subscribe to commands, at a controller's connection."""
        self._bus.subscribe(TOPICS.run(KEY, "command"), lambda _, payload: self._take(payload), qos=1)

    def _take(self, payload: bytes) -> None:
        self._orders.on_command(decode(payload, Command))

    async def train_until(self, until_s: float) -> None:
        """Do all iterations, or those up to a time [Unix s], and wait whenever that is asked for."""
        while self.n_iterations < self.total and self._clock.now_s() < until_s:
            per_message = round(self._period_s * self._rate(self.gpus[0].requested_power_limit_w))
            await self.train_steps(min(max(per_message, 1), self.total - self.n_iterations))
            if self.obeys and self._orders.present() is not None:
                await self._wait(until_s)

    async def _wait(self, until_s: float) -> None:
        begin_s, gpu = self._clock.now_s(), self.gpus[0]
        until_s = min(until_s, begin_s + self._max_pause_s)
        self.is_waiting, gpu.draw_w = True, lambda _: self._idle_w
        self.say(paused_since_ns=self._clock.monotonic_ns())
        while self._orders.present() is not None and self._clock.now_s() < until_s:
            self.publish_status()
            await self._clock.sleep_until(self._clock.now_s() + LOOK_S)
        self._orders.end("it has lasted long enough")
        self.is_waiting, gpu.draw_w = False, self._draw_w
        self.waits.append((begin_s, self._clock.now_s()))
        self._paused_s += self._clock.now_s() - begin_s
        self.say(paused_since_ns=None, paused_s=self._paused_s)

    def cost(self, signal: Signal) -> float:
        """Return what its GPU has drawn, times the signal, from its first iteration to its last [unit times J]."""
        written = [(max(at_s, FIRST_S), limit_w) for at_s, limit_w in self.gpus[0].history if at_s < self.end_s]
        total = 0.0
        for (a_s, limit_w), (b_s, _) in pairwise([(FIRST_S, self._prior_w), *written, (self.end_s, 0.0)]):
            power_w = self._draw_w(limit_w)
            total += power_w * _between(signal, a_s, b_s)
            for wait_s, until_s in self.waits:
                total += (self._idle_w - power_w) * _between(signal, max(a_s, wait_s), min(b_s, until_s))
        return total

    def twin_cost(self, signal: Signal) -> float:
        """Return the same for the same work at the prior limit, without waiting [unit times J]."""
        took_s = self.n_iterations / self._rate(self._prior_w)
        return self._draw_w(self._prior_w) * _between(signal, FIRST_S, FIRST_S + took_s)


def _between(signal: Signal, a_s: float, b_s: float) -> float:
    return integral(signal, a_s, b_s) if b_s > a_s else 0.0
