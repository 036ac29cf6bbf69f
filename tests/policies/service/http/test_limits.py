"""The HTTP API when things go wrong: no database, no time, too many at once, a client that goes."""

import asyncio
import logging
from collections.abc import AsyncIterator

import aiohttp
import pytest

from policies.service.config import LearningConfig
from policies.service.errors import PolicyError, StoreUnavailableError, StoreVersionError
from policies.service.http import routes
from policies.service.records import JobExport, JobKey
from policies.service.trials.jobs import JobRepository
from publishers.shared.http.write_access import OWN
from tests.live.conftest import eventually
from tests.policies.service.http.api_client import ASK, RESULT, TRIALS, asking
from tests.policies.service.memory_store import MemoryTrials
from tests.policies.service.repositories import job_key


def _with_jobs(kind: type[JobRepository]) -> MemoryTrials:
    memory = MemoryTrials()
    memory.jobs = kind(memory.store, LearningConfig())
    return memory


@pytest.mark.parametrize(
    ("failure", "refusal", "retry_after"),
    [
        (StoreUnavailableError("the database does not answer"), (503, "store_unavailable"), "5"),
        (StoreVersionError("the database is newer"), (503, "store_version"), "5"),
        (PolicyError("something else"), (500, "failed"), None),
    ],
)
async def test_a_failure_of_the_database_is_answered(
    failure: Exception, refusal: tuple[int, str], retry_after: str | None
) -> None:
    memory = MemoryTrials()
    memory.database.error = failure
    async with asking(memory) as ask:
        for method, path, body in (("POST", TRIALS, ASK), ("GET", "/v1/jobs", None), ("GET", "/v1/export", None)):
            answer = await ask(method, path, body)
            assert answer.reason == refusal
            assert answer.headers.get("Retry-After") == retry_after
        is_counted = (await ask.metrics()).get(("store_failures_total",), 0.0) == 3.0
        assert is_counted == isinstance(failure, StoreUnavailableError)


async def test_a_database_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(routes, "PROBE_TIMEOUT_S", 0.05)
    memory = MemoryTrials()
    memory.database.opened.clear()
    async with asking(memory) as ask:
        assert (await ask("POST", TRIALS, ASK)).reason == (503, "timeout")
        answer = await ask("GET", "/readyz")
        assert (answer.status, answer.body["troubles"]) == (503, ["the database does not answer in 0.05 s"])
        assert (await ask("GET", "/healthz")).status == 200


async def test_a_body_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "BODY_TIMEOUT_S", 0.05)

    async def endless() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async with asking(MemoryTrials()) as ask:
        assert (await ask("POST", TRIALS, endless())).reason == (408, "slow_body")


@pytest.mark.parametrize(
    ("rest", "status"), [(b"ZZ\r\n", b"400"), (b"5\r\n{}", b"400")], ids=["no chunk", "half a chunk"]
)
async def test_a_body_that_breaks_off_is_refused_and_bothers_nobody(rest: bytes, status: bytes) -> None:
    async with asking(MemoryTrials()) as ask:
        host, port = ask.authority.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {TRIALS} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        writer.write(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + rest)
        writer.write_eof()
        answer = await reader.read()
        assert not answer or answer.split()[1] == status
        assert b"Traceback" not in answer
        writer.close()
        await writer.wait_closed()
        assert (await ask("GET", "/healthz")).status == 200


async def test_readiness_tells_every_trouble() -> None:
    memory, troubles = MemoryTrials(), ["the broker does not answer"]
    async with asking(memory, trouble=lambda: troubles[0] if troubles else None) as ask:
        memory.database.error = StoreUnavailableError("the disk is full")
        answer = await ask("GET", "/readyz")
        expected = {"ready": False, "troubles": ["the disk is full", "the broker does not answer"]}
        assert (answer.status, answer.body) == (503, expected)
        memory.database.error = None
        troubles.clear()
        answer = await ask("GET", "/readyz")
        assert (answer.status, answer.body) == (200, {"ready": True, "troubles": []})


async def test_it_counts_what_it_does() -> None:
    async with asking(MemoryTrials()) as ask:
        for _ in range(2):
            await ask("POST", TRIALS, ASK)
        await ask("POST", RESULT, {"epochs": 1})
        await ask("POST", RESULT, {"outcome": "reached"})
        await ask("POST", RESULT, {"epochs": 1})
        await ask("GET", "/nowhere")
        metrics = await ask.metrics()
    assert metrics["answers_total", "http", "default_first"] == 2.0
    assert metrics["answer_seconds_count", "http"] == 2.0
    assert metrics["answer_seconds_bucket", "10.0", "http"] == 2.0
    assert metrics["results_total", "http"] == 3.0
    assert metrics["trials_ended_total", "reached"] == 1.0
    assert metrics["http_requests_total", "requestBatchSize", "200"] == 2.0
    assert metrics["http_requests_total", "none", "404"] == 1.0


class _Breaking(JobRepository):
    """Jobs whose database goes away in the middle of an export."""

    async def export(self, key: JobKey | None = None) -> list[JobExport]:
        if key == job_key("b"):
            raise StoreUnavailableError("the database does not answer")
        return await super().export(key)


class _Hanging(JobRepository):
    """Jobs whose database hangs in the middle of an export."""

    async def export(self, key: JobKey | None = None) -> list[JobExport]:
        if key is not None:
            await asyncio.Event().wait()
        return await super().export(key)


async def test_an_export_that_cannot_go_on_breaks_off(caplog: pytest.LogCaptureFixture) -> None:
    async with asking(_with_jobs(_Breaking)) as ask:
        for name in "abc":
            await ask("POST", f"/v1/jobs/alice/{name}/trials", ASK)
        with pytest.raises(aiohttp.ClientPayloadError):
            await ask("GET", "/v1/export")
        assert (await ask("GET", "/v1/export?user=alice&job=c")).status == 200
    assert [record.message for record in caplog.records] == ["/v1/export aborted: the database does not answer"]


async def test_an_export_that_takes_too_long_breaks_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(routes, "BULK_TIMEOUT_S", 0.2)
    async with asking(_with_jobs(_Hanging)) as ask:
        await ask("POST", "/v1/jobs/alice/a/trials", ASK)
        with pytest.raises(aiohttp.ClientPayloadError):
            await ask("GET", "/v1/export")
    assert [record.message for record in caplog.records] == ["/v1/export aborted: it took too long"]


async def test_a_client_that_goes_away_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    memory = MemoryTrials()
    memory.database.opened.clear()
    async with asking(memory) as ask:
        async with asyncio.TaskGroup() as tasks:
            going = tasks.create_task(ask("POST", TRIALS, ASK))
            await eventually(lambda: memory.database.n_begun)
            going.cancel()
        memory.database.opened.set()
        assert (await ask("GET", f"{TRIALS}/r1")).status == 200, "a transaction that has begun is not interrupted"
    assert caplog.records == []


async def test_what_changes_a_job_for_good_is_told_with_who_did_it(caplog: pytest.LogCaptureFixture) -> None:
    async with asking(MemoryTrials()) as ask:
        caplog.set_level(logging.INFO, "policies.service.http.routes")
        await ask("POST", TRIALS, ASK)
        await ask("PUT", "/v1/jobs/alice/resnet50/settings", {"eta": 1})
        exported = (await ask("GET", "/v1/export")).body
        await ask("DELETE", "/v1/jobs/alice/resnet50")
        await ask("POST", "/v1/import", exported)
    assert [record.message for record in caplog.records] == [
        'job alice/resnet50: settings {"policy":null,"eta":1.0,"beta":null,"forgetting_ratio":null} by ' + OWN,
        f"job alice/resnet50: deleted with its trials by {OWN}",
        f"1 jobs with 1 trials imported by {OWN}",
    ]


class _Forgetting(JobRepository):
    """Jobs of which one is deleted in the middle of an export."""

    async def export(self, key: JobKey | None = None) -> list[JobExport]:
        if key == job_key("a"):
            await self.forget(key)
        return await super().export(key)


async def test_a_job_that_is_forgotten_during_an_export_is_left_out() -> None:
    async with asking(_with_jobs(_Forgetting)) as ask:
        for name in "abc":
            await ask("POST", f"/v1/jobs/alice/{name}/trials", ASK)
        assert [one["job"]["name"] for one in (await ask("GET", "/v1/export")).body] == ["b", "c"]
