"""Runs whose training process is gone: their controller is given a while to tell what they have used."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from policies.service.bus.news import Ended, Story

PATIENCE_S: Final = 30.0
MAX_RUNS: Final = 16_384
"""When more runs than this end at once, the controllers of the oldest are not waited for."""


class Endings:
    """The runs that are about to be over, in their order.

    Args:
        report: takes the news that a run is over.
        patience_s: how long a controller's last word is waited for.
    """

    def __init__(self, report: Callable[[Story], None], *, patience_s: float = PATIENCE_S) -> None:
        self._report = report
        self._patience_s = patience_s
        self._waiting: OrderedDict[tuple[str, str], tuple[float, Ended]] = OrderedDict()
        self._filled = asyncio.Event()

    def expect(self, ended: Ended) -> None:
        """Report the end of a run after a while, unless it is forgotten."""
        key = (ended.job, ended.run)
        due_s = asyncio.get_running_loop().time() + self._patience_s
        if key in self._waiting:  # said again: the newest word counts, the time runs on
            due_s, _ = self._waiting[key]
        self._waiting[key] = (due_s, ended)
        if len(self._waiting) > MAX_RUNS:
            self._report_oldest()
        self._filled.set()

    def forget(self, job: str, run: str) -> None:
        """Report nothing: the run goes on, or its controller has told its end."""
        self._waiting.pop((job, run), None)

    async def run(self) -> None:
        """Report each run when its time has come, until cancelled.

        Those that are left then are still retained on the bus, and met again at the next start.
        """
        while True:
            while self._waiting:
                due_s, _ = next(iter(self._waiting.values()))
                remaining_s = due_s - asyncio.get_running_loop().time()
                if remaining_s <= 0:
                    self._report_oldest()
                else:
                    await asyncio.sleep(remaining_s)
            self._filled.clear()
            await self._filled.wait()

    def _report_oldest(self) -> None:
        _, (_, ended) = self._waiting.popitem(last=False)
        self._report(ended)
