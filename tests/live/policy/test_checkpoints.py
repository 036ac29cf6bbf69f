"""SQLite's log: a thread of its own copies it to the file, beside the one that writes."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, make_url

from policies.database import backends
from policies.database.backends import SqliteDatabase

pytestmark = pytest.mark.live


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS numbers (number INTEGER)")


def _add(connection: Connection) -> None:
    connection.exec_driver_sql("INSERT INTO numbers VALUES (1)")


def _n_in_file(path: Path) -> int:
    """Return how many rows there are in the file alone, without its log."""
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as connection:
        return int(connection.execute("SELECT count(*) FROM numbers").fetchone()[0])


async def test_what_is_committed_is_copied_to_the_file_beside_the_writer(tmp_path: Path) -> None:
    path = tmp_path / "policy.db"
    database = SqliteDatabase(make_url(f"sqlite:///{path}"), client="test", timeout_s=10.0)
    try:
        await database.write(_begin)
        for _ in range(backends._CHECKPOINT_WRITES):
            await database.write(_add)
        await database._checkpointers.run(lambda: None)  # after the checkpoint
        n_copied = _n_in_file(path)
        assert backends._CHECKPOINT_WRITES - 1 <= n_copied <= backends._CHECKPOINT_WRITES
        await database.write(_add)
        assert _n_in_file(path) == n_copied, "one more is in the log alone"
    finally:
        await database.close()
