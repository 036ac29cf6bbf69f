"""PostgreSQL: a bounded pool of connections, in which no process holds a lock for longer than its callers wait."""

import asyncio
import importlib.util
from collections.abc import Callable
from typing import Any, Final, TypeVar

from sqlalchemy import URL, Connection
from sqlalchemy.ext.asyncio import create_async_engine

from policies.service.errors import RequestError

POOL_SIZE: Final = 8
"""Connections of one process; whoever comes when all are busy waits its turn. A server allows 100 as a rule."""
_PATIENCE_SHARE: Final = 0.8
"""A lock is waited for this part of the timeout, so that it can be said what was waited for."""
_OPTIONS: Final = frozenset({"host", "ssl", "sslmode"})
Answer = TypeVar("Answer")


class PostgresDatabase:
    """A database of a PostgreSQL server.

    Args:
        url: `postgresql://user@host/name`, with `?sslmode=…` or `?host=/directory/of/the/socket` where needed.
        timeout_s: how long its callers wait for a transaction [s].

    Raises:
        RequestError: the driver is not installed, or an option is none that it has.
    """

    def __init__(self, url: URL, *, timeout_s: float) -> None:
        if importlib.util.find_spec("asyncpg") is None:
            raise RequestError(["PostgreSQL needs the package asyncpg: pip install 'gridchase[postgres]'"])
        if unknown := set(url.query) - _OPTIONS:
            raise RequestError(
                [f"option {key} of the database's URL: only {', '.join(sorted(_OPTIONS))} are known" for key in unknown]
            )
        self.name = url.set(drivername="postgresql").render_as_string()  # with stars for the password
        # libpq says sslmode, and the driver ssl; the values are the same.
        options = {"ssl" if key == "sslmode" else key: value for key, value in url.query.items()}
        patience_ms = f"{timeout_s * _PATIENCE_SHARE * 1000:.0f}"
        self._is_quiet = False
        self._engine = create_async_engine(
            url.set(drivername="postgresql+asyncpg", query=options),
            pool_size=POOL_SIZE,
            max_overflow=0,
            pool_timeout=timeout_s,
            pool_pre_ping=True,  # a server that was started again is met at once
            connect_args={
                "timeout": timeout_s,
                "server_settings": {
                    "application_name": "gridchase policy",
                    "statement_timeout": patience_ms,
                    "lock_timeout": patience_ms,
                    "idle_in_transaction_session_timeout": f"{timeout_s * 1000:.0f}",  # of a process that hangs
                    "jit": "off",  # every statement here is short: compiling it takes longer than running it
                },
            },
        )

    async def read(self, work: Callable[[Connection], Answer]) -> Answer:
        """Return what `work` finds in one transaction."""
        return await self.write(work)

    async def write(self, work: Callable[[Connection], Answer]) -> Answer:
        """Return what `work` returns, once it is committed."""
        if not self._is_quiet:
            self._is_quiet = True
            _quieten(asyncio.get_running_loop())
        async with self._engine.begin() as connection:
            return await connection.run_sync(work)

    async def close(self) -> None:
        """Close every connection."""
        await self._engine.dispose()


def _quieten(loop: asyncio.AbstractEventLoop) -> None:
    """Keep from the loop's exception handler what the driver leaves behind where a server goes while it connects.

    Its attempt has failed, and was answered for; the future that nobody waits for any more fails, too.
    """
    inner = loop.get_exception_handler()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error, message = context.get("exception"), str(context.get("message"))
        if isinstance(error, ConnectionError) and "never retrieved" in message and "connection_lost" in str(error):
            return
        if inner is None:
            loop.default_exception_handler(context)
        else:
            inner(loop, context)

    loop.set_exception_handler(handle)
