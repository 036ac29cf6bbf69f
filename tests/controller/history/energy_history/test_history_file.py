"""The file of a history: made and migrated, private, moved aside where it is damaged, told where it cannot be used."""

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, create_engine, func, select, text
from sqlalchemy.exc import OperationalError

from controller.config import HistoryConfig
from controller.history.energy_history import history_file
from controller.history.energy_history.history_file import HistoryFile, read_history
from controller.history.energy_history.reading import Period, RunFilter, run_parts
from controller.history.energy_history.report import entry_of
from controller.history.energy_history.schema import GPU_QUARTERS, METADATA, MIGRATIONS, RUN_QUARTERS, RUNS
from policies.database.errors import DatabaseUnavailableError, DatabaseVersionError
from policies.vocabulary.units import DAY_S, HOUR_S
from tests.controller.history.energy_history.records import TOPICS, gpu_message, run_message, run_record
from tests.fakes import MIDNIGHT_S


def history_at(path: Path) -> HistoryFile:
    """Return a history that is not open yet."""
    return HistoryFile(path, topics=TOPICS, config=HistoryConfig(), session_s=MIDNIGHT_S)


def write(path: Path, *runs: str) -> None:
    """Write a record of each run, as one controller does."""
    history = history_at(path)
    history.write([run_message(run_record(run=run, energy_j=1e3)) for run in runs], now_s=MIDNIGHT_S)
    history.close()


def write_for(history: HistoryFile, seconds: float, run: str, *, since_s: float = MIDNIGHT_S) -> None:
    """Write a record of a run every ten minutes."""
    for number in range(int(seconds / 600.0) + 1):
        now_s = since_s + 600.0 * number
        history.write([run_message(run_record(run=run, time_s=now_s, energy_j=1e3 * (number + 1)))], now_s=now_s)


def runs(connection: Connection) -> list[str]:
    """Return the names of all runs."""
    return list(connection.execute(select(RUNS.c.run).order_by(RUNS.c.id)).scalars())


def test_a_history_is_made_with_its_directory_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "history.sqlite"
    write(path, "r1")
    assert read_history(path, runs) == ["r1"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_the_migrations_make_the_tables_of_the_schema(tmp_path: Path) -> None:
    def differences(connection: Connection) -> list[object]:
        options = {"compare_type": True, "version_table": MIGRATIONS.version_table}
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), METADATA))

    write(tmp_path / "history.sqlite")
    assert read_history(tmp_path / "history.sqlite", differences) == []


def test_quarter_hours_of_an_earlier_version_have_the_currency_of_their_gpu() -> None:
    with create_engine("sqlite://").begin() as connection:
        config = MIGRATIONS.config(connection)
        command.upgrade(config, "0004")
        for number, currency in ((1, "EUR"), (2, "EUR, USD")):
            gpu = {"id": number, "uuid": f"GPU-{number}", "currency": currency}
            connection.execute(
                text("INSERT INTO gpus (id, node, gpu_uuid, currency) VALUES (:id, 'n1', :uuid, :currency)"), gpu
            )
            connection.execute(text("INSERT INTO gpu_quarters VALUES (0, :id, 900, 1.0, NULL, 0.5)"), gpu)
            connection.execute(text("INSERT INTO gpu_quarters VALUES (900, :id, 900, 1.0, 2.0, NULL)"), gpu)
        command.upgrade(config, "head")
        columns = (GPU_QUARTERS.c[name] for name in ("owner", "starts_s", "currency"))
        assert {tuple(row) for row in connection.execute(select(*columns))} == {
            (1, 0, "EUR"),
            (1, 900, None),
            (2, 0, "EUR, USD"),
            (2, 900, None),
        }
        command.downgrade(config, "0004")
        currencies = connection.execute(text("SELECT currency FROM gpus ORDER BY id")).scalars().all()
        assert currencies == ["EUR", "EUR, USD"]


def test_the_next_controller_goes_on_with_the_same_history(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    write(path, "r1")
    write(path, "r1", "r2")
    assert read_history(path, runs) == ["r1", "r2"]


def test_a_question_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    write(tmp_path / "history.sqlite", "r1")
    endless = text("WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c")
    with pytest.raises(DatabaseUnavailableError, match="ask for a shorter time"):
        read_history(tmp_path / "history.sqlite", lambda it: it.execute(endless).scalar(), timeout_s=0.05)


def test_a_history_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    write(path, "r1")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE history_version SET version_num = '9999'")
    with pytest.raises(OSError, match=r"history\.sqlite: the database has schema 9999, which this gridchase"):
        write(path, "r2")
    with pytest.raises(DatabaseVersionError, match="schema 9999"):
        read_history(path, runs)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT run FROM runs").fetchall() == [("r1",)]


def test_a_history_of_two_versions_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    write(path, "r1")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO history_version VALUES ('0000')")
    with pytest.raises(OSError, match="the database has schema 0000 and 0007, which this gridchase does not know"):
        write(path, "r2")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT run FROM runs").fetchall() == [("r1",)]


@pytest.mark.parametrize(
    ("damage", "energy_j"),
    [
        ("runs SET record = substr(record, 5)", 2e3),
        ("runs SET record = replace(record, 'running', 'of a newer version')", 2e3),
        ("runs SET record = CAST(x'ff7b' AS TEXT)", 2e3),
        ("runs SET earlier = '{x'", 2e3),
        ("runs SET heard_s = 'abc'", 2e3),
        ("runs SET began_s = 'abc'", 2e3),
        ("runs SET energy_j = 'abc'", 3e3),
        ("gpus SET energy_j = 'abc'", 2e3),
    ],
)
def test_what_cannot_be_read_of_a_row_is_not_known_and_the_run_goes_on(
    tmp_path: Path, damage: str, energy_j: float
) -> None:
    path = tmp_path / "history.sqlite"
    history = history_at(path)
    history.write([run_message(run_record(energy_j=1e3)), gpu_message(MIDNIGHT_S, 1e3)], now_s=MIDNIGHT_S)
    history.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE {damage}")
    after_s = MIDNIGHT_S + 30
    history = history_at(path)
    history.write([run_message(run_record(time_s=after_s, energy_j=2e3)), gpu_message(after_s, 2e3)], now_s=after_s)
    history.close()
    assert read_history(path, lambda it: it.execute(select(func.sum(RUN_QUARTERS.c.energy_j))).scalar()) == energy_j
    (parts,) = read_history(path, lambda it: run_parts(it, [Period(0.0, after_s + 1.0)], RunFilter()))
    assert entry_of("total", parts).energy_j == energy_j
    assert not list(tmp_path.glob("*.damaged-*"))


def test_a_damaged_history_is_moved_aside_and_a_new_one_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "history.sqlite"
    damaged = b"this is no database" * 1_000
    path.write_bytes(damaged)
    path.chmod(0o600)
    write(path, "r1")
    assert read_history(path, runs) == ["r1"]
    (aside,) = tmp_path.glob("history.sqlite.damaged-*")
    assert aside.read_bytes() == damaged
    assert [record.getMessage() for record in caplog.records] == [
        f"{path} is damaged: it is kept as {aside}, and a new history begins"
    ]


def test_a_schema_that_is_no_text_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    write(path, "r1")
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE runs", b"CREATE \xffABLE runs"))
    with pytest.raises(DatabaseUnavailableError, match="the file is damaged"):
        read_history(path, runs)
    write(path, "after")
    assert read_history(path, runs) == ["after"]
    assert len(list(tmp_path.glob("history.sqlite.damaged-*"))) == 1


def test_a_history_that_is_damaged_while_it_is_open_is_moved_aside_too(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    write(path, *(f"r{number}" for number in range(200)))
    content = path.read_bytes()
    path.write_bytes(content[:4_096] + b"\xff" * (len(content) - 4_096))
    write(path, "after")
    assert read_history(path, runs) == ["after"]
    assert len(list(tmp_path.glob("history.sqlite.damaged-*"))) == 1


def test_a_history_that_is_removed_while_it_is_open_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "history.sqlite"
    history = history_at(path)
    history.write([run_message(run_record(run="r1", energy_j=1e3))], now_s=MIDNIGHT_S)
    path.unlink()
    for energy_j in (2e3, 3e3):
        history.write([run_message(run_record(run="r2", energy_j=energy_j))], now_s=MIDNIGHT_S + 30)
    assert read_history(path, runs) == ["r2"]
    history.close()
    assert read_history(path, runs) == ["r2"]
    assert caplog.messages == [f"{path} was removed or replaced: what comes goes into the one that is there now"]


def test_of_damaged_histories_the_newest_two_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    old = [tmp_path / f"history.sqlite.damaged-2026010{number}T000000Z" for number in range(3)]
    for copy in old:
        for end in ("", "-wal"):
            Path(f"{copy}{end}").touch()
    path.write_bytes(b"this is no database" * 1_000)
    write(path, "r1")
    left = {copy.name for copy in tmp_path.glob("*.damaged-*")}
    assert {old[2].name, f"{old[2].name}-wal"} < left
    assert len(left) == 3
    assert read_history(path, runs) == ["r1"]


def test_a_directory_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DatabaseUnavailableError, match=r"history\.sqlite: .*; check the directory, its owner"):
        write(tmp_path / "file" / "history.sqlite", "r1")


def test_a_full_disk_is_told_and_costs_nothing_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    history = history_at(path)
    history.write([run_message(run_record(energy_j=1e3))], now_s=MIDNIGHT_S)
    assert history._engine is not None
    with history._engine.begin() as connection:
        n_pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {n_pages}")
    many = [run_message(run_record(run=f"many-{number}", energy_j=1e3)) for number in range(500)]
    with pytest.raises(DatabaseUnavailableError, match="database or disk is full; check the directory"):
        history.write(many, now_s=MIDNIGHT_S)
    history.write(many, now_s=MIDNIGHT_S)  # there is space again
    history.close()
    assert read_history(path, lambda connection: connection.execute(select(func.count(RUNS.c.id))).scalar()) == 501


def test_where_there_is_no_history_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnavailableError, match="there is no history yet"):
        read_history(tmp_path / "history.sqlite", runs)
    with pytest.raises(DatabaseUnavailableError, match="x: File name too long; check who may read it"):
        read_history(tmp_path / ("x" * 300), runs)


def test_a_clock_that_is_far_ahead_for_a_while_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    history = history_at(path)
    write_for(history, 2 * HOUR_S, "r1")
    for number in range(5):
        history.write([], now_s=MIDNIGHT_S + 73 * 365 * DAY_S + 600.0 * number)
    write_for(history, 2 * HOUR_S, "r2", since_s=MIDNIGHT_S + 3 * HOUR_S)
    history.close()
    assert read_history(path, runs) == ["r1", "r2"]


def test_what_is_old_is_dropped_once_the_clock_is_steady(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    write(path, "r1")
    history = HistoryFile(path, topics=TOPICS, config=HistoryConfig(run_days=100), session_s=MIDNIGHT_S)
    write_for(history, 2 * HOUR_S, "r2", since_s=MIDNIGHT_S + 200 * DAY_S)
    history.close()
    assert read_history(path, runs) == ["r2"]


def test_messages_are_written_also_where_what_is_old_cannot_be_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OperationalError("DELETE", {}, sqlite3.OperationalError("database or disk is full"))

    path = tmp_path / "history.sqlite"
    monkeypatch.setattr(history_file, "tidy", full)
    history = history_at(path)
    write_for(history, 2 * HOUR_S, "r1")
    history.close()
    assert read_history(path, runs) == ["r1"]
    assert "history.sqlite: what is old is not merged: database or disk is full" in caplog.text


def test_a_locked_history_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_file, "_PRAGMAS", ("busy_timeout = 0", "journal_mode = WAL"))
    path = tmp_path / "history.sqlite"
    write(path, "r1")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseUnavailableError, match=r"locked; another program holds it: end it, or wait$"):
            write(path, "r2")
    write(path, "r2")
    assert read_history(path, runs) == ["r1", "r2"]


def test_a_file_that_is_no_history_is_told_as_such(tmp_path: Path) -> None:
    empty, foreign, text = (tmp_path / name for name in ("empty", "foreign", "text"))
    empty.touch()
    with closing(sqlite3.connect(foreign)) as connection, connection:
        connection.execute("CREATE TABLE other (id INTEGER)")
    for path in (empty, foreign):
        with pytest.raises(DatabaseUnavailableError, match=rf"{path.name} holds no history: name "):
            read_history(path, runs)
    text.write_text("this is no database" * 100)
    with pytest.raises(
        DatabaseUnavailableError, match=r"not a database; the file is damaged, or no history: name the history"
    ):
        read_history(text, runs)
