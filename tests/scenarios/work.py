"""A training whose steps take as long as their sequences are, and which tells their tokens or does not."""

from array import array
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from publishers.messages.codec import Message
from publishers.messages.training import Iterations, pack_work
from tests.fakes import FakeGpu
from tests.scenarios.site import Site, Training, rate_per_s

MEAN_TOKENS = 8_192.0


class LanguageTraining(Training):
    """Trains on sequences of unequal length: a step takes as long as it has tokens.

    Args:
        site: where it runs.
        gpus: its GPUs; None: the first one.
        scatter_ratio: how much the tokens of a step scatter.
        tells: whether it tells them; may change.
        seed: of the lengths.
        rate: how many steps of mean length a second it does at a limit.
        status: further fields of its status.

    Attributes:
        n_tokens: how many it has trained.
        longer_ratio: how long its sequences are now, relative to those at first.
    """

    counted_by = "callback"
    longer_ratio = 1.0

    def __init__(
        self,
        site: Site,
        gpus: Sequence[FakeGpu] | None = None,
        *,
        scatter_ratio: float = 0.18,
        tells: bool = True,
        seed: int = 1,
        rate: Callable[[float], float] = rate_per_s,
        **status: object,
    ) -> None:
        self.n_tokens = 0.0
        self.tells = tells
        self._scatter_ratio, self._dice = scatter_ratio, np.random.default_rng(seed)
        self._mean_rate, self._work = rate, array("d")
        super().__init__(site, gpus, rate=self._rate_of_next, **status)  # type: ignore[arg-type]  # by name

    def _rate_of_next(self, power_limit_w: float) -> float:
        length = self.longer_ratio * max(self._dice.normal(1.0, self._scatter_ratio), 0.1)
        self._work.append(MEAN_TOKENS * length)
        self.n_tokens += MEAN_TOKENS * length
        return self._mean_rate(power_limit_w) / length

    def _publish(self, leaf: str, message: Message, *, retain: bool) -> None:
        if isinstance(message, Iterations):
            work, self._work = self._work, array("d")
            if self.tells:
                message = msgspec.structs.replace(message, work=pack_work(work))
        super()._publish(leaf, message, retain=retain)
