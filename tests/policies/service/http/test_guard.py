"""Who may ask over HTTP, and who may write."""

import os
import pwd
from pathlib import Path

import pytest

from policies.service.http.own_token import read_token
from tests.policies.service.http.api_client import ANYWHERE, ASK, TOKEN, TRIALS, asking
from tests.policies.service.memory_store import MemoryTrials

pytestmark = pytest.mark.live

WRITES: list[tuple[str, str, object]] = [
    ("POST", TRIALS, ASK),
    ("POST", f"{TRIALS}/r1/result", {}),
    ("PUT", "/v1/jobs/resnet50/settings", {}),
    ("DELETE", "/v1/jobs/resnet50", None),
    ("POST", "/v1/import", []),
]


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_text(f"ada:{TOKEN}\n")
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


async def test_a_server_for_others_goes_by_any_name() -> None:
    async with asking(MemoryTrials(), host=ANYWHERE) as ask:
        assert (await ask("GET", "/v1/jobs", Host="policy.example")).status == 200
