"""Who may ask over HTTP, and who may write."""

import os
import pwd
from pathlib import Path

import pytest

from publishers.shared.http.own_token import read_token
from tests.policies.service.http.api_client import ANYWHERE, ASK, TOKEN, TRIALS, asking
from tests.policies.service.memory_store import MemoryTrials

OF_BOB = "bobs-token"

WRITES: list[tuple[str, str, object]] = [
    ("POST", TRIALS, ASK),
    ("POST", f"{TRIALS}/r1/result", {}),
    ("PUT", "/v1/jobs/alice/resnet50/settings", {}),
    ("DELETE", "/v1/jobs/alice/resnet50", None),
    ("POST", "/v1/import", []),
]


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_text(f"{TOKEN}\nbob:{OF_BOB}\n")
    return path


@pytest.mark.parametrize(("method", "path", "body"), WRITES)
@pytest.mark.parametrize("host", ["127.0.0.1", ANYWHERE])
async def test_no_write_passes_without_a_token(
    token_file: Path, host: str, method: str, path: str, body: object
) -> None:
    memory = MemoryTrials()
    async with asking(memory, host=host, token_file=token_file, sends_token=False) as ask:
        missing = await ask(method, path, body)
        assert missing.reason == (401, "no_token")
        assert missing.headers["WWW-Authenticate"] == 'Bearer realm="gridchase"'
        wrong = await ask(method, path, body, Authorization=f"Bearer {TOKEN}0")
        assert wrong.reason == (401, "wrong_token")
        assert wrong.headers["WWW-Authenticate"] == 'Bearer realm="gridchase", error="invalid_token"'
        assert memory.database.n_begun == 0
        for token in (TOKEN, read_token(ask.own_token)):
            assert (await ask(method, path, body, Authorization=f"Bearer {token}")).status not in {401, 403}


@pytest.mark.parametrize(("method", "path", "body"), WRITES)
async def test_a_users_token_writes_about_that_users_jobs_alone(
    token_file: Path, method: str, path: str, body: object
) -> None:
    async with asking(MemoryTrials(), token_file=token_file) as ask:
        assert (await ask("POST", TRIALS, ASK)).status == 200
        before = (await ask("GET", "/v1/export")).body
        refused = await ask(method, path, body, Authorization=f"Bearer {OF_BOB}")
        assert refused.reason == (403, "foreign_user")
        assert (await ask("GET", "/v1/export")).body == before
        own = await ask(method, path.replace("alice", "bob"), body, Authorization=f"Bearer {OF_BOB}")
        assert (own.status == 403) is (path == "/v1/import")


async def test_two_users_jobs_of_one_name_are_two_jobs() -> None:
    async with asking(MemoryTrials()) as ask:
        for user in ("alice", "carol%2Fx%20y"):
            sizes = {"batch_sizes": [8 * len(user), 4 * len(user)], "default_batch_size": 4 * len(user)}
            assert (await ask("POST", f"/v1/jobs/{user}/resnet50/trials", ASK | sizes)).status == 200
        assert [job["user"] for job in (await ask("GET", "/v1/jobs")).body] == ["alice", "carol/x y"]
        assert (await ask("DELETE", "/v1/jobs/alice/resnet50")).status == 204
        (kept,) = (await ask("GET", "/v1/export?user=carol/x%20y&job=resnet50")).body
        assert (kept["job"]["user"], kept["trials"][0]["user"]) == ("carol/x y", "carol/x y")
        assert (await ask("GET", "/v1/export?job=resnet50")).reason == (422, "invalid_request")
        assert (await ask("GET", "/v1/jobs/%00/resnet50")).reason == (400, "invalid_request")


async def test_a_job_from_before_users_is_imported_for_a_user() -> None:
    async with asking(MemoryTrials()) as ask:
        await ask("POST", TRIALS, ASK)
        (exported,) = (await ask("GET", "/v1/export")).body
        old = exported | {"version": 1}
        for record in (old["job"], old["trials"][0]):
            del record["user"]
        assert (await ask("POST", "/v1/import", [old])).reason == (422, "invalid_request")
        assert (await ask("POST", "/v1/import?user=bob", [old])).body["n_trials"] == 1
        assert (await ask("GET", "/v1/jobs/bob/resnet50/trials/r1")).body["user"] == "bob"


async def test_a_refusal_names_the_files_with_tokens_and_who_may_read_them(token_file: Path) -> None:
    async with asking(MemoryTrials(), token_file=token_file, sends_token=False) as ask:
        answer = await ask("POST", TRIALS, ASK)
        user = pwd.getpwuid(os.geteuid()).pw_name
        assert f"{ask.own_token} holds one, which user {user} may read" in answer.body["detail"]
        assert str(token_file) in answer.body["detail"]


@pytest.mark.parametrize("sent", ["", "Bearer", "Bearer ", f"Basic {TOKEN}", TOKEN, f"Bearer\t{TOKEN}"])
async def test_what_is_no_bearer_token_is_refused(token_file: Path, sent: str) -> None:
    async with asking(MemoryTrials(), token_file=token_file, sends_token=False) as ask:
        assert (await ask("POST", TRIALS, ASK, Authorization=sent)).reason == (401, "no_token")
        assert (await ask("POST", TRIALS, ASK, Authorization=f"bearer  {TOKEN} ")).status == 200


async def test_a_token_that_is_taken_out_of_the_file_is_refused_from_then_on(token_file: Path) -> None:
    async with asking(MemoryTrials(), token_file=token_file) as ask:
        assert (await ask("POST", TRIALS, ASK, Authorization=f"Bearer {TOKEN}")).status == 200
        token_file.write_text("another\n")  # noqa: ASYNC240 — a few bytes
        assert (await ask("POST", TRIALS, ASK, Authorization=f"Bearer {TOKEN}")).reason == (401, "wrong_token")


async def test_reading_is_open(token_file: Path) -> None:
    async with asking(MemoryTrials(), host=ANYWHERE, token_file=token_file, sends_token=False) as ask:
        for path in ("/v1/jobs", "/v1/export", "/metrics", "/readyz"):
            assert (await ask("GET", path, Origin="http://elsewhere.example")).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://["},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
async def test_a_page_of_another_site_cannot_write(headers: dict[str, str]) -> None:
    memory = MemoryTrials()
    async with asking(memory) as ask:
        assert (await ask("POST", TRIALS, ASK, **headers)).reason == (403, "foreign_origin")
        assert memory.database.n_begun == 0


async def test_a_page_of_this_server_can_write() -> None:
    async with asking(MemoryTrials()) as ask:
        headers = {"Origin": f"http://{ask.authority}", "Sec_Fetch_Site": "same-origin"}
        assert (await ask("POST", TRIALS, ASK, **headers)).status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9322", "127.0.0.1.evil.example", "[", "", "a@b"])
@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/jobs"), ("POST", TRIALS), ("GET", "/metrics")])
async def test_a_name_that_leads_to_loopback_from_outside_is_refused(method: str, path: str, host: str) -> None:
    async with asking(MemoryTrials()) as ask:
        assert (await ask(method, path, ASK if method == "POST" else None, Host=host)).reason == (403, "foreign_host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:9322", "10.0.0.1", "localhost."])
async def test_addresses_and_localhost_are_names_of_a_server_on_loopback(host: str) -> None:
    async with asking(MemoryTrials()) as ask:
        assert (await ask("GET", "/v1/jobs", Host=host)).status == 200


@pytest.mark.live
async def test_a_server_for_others_goes_by_any_name() -> None:
    async with asking(MemoryTrials(), host=ANYWHERE) as ask:
        assert (await ask("GET", "/v1/jobs", Host="policy.example")).status == 200
