"""A GPU with exact books of its energy, whose meters fail in the ways that drivers and sensors do.

The books hold what the board has really drawn; `read_sample` tells it as faulty as its meters are at the moment.
"""

import asyncio
import math
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from controller.errors import GpuLostError, GpuSuspectError
from controller.ports import Sample
from controller.runtime.clock import NS_PER_S
from tests.fakes import FakeGpu
from tests.scenarios.campaign.board import READ_TIMEOUT_S
from tests.scenarios.site import PRIOR_W

COUNTER_PERIOD_S: Final = 0.1
NOISE_RATIO: Final = 0.01
"""Of a reading of the power, in which the books have no part."""


class Books:
    """What a board has drawn: its power changes in steps, so every integral is exact."""

    def __init__(self) -> None:
        self._times_s, self._energies_j, self._powers_w = [0.0], [0.0], [0.0]

    def set_power(self, time_s: float, power_w: float) -> None:
        """Draw this from a moment on [W]."""
        energy_j = self.energy_j(time_s)
        self._times_s.append(time_s)
        self._energies_j.append(energy_j)
        self._powers_w.append(power_w)

    def energy_j(self, time_s: float) -> float:
        """Return what was drawn until a moment [J]."""
        at = max(bisect_right(self._times_s, time_s) - 1, 0)
        return self._energies_j[at] + self._powers_w[at] * (time_s - self._times_s[at])

    def mean_power_w(self, begin_s: float, end_s: float) -> float:
        """Return the mean between two moments [W]."""
        return (self.energy_j(end_s) - self.energy_j(begin_s)) / (end_s - begin_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterFault:
    """What is wrong with the meters of a board from one moment to another.

    Attributes:
        begin_s, end_s: from when to when, on the virtual clock [s].
        counter: what is wrong with its energy counter; "": nothing.
        power: what is wrong with its power reading; "": nothing.
        reads: what is wrong with all readings; "": nothing.
        size_ratio: how much, from 0 to 1.
    """

    begin_s: float
    end_s: float
    counter: str = ""
    power: str = ""
    reads: str = ""
    size_ratio: float = 0.5

    @property
    def duration_s(self) -> float:
        """Return how long it lasts [s]."""
        return self.end_s - self.begin_s

    @property
    def scale_ratio(self) -> float:
        """Return the factor of a meter of a wrong scale: from a tenth to ten times."""
        return 10 ** (2 * self.size_ratio - 1)


class MeteredGpu(FakeGpu):
    """A board with books.

    Args:
        faults: of its meters, in their order.
        noise: of the power readings.
        has_counter: whether it counts energy.
        power_mean_s: its power reading is the mean of so long; about 0: the present one [s].
        count_j: what its counter shows at the beginning [J].
    """

    def __init__(
        self,
        faults: Sequence[MeterFault],
        *,
        noise: random.Random,
        has_counter: bool,
        power_mean_s: float,
        count_j: float,
    ) -> None:
        super().__init__()
        self.requested_power_limit_w = PRIOR_W
        self.has_counter = has_counter
        self.books = Books()
        self.first_read_s: float | None = None
        self._faults, self._noise, self._power_mean_s = faults, noise, power_mean_s
        self._offset_j = count_j
        self._load_w: Callable[[float], float] = lambda _: 0.0
        self._is_held = False
        self._fault: MeterFault | None = None
        self._stuck: tuple[float, float] = 0.0, 0.0
        """What counter and power read when the present fault began [J], [W]."""

    def set_load(self, load_w: Callable[[float], float]) -> None:
        """Draw from now on what this says for a limit [W]."""
        self._load_w = load_w
        self._draw()

    def hold_load(self, *, is_held: bool) -> None:
        """Draw what is drawn now, whatever load and limit do, or follow them again."""
        self._is_held = is_held
        self._draw()

    async def read_sample(self) -> Sample:
        now_s = begin_s = asyncio.get_running_loop().time()
        fault = next((each for each in self._faults if each.begin_s <= now_s < each.end_s), None)
        if fault is not None and fault.reads == "slow reads":
            now_s = await self._answer_slowly(begin_s)
        self._begin_or_end(fault, now_s)
        if fault is not None and self._is_unreadable(fault):
            raise GpuLostError("fell off the bus", gpu_uuid=self.uuid, operation="read_sample", code=15)
        if self.first_read_s is None:
            self.first_read_s = now_s
        counter_j, power_w = self._true(now_s)
        return Sample(
            time_ns=round(now_s * NS_PER_S),
            power_w=power_w if fault is None else self._told_power_w(fault, power_w),
            energy_j=None if not self.has_counter else counter_j if fault is None else self._told_j(fault, counter_j),
            utilization_ratio=1.0,
        )

    def _take_effect(self, time_s: float, power_limit_w: float) -> None:
        super()._take_effect(time_s, power_limit_w)
        self._draw()

    def _draw(self) -> None:
        if not self._is_held:
            self.books.set_power(asyncio.get_running_loop().time(), self._load_w(self.requested_power_limit_w))

    def _true(self, now_s: float) -> tuple[float, float]:
        """Return what sound meters read: the counter [J], which moves in steps, and the power [W]."""
        counted_s = math.floor(now_s / COUNTER_PERIOD_S) * COUNTER_PERIOD_S
        power_w = self.books.mean_power_w(now_s - self._power_mean_s, now_s)
        return self._offset_j + self.books.energy_j(counted_s), power_w * self._noise.gauss(1.0, NOISE_RATIO)

    async def _answer_slowly(self, begin_s: float) -> float:
        """Take up to somewhat more than a call may; return the middle of the time it took [s]."""
        duration_s = self._noise.uniform(0.0, 1.2 * READ_TIMEOUT_S)
        await asyncio.sleep(min(duration_s, READ_TIMEOUT_S))
        if duration_s > READ_TIMEOUT_S:
            raise GpuSuspectError("no answer in time", gpu_uuid=self.uuid, operation="read_sample")
        return begin_s + duration_s / 2

    def _is_unreadable(self, fault: MeterFault) -> bool:
        some = fault.reads == "readings fail" and self._noise.random() < 0.3 + 0.7 * fault.size_ratio
        return some or fault.reads.startswith("GPU lost")

    def _begin_or_end(self, fault: MeterFault | None, now_s: float) -> None:
        """Change the counter for good where a fault that does so begins or ends."""
        if fault is self._fault:
            return
        before, self._fault = self._fault, fault
        counter_j, power_w = self._true(now_s)
        if before is not None and before.counter == "counter stuck" and before.size_ratio > 0.5:
            self._offset_j += self._stuck[0] - counter_j  # it does not catch up
        elif before is not None and before.reads == "GPU lost, counter reset":
            self._offset_j -= counter_j
        if fault is not None:
            self._offset_j += _step_j(fault, self._true(now_s)[0])
            self._stuck = self._true(now_s)[0], power_w

    def _told_j(self, fault: MeterFault, counter_j: float) -> float | None:
        match fault.counter:
            case "counter stuck":
                return self._stuck[0]
            case "counter jumps and returns":
                return counter_j + _jump_j(fault)
            case "counter of a wrong unit":
                return counter_j * (1e3 if fault.size_ratio > 0.5 else 1e-3)
            case "counter of a wrong scale":
                return counter_j * fault.scale_ratio
            case "counter cannot be read":
                return None
        return counter_j

    def _told_power_w(self, fault: MeterFault, power_w: float) -> float | None:
        match fault.power:
            case "power 3.7 MW":
                return 3.7e6
            case "power 0 W":
                return 0.0
            case "power stuck":
                return self._stuck[1]
            case "power of a wrong scale":
                return power_w * fault.scale_ratio
            case "power cannot be read":
                return None
        return power_w


def _step_j(fault: MeterFault, counter_j: float) -> float:
    """Return by how much a counter changes for good where a fault begins [J]."""
    match fault.counter:
        case "counter reset":
            return -counter_j
        case "counter falls":
            return -min(counter_j, 10 ** (7 * fault.size_ratio))
        case "counter jumps":
            return _jump_j(fault)
    return 0.0


def _jump_j(fault: MeterFault) -> float:
    # A jump that the board may have drawn since the last reading cannot be told from the truth by any means.
    return 10 ** (3 + 9 * fault.size_ratio)
