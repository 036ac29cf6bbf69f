"""The event loop of everything that runs on virtual time."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

import async_solipsism

Result = TypeVar("Result")


class VirtualTimeLoop(async_solipsism.EventLoop):  # type: ignore[misc]
    """Calls the disk in the loop's own thread, which would wait for another one all the same; has one interface."""

    def __init__(self) -> None:
        super().__init__()
        self.time = self._selector.clock.time  # it is asked for with each step, and each call costs

    async def create_server(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        **options: object,
    ) -> asyncio.AbstractServer:
        """Serve on the loopback where all interfaces are asked for: it is the only one there is."""
        host = "127.0.0.1" if host == "0.0.0.0" else host  # noqa: S104 — nothing is bound
        server: asyncio.AbstractServer = await super().create_server(protocol_factory, host, port, **options)
        return server

    async def run_in_executor(self, _executor: Executor | None, func: Callable[..., Result], *args: object) -> Result:
        return func(*args)
