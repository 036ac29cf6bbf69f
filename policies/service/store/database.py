"""What a store needs of a database, and which databases there are."""

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from sqlalchemy import Connection, make_url
from sqlalchemy.exc import ArgumentError

from policies.service.errors import RequestError
from policies.service.store.postgres import PostgresDatabase
from policies.service.store.sqlite import SqliteDatabase

_FORMS: Final = "sqlite:///path/to/file or postgresql://user@host/name"
Answer = TypeVar("Answer")


class Database(Protocol):
    """A database; `name` is its URL without the password."""

    @property
    def name(self) -> str:
        """Return what to call it."""
        ...

    async def read(self, work: Callable[[Connection], Answer]) -> Answer:
        """Return what `work` finds in one transaction."""
        ...

    async def write(self, work: Callable[[Connection], Answer]) -> Answer:
        """Return what `work` returns, once it is committed."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


def make_database(url: str, *, password: str, timeout_s: float) -> Database:
    """Return the database of a URL; nothing is connected yet.

    Raises:
        RequestError: the URL is none that can be used here; the message says what to do.
        StoreUnavailableError: the file of an SQLite database cannot be made.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise RequestError([f"the database's URL cannot be read: must be {_FORMS}"]) from error
    match parsed.drivername:
        case "sqlite":
            return SqliteDatabase(parsed, timeout_s=timeout_s)
        case "postgresql" | "postgresql+asyncpg":
            return PostgresDatabase(parsed.set(password=password) if password else parsed, timeout_s=timeout_s)
        case other:
            raise RequestError([f"databases of the kind {other} are not supported: must be {_FORMS}"])
