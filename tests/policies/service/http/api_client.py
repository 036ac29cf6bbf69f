"""The HTTP API on a free port, asked by a real client."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from policies.service.config import HttpConfig
from policies.service.http.app import served
from publishers.shared.http import own_token as own
from tests.policies.service.memory_store import MemoryTrials

NOW_S = 1_795_000_000.0
ANYWHERE = "0.0.0.0"  # noqa: S104 — what the tests are about
TOKEN = "0123456789abcdef"
ASK = {"run": "r1", "batch_sizes": [16, 32, 64], "default_batch_size": 32}
TRIALS, RESULT = "/v1/jobs/alice/resnet50/trials", "/v1/jobs/alice/resnet50/trials/r1/result"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the server has answered; `body` is decoded where it is JSON."""

    status: int
    headers: dict[str, str]
    body: Any

    @property
    def reason(self) -> tuple[int, str]:
        """Return the status and the reason of a problem."""
        assert self.headers["Content-Type"] == "application/problem+json"
        assert self.body["status"] == self.status
        assert self.body["detail"]
        return self.status, self.body["reason"]


class Client:
    """Asks one server."""

    def __init__(self, session: aiohttp.ClientSession, url: str, *, own_token: Path) -> None:
        self.session = session
        self.own_token = own_token
        self.authority = url.removeprefix("http://")

    async def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:  # noqa: ANN401 — JSON
        """Return the answer; `body` is sent as JSON, unless it is bytes or a stream; `_` in headers stands for `-`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        data = msgspec.json.encode(body) if isinstance(body, dict | list) else body
        if body is not None:
            named.setdefault("Content-Type", "application/json")
        async with self.session.request(method, path, data=data, headers=named) as response:
            raw = await response.read()
            is_json = raw and response.content_type.endswith("json")
            decoded = msgspec.json.decode(raw) if is_json else raw
            return Answer(status=response.status, headers=dict(response.headers), body=decoded)

    async def metrics(self) -> dict[tuple[str, ...], float]:
        """Return the counters by name and labels."""
        text = (await self("GET", "/metrics")).body.decode()
        return {
            (sample.name.removeprefix("gridchase_policy_"), *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@asynccontextmanager
async def asking(
    memory: MemoryTrials,
    *,
    host: str = "127.0.0.1",
    token_file: Path | None = None,
    sends_token: bool = True,
    trouble: Callable[[], str | None] = lambda: None,
) -> AsyncIterator[Client]:
    """Serve trials, and return a client, which sends the service's own token where `sends_token`."""
    config = HttpConfig(host=host, port=0, token_file=str(token_file or ""))
    with TemporaryDirectory() as directory:
        own_token = Path(directory) / own.FILE
        async with (
            served(
                memory.trials, memory.jobs, http=config, own_token=own_token, clock_s=lambda: NOW_S, trouble=trouble
            ) as url,
            aiohttp.ClientSession(
                url.replace(ANYWHERE, "127.0.0.1"),
                timeout=aiohttp.ClientTimeout(total=20),
                headers={"Authorization": f"Bearer {own.read_token(own_token)}"} if sends_token else {},
            ) as session,
        ):
            yield Client(session, url, own_token=own_token)
