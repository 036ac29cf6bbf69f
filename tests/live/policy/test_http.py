"""The HTTP API on the real db and SQLite: what schemathesis finds, and what travels there and back."""

import asyncio
import logging
import os
import re
import shlex
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from policies.service.config import HttpConfig, LearningConfig
from policies.service.http.app import served
from policies.service.store.store import open_store
from publishers.shared.http.own_token import FILE
from tests.policies.service.http.api_client import ASK, NOW_S, TOKEN
from tests.policies.service.repositories import Repositories

pytestmark = pytest.mark.live

PAGE = Path(__file__).parents[3] / "docs" / "policy-http.md"
DEFAULT_URL = "http://127.0.0.1:9322"
CONFIG = Path(__file__).with_name("schemathesis.toml")
SEED = 4
N_EXAMPLES = 8
"""Of each operation and phase."""


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[str]:
    """Serve a new SQLite database to who has the token; yield the address."""
    tokens = directory / "tokens"
    tokens.touch(0o600)
    tokens.write_text(f"{TOKEN}\n")
    async with open_store(f"sqlite:///{directory / 'policy.sqlite'}", timeout_s=10.0) as store:
        db = Repositories(store, LearningConfig())
        http = HttpConfig(port=0, token_file=str(tokens))
        async with served(db.trials, db.jobs, http=http, own_token=directory / FILE, clock_s=lambda: NOW_S) as url:
            yield url


def _client(url: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=aiohttp.ClientTimeout(20))


async def _schemathesis(url: str, directory: Path) -> tuple[int, str]:
    """Return how schemathesis ends, and what it says."""
    command = [str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(CONFIG), "run"]
    command += [f"{url}/openapi.json", "--checks", "all", "--header", f"Authorization: Bearer {TOKEN}"]
    command += ["--seed", f"{SEED}", "--generation-database", "none", "--max-examples", f"{N_EXAMPLES}", "--no-color"]
    command += ["--suppress-health-check", "too_slow"]  # the machine may be
    process = await asyncio.create_subprocess_exec(
        *command, cwd=directory, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    return await process.wait(), said.decode()


async def test_schemathesis_finds_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path) as url:
        code, said = await _schemathesis(url, tmp_path)
    assert code == 0, said
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_what_was_learned_travels_to_another_service(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    huge = {"outcome": "reached", "epochs": 1, "reached_epochs": 1, "energy_j": 1e18, "duration_s": 1.0}
    async with serving(tmp_path / "one") as url, _client(url) as client:
        for run in ("r1", "r2"):
            async with client.post("/v1/jobs/alice/huge/trials", json=ASK | {"run": run}) as response:
                assert response.status == 200, await response.text()
            async with client.post(f"/v1/jobs/alice/huge/trials/{run}/result", json=huge) as response:
                assert response.status == 200, await response.text()
        async with client.get("/v1/export") as response:
            exported = await response.json()
    async with serving(tmp_path / "other") as url, _client(url) as client:
        for n_new in (2, 0):
            async with client.post("/v1/import", json=exported) as response:
                assert (response.status, (await response.json())["n_trials"]) == (200, n_new)
        async with client.get("/v1/export") as response:
            assert await response.json() == exported


async def test_a_hundred_runs_that_ask_at_once_get_their_answers(tmp_path: Path) -> None:
    async def ask(run: int) -> tuple[int, int]:
        async with client.post("/v1/jobs/alice/busy/trials", json=ASK | {"run": f"r{run}"}) as response:
            return response.status, (await response.json())["number"]

    async with serving(tmp_path) as url, _client(url) as client, asyncio.TaskGroup() as tasks:
        answers = [tasks.create_task(ask(run)) for run in range(100)]
        assert sorted([await answer for answer in answers]) == [(200, number) for number in range(100)]


async def test_the_examples_of_the_page_work(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed: apt-get install curl")
    examples = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(examples) == 2
    async with serving(tmp_path) as url, _client(url) as client:
        trial = await _run(examples[0], url, tmp_path)
        assert '"batch_size":64,"state":"open"' in trial
        assert '"state":"reached"' in trial
        known = await _run(examples[1], url, tmp_path)
        assert '"n_known_trials":1' in known
        async with client.get("/v1/jobs") as response:
            assert await response.json() == []


async def _run(script: str, url: str, directory: Path) -> str:
    """Return what a script of the page prints, asked of this server."""
    assert script.count(DEFAULT_URL) == 1
    command = directory / "gridchase"
    words = shlex.join([sys.executable, "-m", "controller"])
    command.write_text(f'#!/bin/sh\nexec {words} "$@" --state-dir {shlex.quote(str(directory))}\n')
    command.chmod(0o700)
    process = await asyncio.create_subprocess_exec(
        "sh",
        "-eu",
        "-c",
        script.replace(DEFAULT_URL, url),
        cwd=directory,
        env={**os.environ, "PATH": f"{directory}{os.pathsep}{os.environ['PATH']}"},
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    return said.decode()
