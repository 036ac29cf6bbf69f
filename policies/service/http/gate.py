"""How many requests are worked on at once: some, then some wait, and one more is told to come again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

from policies.service.http.problems import ProblemError


class ConcurrencyLimit:
    """Lets `n_at_once` through, and has `n_waiting` wait, in their order; more are refused."""

    def __init__(self, *, n_at_once: int, n_waiting: int) -> None:
        self._slots = asyncio.Semaphore(n_at_once)
        self._n_most = n_at_once + n_waiting
        self._n_here = 0

    @asynccontextmanager
    async def passed(self) -> AsyncIterator[None]:
        """Hold a place while the body runs.

        Raises:
            Refusal: all places are taken, those for waiting, too.
        """
        if self._n_here >= self._n_most:
            detail = f"{self._n_here} requests are being answered already: ask again"
            raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, "busy", detail, headers={"Retry-After": "1"})
        self._n_here += 1
        try:
            async with self._slots:
                yield
        finally:
            self._n_here -= 1
