"""Brings the database to this version's schema, even if other processes do so at once; refuses a newer one."""

from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from policies.service.errors import StoreVersionError

_SCRIPTS: Final = Path(__file__).parent / "migrations"
_LOCK: Final = 0x6772_6964_6368_6173
"""Key of the PostgreSQL advisory lock: the bytes of "gridchas"."""


def is_current(connection: Connection) -> bool:
    """Return whether the database has this version's schema; changes nothing.

    Raises:
        StoreVersionError: it has the schema of another version, which this one does not know.
    """
    scripts = ScriptDirectory.from_config(_config())
    found, head = MigrationContext.configure(connection).get_current_revision(), scripts.get_current_head()
    known = {script.revision for script in scripts.walk_revisions()}
    if found is not None and found not in known:
        raise StoreVersionError(
            f"the database has schema {found}, which this gridchase does not know; its own is {head}: "
            "use the version that wrote it, or give this one a database of its own"
        )
    return found == head


def migrate(connection: Connection) -> None:
    """Run the missing migrations in the transaction of `connection`: all, or none.

    Processes that start at once take turns: SQLite's transaction already holds the write lock; PostgreSQL's takes an
    advisory lock, which ends with it.

    Raises:
        StoreVersionError: the database has the schema of another version, which this one does not know.
    """
    if connection.dialect.name == "postgresql":
        # Waiting for another process that migrates has no timeout.
        connection.execute(text("SET LOCAL lock_timeout = 0"))
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    if not is_current(connection):
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
