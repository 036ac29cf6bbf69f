"""Brings a database to this version's schema, even if other processes do so at once; refuses a newer one.

Alembic, and with it Mako, takes tenths of a second and 11 MB: it is imported only where there is something to migrate.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import ColumnClause, Connection, column, inspect, select, table, text

from policies.database.errors import DatabaseVersionError

if TYPE_CHECKING:
    from alembic.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrations:
    """The migrations of one schema.

    Attributes:
        scripts: the directory of Alembic's `env.py` and the versions: `versions/v0001_….py` makes the schema `0001`,
            each the next number.
        lock: the key of the PostgreSQL advisory lock by which processes that start at once take turns.
        version_table: where the version is kept: of its own for each schema, so that two fit into one database.
    """

    scripts: Path
    lock: int
    version_table: str = "alembic_version"

    def known(self) -> list[str]:
        """Return the schemas that this version knows, its own last."""
        return sorted(path.name[1:5] for path in (self.scripts / "versions").glob("v[0-9]*.py"))

    def is_current(self, connection: Connection) -> bool:
        """Return whether the database has this version's schema; changes nothing.

        Raises:
            DatabaseVersionError: it has the schema of another version, which this one does not know.
        """
        known, found = self.known(), self._found(connection)
        if len(found) > 1 or not set(known).issuperset(found):
            raise DatabaseVersionError(
                f"the database has schema {' and '.join(sorted(found))}, which this gridchase does not know; "
                f"its own is {known[-1]}: use the version that wrote it, or give this one a database of its own"
            )
        return found == known[-1:]

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
            from alembic import command  # noqa: PLC0415

            command.upgrade(self.config(connection), "head")

    def config(self, connection: Connection | None = None) -> "Config":
        """Return Alembic's configuration: of the scripts and, for a migration, of the connection that it runs on."""
        from alembic.config import Config  # noqa: PLC0415

        config = Config()
        config.set_main_option("script_location", str(self.scripts).replace("%", "%%"))
        config.set_main_option("path_separator", "os")
        config.attributes.update(connection=connection, version_table=self.version_table)
        return config

    def _found(self, connection: Connection) -> list[str]:
        if not inspect(connection).has_table(self.version_table):
            return []
        version: ColumnClause[str] = column("version_num")
        return list(connection.execute(select(version).select_from(table(self.version_table, version))).scalars())
