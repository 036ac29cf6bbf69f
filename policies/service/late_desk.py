"""A desk whose database may still be on its way: until it is there, whatever is asked of it fails as unavailable."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from policies.service.desk import Desk
from policies.service.errors import StoreUnavailableError

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 10.0

_LOGGER = logging.getLogger(__name__)


class LateDesk:
    """Stands in for a `Desk`, with all its methods.

    Args:
        opened: opens the database, which has a desk then; may raise StoreUnavailableError, and is tried again.
    """

    def __init__(self, opened: Callable[[], AbstractAsyncContextManager[Desk]]) -> None:
        self.tried = asyncio.Event()
        """Set once it is known whether the database is there."""
        self._opened = opened
        self._desk: Desk | None = None
        self._fault = "it has not answered yet"

    @property
    def is_there(self) -> bool:
        """Return whether the database was opened."""
        return self._desk is not None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 — whichever method of the desk it is
        """Return a method of the desk.

        Raises:
            StoreUnavailableError: there is none yet.
        """
        if name.startswith("_"):
            raise AttributeError(name)
        if self._desk is None:
            raise StoreUnavailableError(f"the database is not there: {self._fault}")
        return getattr(self._desk, name)

    async def hold(self) -> None:
        """Open the database, again and again until it is there, and hold it until cancelled.

        Raises:
            StoreVersionError: a newer version made it.
            RequestError: its URL is wrong.
        """
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                await self._hold_once()
            except StoreUnavailableError as error:
                if not self.tried.is_set():
                    _LOGGER.warning("the database is not there: runs get their default batch sizes: %s", error)
                self._fault = str(error)
                self.tried.set()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _hold_once(self) -> None:
        async with self._opened() as desk:
            self._desk = desk
            if self.tried.is_set():
                _LOGGER.info("the database is there")
            self.tried.set()
            try:
                await asyncio.Event().wait()
            finally:
                self._desk = None
