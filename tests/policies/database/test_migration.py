"""The schema of a database: its version is read without Alembic, which knows the same versions."""

import subprocess
import sys
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory

from controller.config import HistoryConfig
from controller.history.energy_history import schema as history
from controller.history.energy_history.history_file import HistoryFile
from policies.database.migration import Migrations
from policies.service.store import schema as trials
from tests.controller.history.energy_history.records import TOPICS
from tests.fakes import MIDNIGHT_S

WRITE_AND_READ = """
import sys
from pathlib import Path
from controller.config import HistoryConfig
from controller.history.energy_history.history_file import HistoryFile, read_history
from publishers.messages.topics import Topics
path = Path(sys.argv[1])
HistoryFile(path, topics=Topics(), config=HistoryConfig(), session_s=0.0).write([], now_s=0.0)
assert read_history(path, lambda connection: connection.dialect.name) == "sqlite"
print(*sys.modules)
"""


@pytest.mark.parametrize("migrations", [history.MIGRATIONS, trials.MIGRATIONS], ids=["history", "trials"])
def test_the_files_are_named_like_the_versions(migrations: Migrations) -> None:
    scripts = ScriptDirectory.from_config(migrations.config())
    newest_first = [script.revision for script in scripts.walk_revisions()]
    assert migrations.known() == newest_first[::-1]
    assert migrations.known()[-1:] == scripts.get_heads()


def test_a_history_of_this_version_needs_neither_alembic_nor_postgresql(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    made = HistoryFile(path, topics=TOPICS, config=HistoryConfig(), session_s=MIDNIGHT_S)
    made.write([], now_s=MIDNIGHT_S)
    made.close()
    command = [sys.executable, "-c", WRITE_AND_READ, str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert {"alembic", "mako", "sqlalchemy.ext.asyncio", "sqlalchemy.dialects.postgresql"}.isdisjoint(
        result.stdout.split()
    )
