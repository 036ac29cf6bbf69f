"""The HTTP API over a database in memory: what is answered, what is refused, and how."""

import io
from collections.abc import AsyncIterator

import msgspec
import pytest

from tests.policies.service.http.api_client import ASK, NOW_S, RESULT, TRIALS, asking
from tests.policies.service.memory_store import MemoryTrials


async def test_a_run_is_given_a_trial_and_its_result_is_taken() -> None:
    async with asking(MemoryTrials()) as ask:
        trial = (await ask("POST", TRIALS, ASK)).body
        assert (trial["batch_size"], trial["state"], trial["requested_at_s"]) == (32, "open", NOW_S)
        assert (await ask("POST", TRIALS, ASK)).body == trial
        told = (await ask("POST", RESULT, {"outcome": "reached", "epochs": 3, "reached_epochs": 3})).body
        assert (told["trial"]["state"], told["stop"]) == ("reached", None)
        assert (await ask("GET", f"{TRIALS}/r1")).body == told["trial"]
        assert (await ask("GET", "/v1/jobs/alice/resnet50/posterior")).body["n_observations"] == 1
        assert [(job["name"], job["n_ended"]) for job in (await ask("GET", "/v1/jobs")).body] == [("resnet50", 1)]


async def test_a_run_that_costs_too_much_is_ordered_to_stop() -> None:
    memory = MemoryTrials()
    async with asking(memory) as ask:
        await memory.open_bound()
        progress = {"epochs": 2, "energy_j": 1e6, "duration_s": 10.0, "max_power_w": 600.0}
        assert "above the bound of" in (await ask("POST", RESULT, progress)).body["stop"]


async def test_what_a_run_has_timed_is_taken() -> None:
    async with asking(MemoryTrials()) as ask:
        await ask("POST", TRIALS, ASK)
        told = {"times": [{"batch_size": 16, "iteration_time_s": 0.5}], "too_large": 64}
        answer = await ask("PUT", f"{TRIALS}/r1/timing", told)
        assert (answer.status, answer.body["timing"]) == (200, told | {"batch_size": None})
        assert (await ask("PUT", f"{TRIALS}/r2/timing", told)).reason == (404, "unknown_trial")
        assert (await ask("PUT", f"{TRIALS}/r1/timing", told | {"too_large": None, "batch_size": 16})).status == 422
        for time_s in (0, -1, 1e999):
            wrong = {"times": [{"batch_size": 16, "iteration_time_s": time_s}]}
            assert (await ask("PUT", f"{TRIALS}/r1/timing", wrong)).reason == (400, "invalid_request")


async def test_settings_are_replaced_and_a_job_is_forgotten() -> None:
    async with asking(MemoryTrials()) as ask:
        await ask("POST", TRIALS, ASK)
        assert (await ask("PUT", "/v1/jobs/alice/resnet50/settings", {"eta": 1})).body["settings"]["eta"] == 1.0
        assert (await ask("GET", "/v1/jobs/alice/resnet50")).body["settings"]["eta"] == 1.0
        gone = await ask("DELETE", "/v1/jobs/alice/resnet50")
        assert (gone.status, gone.body) == (204, b"")
        assert (await ask("GET", "/v1/jobs/alice/resnet50")).reason == (404, "unknown_job")


async def test_trials_come_in_pages_the_newest_first() -> None:
    async with asking(MemoryTrials()) as ask:
        for number in range(5):
            await ask("POST", TRIALS, ASK | {"run": f"r{number}"})
        page = (await ask("GET", f"{TRIALS}?limit=2")).body
        assert [trial["run"] for trial in page] == ["r4", "r3"]
        page = (await ask("GET", f"{TRIALS}?limit=2&before={page[-1]['number']}")).body
        assert [trial["run"] for trial in page] == ["r2", "r1"]


@pytest.mark.parametrize("n_jobs", [0, 1, 3])
async def test_what_is_exported_can_be_imported_once(n_jobs: int) -> None:
    async with asking(MemoryTrials()) as ask:
        for number in range(n_jobs):
            await ask("POST", f"/v1/jobs/alice/{number}/trials", ASK)
        exported = (await ask("GET", "/v1/export")).body
        one = await ask("GET", "/v1/export?user=alice&job=0")
        assert one.body == exported[:1] if n_jobs else one.reason == (404, "unknown_job")
    async with asking(MemoryTrials()) as ask:
        new = (await ask("POST", "/v1/import", exported)).body
        again = (await ask("POST", "/v1/import", exported)).body
        assert (new["n_jobs"], new["n_trials"], new["n_known_jobs"]) == (n_jobs, n_jobs, 0)
        assert (again["n_jobs"], again["n_trials"], again["n_known_trials"]) == (0, 0, n_jobs)
        assert (await ask("GET", "/v1/export")).body == exported


async def test_an_import_counts_what_was_new_and_what_was_known() -> None:
    async with asking(MemoryTrials()) as ask:
        for name, n_trials in (("a", 2), ("b", 3), ("c", 1)):
            for number in range(n_trials):
                await ask("POST", f"/v1/jobs/alice/{name}/trials", ASK | {"run": f"r{number}"})
        exported = (await ask("GET", "/v1/export")).body
    async with asking(MemoryTrials()) as ask:
        for name in ("a", "b"):
            await ask("POST", f"/v1/jobs/alice/{name}/trials", ASK | {"run": "r0"})
        counts = (await ask("POST", "/v1/import", exported)).body
        assert counts == {"n_jobs": 1, "n_known_jobs": 2, "n_trials": 4, "n_known_trials": 2}


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"batch_sizes": []}, "$.batch_sizes"),
        ({"batch_sizes": [0]}, "`int` >= 1"),
        ({"batch_sizes": [16, 1e999]}, "null"),
        ({"default_batch_size": "32"}, "Expected `int`, got `str`"),
        ({"run": "../r"}, "$.run"),
        ({"run": ".."}, "$.run"),
        ({"runs": "r1"}, "unknown field `runs`"),
    ],
)
async def test_a_body_that_is_no_request_is_refused_with_what_is_wrong(change: dict[str, object], part: str) -> None:
    async with asking(MemoryTrials()) as ask:
        answer = await ask("POST", TRIALS, ASK | change)
        assert answer.reason == (400, "invalid_request")
        assert part in answer.body["detail"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"energy_j": NaN}',
        b'{"energy_j": 1e999}',
        b'{"energy_j": -1}',
        b'{"outcome": "lost"}',
        b'{"failure": "\\ud800"}',
        b"[" * 100_000,
    ],
    ids=lambda body: repr(body[:24]),
)
async def test_what_is_no_result_is_refused(body: bytes) -> None:
    async with asking(MemoryTrials()) as ask:
        await ask("POST", TRIALS, ASK)
        assert (await ask("POST", RESULT, body)).reason == (400, "invalid_request")
        assert (await ask("GET", f"{TRIALS}/r1")).body["state"] == "open"


async def test_a_whole_number_is_an_integer_however_it_is_written() -> None:
    async with asking(MemoryTrials()) as ask:
        body = b'{"run": "r1", "batch_sizes": [16.0, 3.2e1], "default_batch_size": 32.0}'
        trial = (await ask("POST", TRIALS, body)).body
        assert (trial["batch_size"], type(trial["batch_size"])) == (32, int)
        for number in (b"32.5", b"1e300", b'"32"', b"true"):
            assert (await ask("POST", TRIALS, body.replace(b"32.0", number))).reason == (400, "invalid_request")


async def test_every_fault_of_a_request_is_told() -> None:
    async with asking(MemoryTrials()) as ask:
        answer = await ask("POST", TRIALS, ASK | {"batch_sizes": [16, 16]})
        assert answer.reason == (422, "invalid_request")
        assert answer.body["faults"] == [
            "batch_sizes has 16 more than once: must be distinct",
            "default_batch_size = 32: must be one of 16, 16",
        ]


@pytest.mark.parametrize(
    ("method", "path", "body", "refusal"),
    [
        ("POST", TRIALS, ASK | {"batch_sizes": [16, 32]}, (409, "job_mismatch")),
        ("POST", RESULT, {"outcome": "stopped"}, (409, "trial_conflict")),
        ("POST", f"{TRIALS}/r9/result", {}, (404, "unknown_trial")),
        ("GET", f"{TRIALS}/r9", None, (404, "unknown_trial")),
        ("GET", "/v1/jobs/alice/other/trials", None, (404, "unknown_job")),
        ("DELETE", "/v1/jobs/alice/other", None, (404, "unknown_job")),
        ("PUT", "/v1/jobs/alice/other/settings", {}, (404, "unknown_job")),
        ("PUT", "/v1/jobs/alice/resnet50/settings", {"eta": 2}, (400, "invalid_request")),
        ("GET", "/v1/jobs/alice/a%20b", None, (400, "invalid_request")),
        ("GET", "/v1/jobs/alice/%2e%2e%2e", None, (400, "invalid_request")),
        ("GET", f"/v1/jobs/alice/{'a' * 65}", None, (400, "invalid_request")),
        ("GET", f"{TRIALS}/a%0a", None, (400, "invalid_request")),
        ("GET", f"{TRIALS}?limit=0", None, (400, "invalid_request")),
        ("GET", f"{TRIALS}?limit=five", None, (400, "invalid_request")),
        ("GET", f"{TRIALS}?before=-1", None, (400, "invalid_request")),
        ("GET", f"{TRIALS}?limits=5", None, (400, "invalid_request")),
        ("GET", f"{TRIALS}?limit=5&limit=6", None, (400, "invalid_request")),
        ("GET", "/v1/jobs?limit=5", None, (400, "invalid_request")),
        ("GET", "/", None, (404, "not_found")),
        ("GET", "/v1/jobs/alice/", None, (404, "not_found")),
        ("GET", "/v1/jobs/alice/a/b", None, (404, "not_found")),
        ("PATCH", "/v1/jobs", None, (405, "method_not_allowed")),
    ],
)
async def test_what_cannot_be_done_is_refused(method: str, path: str, body: object, refusal: tuple[int, str]) -> None:
    async with asking(MemoryTrials()) as ask:
        await ask("POST", TRIALS, ASK)
        await ask("POST", RESULT, {"outcome": "reached", "epochs": 1})
        assert (await ask(method, path, body)).reason == refusal


async def test_another_method_is_told_what_is_allowed() -> None:
    async with asking(MemoryTrials()) as ask:
        for path, allowed in (("/v1/jobs/alice/a", "DELETE, GET, HEAD"), (RESULT, "POST"), ("/healthz", "GET, HEAD")):
            answer = await ask("OPTIONS", path)
            assert (answer.status, answer.headers["Allow"]) == (405, allowed)


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/export", "/healthz", "/readyz", "/metrics", "/openapi.json"])
async def test_head_answers_as_get_does_without_a_body(path: str) -> None:
    async with asking(MemoryTrials()) as ask:
        head, get = await ask("HEAD", path), await ask("GET", path)
        assert (head.status, head.body) == (get.status, b"") == (200, b"")
        assert head.headers["Content-Type"] == get.headers["Content-Type"]


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-16"]
)
async def test_a_body_in_another_language_is_refused(content_type: str) -> None:
    async with asking(MemoryTrials()) as ask:
        answer = await ask("POST", TRIALS, msgspec.json.encode(ASK), Content_Type=content_type)
        assert answer.reason == (415, "unsupported_media_type")
        assert (await ask("POST", TRIALS, ASK, Content_Type="application/json; charset=UTF-8")).status == 200


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/alice/none", "/v1/export", "/nowhere"])
async def test_no_answer_is_kept_guessed_at_or_tells_who_serves_it(path: str) -> None:
    async with asking(MemoryTrials()) as ask:
        headers = (await ask("GET", path)).headers
        named = [headers[name] for name in ("Cache-Control", "X-Content-Type-Options", "Server")]
        assert named == ["no-store", "nosniff", "gridchase"]


async def test_a_compressed_body_is_refused_unopened() -> None:
    async with asking(MemoryTrials()) as ask:
        assert (await ask("POST", TRIALS, b"\x1f\x8b", Content_Encoding="gzip")).status == 415


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_that_is_too_long_is_refused(is_chunked: bool) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 65_536

    async with asking(MemoryTrials()) as ask:
        answer = await ask("POST", TRIALS, pieces() if is_chunked else io.BytesIO(b" " * 20 * 65_536))
        assert answer.reason == (413, "too_large")
        assert (await ask("GET", "/healthz")).status == 200


async def test_an_import_may_be_long() -> None:
    async with asking(MemoryTrials()) as ask:
        assert (await ask("POST", "/v1/import", io.BytesIO(b" " * (3 << 20) + b"[]"))).body["n_jobs"] == 0
