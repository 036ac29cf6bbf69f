"""The roles of PostgreSQL in deploy/policy-roles.sql: what each may do, and that the service can work with its own."""

import asyncio
import itertools
from pathlib import Path
from typing import Final

import pytest

from policies.service.errors import StoreUnavailableError
from policies.service.records import JobSettings
from policies.service.store.schema import CLAIMS, JOBS, TRIALS
from tests.live.policy.postgres import Postgres, postgres_server
from tests.live.policy.repositories import DONE, ask, claim, open_repositories
from tests.policies.service.repositories import job_key, run_key

__all__ = ["postgres_server"]
pytestmark = pytest.mark.live
ROLES: Final = (Path(__file__).parents[3] / "deploy" / "policy-roles.sql").read_text(encoding="utf-8")
TABLES: Final = (JOBS.name, TRIALS.name, CLAIMS.name, "alembic_version")
RIGHTS: Final = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")
ALLOWED: Final = {
    ("policy_service", "jobs"): {"SELECT", "INSERT", "UPDATE"},
    ("policy_service", "trials"): {"SELECT", "INSERT", "UPDATE"},
    ("policy_service", "claims"): {"SELECT", "INSERT", "DELETE"},
    ("policy_service", "alembic_version"): {"SELECT"},
    ("policy_reader", "jobs"): {"SELECT"},
    ("policy_reader", "trials"): {"SELECT"},
}


@pytest.fixture
def url(postgres_server: Postgres) -> str:
    """Return the URL of a database with the roles, for the operator's."""
    found = postgres_server.new_database()
    name = found.rsplit("/", 1)[-1]
    for role in ("gridchase", "policy_service", "policy_reader"):
        known = postgres_server.execute(name, f"SELECT 1 FROM pg_roles WHERE rolname = '{role}'")  # noqa: S608
        if not known.strip():
            postgres_server.execute(name, f"CREATE ROLE {role} LOGIN")
    postgres_server.execute(name, f"ALTER DATABASE {name} OWNER TO gridchase")
    owned = found.replace("postgres@", "gridchase@")
    asyncio.run(_make_tables(owned))
    postgres_server.execute(name, f"SET ROLE gridchase; {ROLES}")
    return owned


async def _make_tables(url: str) -> None:
    async with open_repositories(url):
        pass


def test_each_role_may_do_what_the_page_says_and_nothing_else(url: str, postgres_server: Postgres) -> None:
    for role, table, right in itertools.product(("policy_service", "policy_reader"), TABLES, RIGHTS):
        query = f"SELECT has_table_privilege('{role}', '{table}', '{right}')"
        found = postgres_server.execute(url.rsplit("/", 1)[-1], query).strip()
        assert (found == "t") is (right in ALLOWED.get((role, table), ())), (role, table, right)


async def test_the_service_learns_with_its_role_and_deletes_nothing(url: str) -> None:
    async with open_repositories(url.replace("gridchase@", "policy_service@")) as db:
        await ask(db, "run")
        assert (await claim(db, "c1", now_s=1.0)).is_first
        await db.trials.report(run_key(), DONE, now_s=2.0)
        await ask(db, "silent")
        assert [trial.run for trial in await db.trials.expire_leases(now_s=1e6)] == ["silent"]
        await db.jobs.configure(job_key(), JobSettings(eta=1.0))
        assert (await db.jobs.posterior(job_key())).n_observations == 1
        with pytest.raises(StoreUnavailableError, match="permission denied for table jobs"):
            await db.jobs.forget(job_key())
    async with open_repositories(url) as db:
        await db.jobs.forget(job_key())
        assert await db.jobs.jobs() == []


async def test_a_dashboard_reads_and_writes_nothing(url: str, postgres_server: Postgres) -> None:
    async with open_repositories(url) as db:
        await ask(db, "run")
    name = url.rsplit("/", 1)[-1]
    found = postgres_server.execute(name, "SET ROLE policy_reader; SELECT username, job, run FROM trials")
    assert found.strip() == "alice|job|run"
    with pytest.raises(AssertionError, match="permission denied"):
        postgres_server.execute(name, "SET ROLE policy_reader; UPDATE trials SET energy_j = 0")
