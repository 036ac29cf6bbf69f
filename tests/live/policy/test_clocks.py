"""Two servers whose clocks differ, and a run that asks long after its end, on both databases."""

from pathlib import Path

import pytest

from policies.service.config import LearningConfig
from policies.service.records import Result
from policies.service.store.store import open_store
from tests.live.policy.postgres import Postgres, postgres_server
from tests.policies.service.repositories import Repositories

__all__ = ["postgres_server"]
pytestmark = pytest.mark.live
DAY_S = 86_400.0
NOW_S = 10 * DAY_S
LEASE_S = LearningConfig().lease_s


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/policy.db"
    server: Postgres = request.getfixturevalue("postgres_server")
    return server.new_database()


async def test_a_dead_run_that_a_clock_ahead_has_heard_of_is_released_after_its_lease(url: str) -> None:
    async with open_store(url, timeout_s=20.0) as store:
        db = Repositories(store, LearningConfig())
        await db.trials.get_or_create("job", "run", batch_sizes=(16, 32), default_batch_size=32, now_s=NOW_S)
        await db.trials.renew_lease("job", "run", now_s=NOW_S + DAY_S)
        assert await db.trials.expire_leases(now_s=NOW_S + 1.0) == []
        assert (await db.jobs.trial("job", "run")).heard_at_s == NOW_S + 1.0
        assert await db.trials.expire_leases(now_s=NOW_S + LEASE_S) == []
        (expired,) = await db.trials.expire_leases(now_s=NOW_S + LEASE_S + 2.0)
        assert (expired.run, expired.state) == ("run", "lost")


async def test_a_run_id_that_is_used_again_gets_the_same_size_and_why_nothing_is_learned(url: str) -> None:
    async with open_store(url, timeout_s=20.0) as store:
        db = Repositories(store, LearningConfig())
        first = await db.trials.get_or_create("job", "run", batch_sizes=(16, 32), default_batch_size=32, now_s=NOW_S)
        await db.trials.report("job", "run", Result(outcome="reached", epochs=5), now_s=NOW_S)
        soon, late = [
            await db.trials.get_or_create(
                "job", "run", batch_sizes=(16, 32), default_batch_size=32, now_s=NOW_S + after_s
            )
            for after_s in (LEASE_S, LEASE_S + 1.0)
        ]
        assert (soon.batch_size, soon.reason) == (first.batch_size, first.reason)
        assert (late.batch_size, late.reason, late.number) == (first.batch_size, "run_has_ended", first.number)
        assert (await db.jobs.trial("job", "run")).reason == first.reason
