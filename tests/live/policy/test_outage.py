"""Databases that are killed, hang, are locked, full, broken or of another version; processes that start at once."""

import asyncio
import logging
import os
import resource
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, text

from policies.database.backends import make_database
from policies.service.config import LearningConfig
from policies.service.errors import RequestError, StoreUnavailableError, StoreVersionError
from policies.service.records import JobKey, Result
from policies.service.store.schema import METADATA, MIGRATIONS
from policies.service.store.store import open_store
from tests.live.conftest import eventually
from tests.live.policy.outages import (
    PATIENT_S,
    TIMEOUT_S,
    ask,
    ask_until_answered,
    held_by_somebody_else,
    open_impatient_store,
    told_until_taken,
    unavailable_in_time,
)
from tests.live.policy.postgres import Postgres, postgres_server
from tests.live.policy.repositories import open_repositories
from tests.policies.service.repositories import Repositories, job_key, run_key

__all__ = ["postgres_server"]
pytestmark = pytest.mark.live
N_PROCESSES: Final = 4
_CHILD: Final = """
import asyncio, sys
from policies.service.config import LearningConfig
from policies.service.trials.repository import TrialRepository
from policies.service.records import Result
from policies.service.store.store import open_store
from publishers.messages.topics import RunKey

async def main(url, name):
    sys.stdin.readline()
    async with open_store(url, timeout_s=30.0) as store:
        trials = TrialRepository(store, LearningConfig())
        for i in range(10):
            run = f"{name}-{i}"
            await trials.get_or_create(
                RunKey("alice", "job", run), batch_sizes=(16, 32, 64), default_batch_size=32, now_s=float(i)
            )
            for _ in range(2):
                key = RunKey("alice", "job", "shared" if i == 5 else run)
                await trials.report(key, Result(outcome="stopped", epochs=3), now_s=50.0)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/policy.db"
    server: Postgres = request.getfixturevalue("postgres_server")
    return server.new_database()


async def test_migrations_make_what_the_schema_says(url: str) -> None:
    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        return list(compare_metadata(context, METADATA))

    async with open_store(url, timeout_s=PATIENT_S) as store:
        assert await store.read(differences) == []
    async with open_store(url, timeout_s=PATIENT_S) as store:  # and nothing is done twice
        assert await store.read(differences) == []


async def test_jobs_of_before_users_are_nobodys_and_lose_nothing(url: str) -> None:
    def make_old(connection: Connection) -> None:
        command.upgrade(MIGRATIONS.config(connection), "0004")
        connection.execute(text("INSERT INTO jobs VALUES ('bert', '[16, 32]', 32, 1.0, NULL, 0.25, NULL, NULL)"))
        connection.execute(
            text(
                "INSERT INTO trials (job, number, run, recurrence, batch_size, state, requested_at_s, heard_at_s,"
                " lease_s, reason, detail) VALUES ('bert', 0, 'r0', 0, 32, 'open', 1.0, 1.0, 600.0, 'x', 'y')"
            )
        )

    database = make_database(url, client="test", password="", timeout_s=PATIENT_S)
    await database.write(make_old)
    await database.close()
    async with open_repositories(url) as db:
        assert await db.jobs.n_ownerless() == 1
        (export,) = await db.jobs.export()
        assert (export.job.key, export.job.settings.eta) == (("", "bert"), 0.25)
        assert [trial.key for trial in export.trials] == [("", "bert", "r0")]
        new = await db.trials.get_or_create(run_key("r0", "bert"), batch_sizes=(8, 16), default_batch_size=8, now_s=2.0)
        assert (new.batch_size, new.number) == (8, 0), "its user's first"
        await db.jobs.forget(JobKey("", "bert"))
        assert [job.key for job in await db.jobs.jobs()] == [job_key("bert")]


async def test_a_database_of_a_newer_version_is_left_alone(url: str) -> None:
    async with open_store(url, timeout_s=PATIENT_S) as store:
        await store.write(
            lambda connection: connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        )
    with pytest.raises(
        StoreVersionError, match=r"has schema 9999, which this gridchase does not know; its own is 0005"
    ):
        async with open_store(url, timeout_s=PATIENT_S):
            pytest.fail("it was opened")


def test_processes_that_start_at_once_on_an_empty_database_count_everything_once(url: str) -> None:
    command = [sys.executable, "-c", _CHILD, url]
    children = [
        subprocess.Popen([*command, f"p{i}"], stdin=subprocess.PIPE, stderr=subprocess.PIPE) for i in range(N_PROCESSES)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write(b"go\n")
        child.stdin.flush()
    faults = [child.communicate(timeout=50)[1].decode() for child in children]
    # Each tells of a run that nobody has asked for, and ends by that.
    assert all("UnknownTrialError: run shared of job alice/job has no trial" in fault for fault in faults), faults[0]
    asyncio.run(_check_trials(url))


async def _check_trials(url: str) -> None:
    async with open_store(url, timeout_s=PATIENT_S) as store:
        db = Repositories(store, LearningConfig())
        trials = await db.jobs.trials(job_key(), limit=1000)
        assert sorted(trial.run for trial in trials) == sorted(
            f"p{i}-{k}" for i in range(N_PROCESSES) for k in range(6)
        )
        assert sorted(trial.number for trial in trials) == list(range(len(trials)))
        assert (await db.jobs.posterior(job_key())).n_observations == N_PROCESSES * 5


async def test_a_server_that_is_killed_is_unavailable_in_time_and_met_again(
    postgres_server: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="policies.service.store.store")
    async with open_store(postgres_server.new_database(), timeout_s=PATIENT_S) as store:
        db = Repositories(store, LearningConfig())
        await ask(db, "before")
        postgres_server.kill()
        try:
            for _ in range(3):
                async with unavailable_in_time(PATIENT_S):
                    await ask(db, "during")
        finally:
            postgres_server.start()
        assert (await ask(db, "after")).number == 1
        await db.trials.report(run_key("before"), Result(outcome="stopped", epochs=1), now_s=2.0)
    ours = [record.getMessage() for record in caplog.records if record.name == "policies.service.store.store"]
    said = [message for message in ours if "tables" not in message]
    assert len(said) == 2
    assert "check that it runs" in said[0]
    assert "is back" in said[1]


async def test_a_server_that_is_killed_under_questions_loses_and_doubles_none(postgres_server: Postgres) -> None:
    async with open_store(postgres_server.new_database(), timeout_s=PATIENT_S) as store:
        db = Repositories(store, LearningConfig())
        await ask(db, "first")
        answered: list[str] = []
        is_back = asyncio.Event()

        async def ask_and_tell(name: str) -> None:
            for number in range(90):  # of eight workers, in all less than a page of trials
                run = f"{name}-{number}"
                await ask_until_answered(db, run)
                await told_until_taken(db, run)
                answered.append(run)
                if is_back.is_set():
                    return

        async with asyncio.TaskGroup() as tasks:
            for i in range(8):
                tasks.create_task(ask_and_tell(f"worker-{i}"), name=f"worker-{i}")
            await eventually(lambda: len(answered) > 5, timeout_s=30)
            await asyncio.to_thread(postgres_server.kill)
            await asyncio.to_thread(postgres_server.start)
            is_back.set()
        trials = await db.jobs.trials(job_key(), limit=1000)
        assert sorted(trial.run for trial in trials) == sorted(["first", *answered])
        assert sum(trial.state == "stopped" for trial in trials) == len(answered)


async def test_a_server_that_hangs_is_unavailable_in_time_and_met_again(postgres_server: Postgres) -> None:
    url = postgres_server.new_database()
    name = url.rsplit("/", 1)[1]
    async with open_impatient_store(url) as store:
        db = Repositories(store, LearningConfig())
        await ask_until_answered(db, "before")
        ours = (
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'gridchase%'"
        )
        backends = [int(pid) for pid in postgres_server.execute(name, ours).split()]
        assert backends
        for pid in backends:
            os.kill(pid, signal.SIGSTOP)
        try:
            async with unavailable_in_time():
                await ask(db, "during")
        finally:
            for pid in backends:
                os.kill(pid, signal.SIGCONT)
        assert (await ask_until_answered(db, "after")).number <= 2


async def test_a_job_that_somebody_else_holds_is_waited_for_no_longer_than_the_timeout(
    postgres_server: Postgres,
) -> None:
    url = postgres_server.new_database()
    async with open_impatient_store(url) as store:
        db = Repositories(store, LearningConfig())
        await ask_until_answered(db, "before")
        async with held_by_somebody_else(url), unavailable_in_time():
            await ask(db, "during")
        assert (await ask_until_answered(db, "after")).number == 1


async def test_a_file_that_somebody_else_writes_to_can_be_read_and_is_waited_for_in_time(tmp_path: Path) -> None:
    path = tmp_path / "policy.db"
    async with open_impatient_store(f"sqlite:///{path}") as store:
        db = Repositories(store, LearningConfig())
        await ask_until_answered(db, "before")
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert len(await db.jobs.trials(job_key())) == 1
            async with unavailable_in_time():
                await ask(db, "during")
        assert (await ask_until_answered(db, "after")).number <= 2


async def test_a_full_disk_is_unavailable_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "policy.db"
    async with open_store(f"sqlite:///{path}", timeout_s=PATIENT_S) as store:
        db = Repositories(store, LearningConfig())
        await ask(db, "before")
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        written = (tmp_path / "policy.db-wal").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (written, hard))  # no file may grow beyond this, as on a full disk
        try:
            async with unavailable_in_time(PATIENT_S):
                await ask(db, "during")
            assert [trial.run for trial in await db.jobs.trials(job_key())] == ["before"]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert (await ask(db, "after")).number == 1


async def test_a_file_that_is_no_database_is_unavailable_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "policy.db"
    path.write_text("a diary" * 1000)
    with pytest.raises(StoreUnavailableError, match="file is not a database"):
        async with open_store(f"sqlite:///{path}", timeout_s=PATIENT_S):
            pytest.fail("it was opened")
    assert path.read_text() == "a diary" * 1000


async def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "below" / "policy.db"
    async with open_store(f"sqlite:///{path}", timeout_s=PATIENT_S) as store:
        await ask(Repositories(store, LearningConfig()), "run")
        assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}


async def test_a_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailableError, match="check the directory"):
        async with open_store(f"sqlite:///{tmp_path}/file/policy.db", timeout_s=PATIENT_S):
            pytest.fail("it was opened")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite://", "SQLite needs a file"),
        ("sqlite:///:memory:", "SQLite needs a file"),
        ("sqlite:////tmp/a.db?mode=ro", "no options"),
        ("mysql://host/name", "databases of the kind mysql"),
        ("postgresql://host/name?pool=3", "option pool"),
        ("policy.db", "cannot be read"),
    ],
)
async def test_a_url_that_cannot_be_used_says_what_can(url: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        async with open_store(url, timeout_s=TIMEOUT_S):
            pytest.fail("it was opened")


async def test_postgresql_without_its_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(RequestError, match=r"pip install 'gridchase\[postgres\]'"):
        async with open_store("postgresql://127.0.0.1/name", timeout_s=TIMEOUT_S):
            pytest.fail("it was opened")


async def test_nobody_listening_is_unavailable_and_the_password_is_not_told() -> None:
    with pytest.raises(StoreUnavailableError, match="Connect call failed") as refused:
        async with open_store("postgresql://user@127.0.0.1:1/name", password="secret", timeout_s=PATIENT_S):
            pytest.fail("it was opened")
    assert "secret" not in str(refused.value)
