"""What the controller would show over HTTP, without a server."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.config import HttpConfig
from controller.errors import OrderRefusedError
from controller.http.health import Snapshot
from controller.ports.orders import Goals, Pauses, Pins
from publishers.messages.topics import RunKey


class HealthProbe:
    """Replaces the HTTP server, and gives access to what it would show."""

    snapshot: Callable[[], Snapshot]

    def __init__(
        self,
        _: HttpConfig,
        *,
        node: str,
        snapshot: Callable[[], Snapshot],
        pauses: Pauses,
        pins: Pins,
        goals: Goals,
        own_token: Path,
    ) -> None:
        assert node
        assert pauses.runs() == {}
        for orders in (pins, goals):
            with pytest.raises(OrderRefusedError):
                orders.state_of(RunKey("ada", "bert", "r1"))
        assert own_token.name == "http.token"
        type(self).snapshot = staticmethod(snapshot)

    async def run(self) -> None:
        await asyncio.Event().wait()
