"""Brings a database to this version's schema, even if other processes do so at once; refuses a newer one."""

from dataclasses import dataclass
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from policies.database.errors import DatabaseVersionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrations:
    """The migrations of one schema.

    Attributes:
        scripts: the directory of Alembic's `env.py` and the versions.
        lock: the key of the PostgreSQL advisory lock by which processes that start at once take turns.
        version_table: where the version is kept: of its own for each schema, so that two fit into one database.
    """

    scripts: Path
    lock: int
    version_table: str = "alembic_version"

    def is_current(self, connection: Connection) -> bool:
        """Return whether the database has this version's schema; changes nothing.

        Raises:
            DatabaseVersionError: it has the schema of another version, which this one does not know.
        """
        scripts = ScriptDirectory.from_config(self.config())
        context = MigrationContext.configure(connection, opts={"version_table": self.version_table})
        found, head = context.get_current_heads(), scripts.get_current_head()
        known = {script.revision for script in scripts.walk_revisions()}
        if len(found) > 1 or not known.issuperset(found):
            raise DatabaseVersionError(
                f"the database has schema {' and '.join(sorted(found))}, which this gridchase does not know; "
                f"its own is {head}: use the version that wrote it, or give this one a database of its own"
            )
        return found == (head,)

    def migrate(self, connection: Connection) -> None:
        """Run the missing migrations in the transaction of `connection`: all, or none.

        SQLite's transaction already holds the write lock; PostgreSQL's takes an advisory lock, which ends with it.

        Raises:
            DatabaseVersionError: the database has the schema of another version, which this one does not know.
        """
        if connection.dialect.name == "postgresql":
            # Waiting for another process that migrates has no timeout.
            connection.execute(text("SET LOCAL lock_timeout = 0"))
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": self.lock})
        if not self.is_current(connection):
            command.upgrade(self.config(connection), "head")

    def config(self, connection: Connection | None = None) -> Config:
        """Return Alembic's configuration: of the scripts and, for a migration, of the connection that it runs on."""
        config = Config()
        config.set_main_option("script_location", str(self.scripts).replace("%", "%%"))
        config.set_main_option("path_separator", "os")
        config.attributes.update(connection=connection, version_table=self.version_table)
        return config
