"""The HTTP server of the controller: health and metrics for anybody; for whoever has a token, what is asked of runs."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from controller.config import HttpConfig
from controller.http.goals import goal_routes
from controller.http.health import Snapshot, health_routes
from controller.http.index import index_route
from controller.http.orders import to_problem
from controller.http.pauses import pause_routes
from controller.http.pins import pin_routes
from controller.ports.orders import Goals, Pauses, Pins
from publishers.shared.files.disk_thread import DiskThread
from publishers.shared.http.server import HttpServer, Route
from publishers.shared.http.write_access import WriteAccess

OWNER: Final = "the operator of this node"
"""Who has the controller's own token: its user."""
_LOGGER = logging.getLogger(__name__)


class NodeServer:
    """The HTTP server of one node.

    Args:
        config: where it listens, and the operator's file of tokens.
        node: the name of this node.
        snapshot: returns the controller at one moment; called for each request about its health.
        pauses, pins, goals: what may be asked of runs.
        own_token: the file of the controller's own token, which is made where it is missing.
    """

    def __init__(
        self,
        config: HttpConfig,
        *,
        node: str,
        snapshot: Callable[[], Snapshot],
        pauses: Pauses,
        pins: Pins,
        goals: Goals,
        own_token: Path,
    ) -> None:
        self._config = config
        self._node = node
        self._snapshot = snapshot
        self._pauses = pauses
        self._pins = pins
        self._goals = goals
        self._own_token = own_token

    async def run(self) -> None:
        """Serve until cancelled; port -1 serves nothing, and an address that is taken is only logged.

        Training is measured and limited all the same: a port is no reason to leave GPUs alone.
        """
        config = self._config
        open_routes = [index_route(self._node, self._snapshot), *health_routes(self._snapshot)]
        routes = [*open_routes, *(await self._write_routes() if config.port >= 0 else ())]
        server = HttpServer(
            routes, host=config.host, port=config.port, title="health, metrics and orders", to_problem=to_problem
        )
        async with server.serving():
            await asyncio.Event().wait()

    async def _write_routes(self) -> list[Route]:
        configured = Path(self._config.token_file) if self._config.token_file else None
        try:
            opening = partial(WriteAccess, self._own_token, configured, owner=OWNER)
            access = await DiskThread("gridchase tokens").run(opening)
        except OSError as error:
            _LOGGER.error("no orders over HTTP: %s: %s", self._own_token, error.strerror)
            return []
        return [
            *pause_routes(self._pauses, access.authenticate),
            *pin_routes(self._pins, access.authenticate),
            *goal_routes(self._goals, access.authenticate),
        ]
