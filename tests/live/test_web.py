"""The history of a site on a real broker and real databases: restarts, retained messages, and the verb that asks it."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest
from paho.mqtt.publish import multiple

from controller.cli.main import main
from controller.web.app import run_web
from controller.web.config import WebConfig, WebSettings
from controller.web.store import PostgresStore
from publishers.mqtt.bus_config import BusConfig
from tests.controller.history.energy_history.records import TOPICS, measured, run_message, run_record
from tests.fakes import MIDNIGHT_S
from tests.live.conftest import Mosquitto
from tests.live.policy.postgres import Postgres, postgres_server

__all__ = ["postgres_server"]
pytestmark = pytest.mark.live
RECORD = run_record(time_s=MIDNIGHT_S, duration_s=3600.0, energy_j=1e6, carbon_g=80.0, final=True, state="finished")


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> str:
    """Return the URL of a new database; "" is the file in the state directory."""
    if request.param == "sqlite":
        return ""
    server: Postgres = request.getfixturevalue("postgres_server")
    return server.new_database()


@asynccontextmanager
async def running(broker: Mosquitto, database: str, state_dir: Path, *, token_file: str = "") -> AsyncIterator[str]:
    """Run the process of a site within this one, until it has heard the retained messages; yield its URL."""
    stop, urls = asyncio.Event(), asyncio.Queue[str]()
    settings = WebSettings(
        port=0, database=database, state_dir=str(state_dir), token_file=token_file, sign_in_to_read=bool(token_file)
    )
    config = WebConfig(bus=BusConfig(url=broker.url), web=settings)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run_web(config, version="test", stop=stop, started=urls.put_nowait))
        url = await urls.get()
        async with asyncio.timeout(10.0), aiohttp.ClientSession() as client:
            while "gridchase_web_messages_total 3.0" not in await text(client, f"{url}/metrics"):  # noqa: ASYNC110 — of a server
                await asyncio.sleep(0.02)
        yield url
        stop.set()


async def text(client: aiohttp.ClientSession, url: str) -> str:
    """Return what is answered."""
    async with client.get(url) as response:
        return await response.text()


async def test_what_a_broker_has_retained_counts_once_over_restarts(
    broker: Mosquitto,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = [run_message(measured(msgspec.structs.replace(RECORD, run=f"r{n}"), saved_ratio=0.1)) for n in range(3)]
    multiple([(topic, payload, 1, True) for topic, payload in runs], hostname="127.0.0.1", port=broker.port)
    for _ in range(2):
        async with running(broker, database, tmp_path):
            pass  # what was heard is written at the end
    async with running(broker, database, tmp_path) as url:
        asked = ["report", "--by", "run", "--json"]
        assert await asyncio.to_thread(main, [*asked, "--url", url]) == 0
        report = json.loads(capsys.readouterr().out)
        assert (report["total"]["energy_j"], report["total"]["runs"]) == (3e6, 3)
        assert report["total"]["saved_energy_ratio"] == pytest.approx(0.1, abs=1e-5)
        monkeypatch.setattr("controller.cli.history.report.LOCAL_WEB", url)
        monkeypatch.setattr("controller.config.default_state_dir", lambda: tmp_path / "none")
        assert await asyncio.to_thread(main, asked) == 0, "there is no history of a node, so the page is asked"
        assert json.loads(capsys.readouterr().out)["rows"] == report["rows"]
        assert await asyncio.to_thread(main, ["report", "--url", url, "--month", "May"]) == 2
        assert "--month May: must be a month" in capsys.readouterr().err
        if not database:
            assert await asyncio.to_thread(main, [*asked, "--database", str(tmp_path / "history.sqlite")]) == 0
            assert json.loads(capsys.readouterr().out)["rows"] == report["rows"]
    assert await asyncio.to_thread(main, ["report", "--url", url]) == 1
    assert "no `gridchase web` answers" in capsys.readouterr().err
    assert await asyncio.to_thread(main, ["report", "--url", "ftp://x"]) == 2


async def test_a_report_of_a_page_that_wants_a_sign_in_sends_a_token(
    broker: Mosquitto, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [msgspec.structs.replace(RECORD, run=f"r{n}") for n in range(3)]
    multiple([(*run_message(record), 1, True) for record in records], hostname="127.0.0.1", port=broker.port)
    tokens, own, wrong = tmp_path / "tokens", tmp_path / "own", tmp_path / "wrong"
    for file, content in ((tokens, f"alice:{'a' * 32}\n"), (own, f"{'a' * 32}\n"), (wrong, "two\nlines")):
        file.write_text(content)
        file.chmod(0o600)
    async with running(broker, "", tmp_path, token_file=str(tokens)) as url:
        asked = ["report", "--json", "--url", url]
        assert await asyncio.to_thread(main, asked) == 1
        assert "(401); pass --token-file" in capsys.readouterr().err
        assert await asyncio.to_thread(main, [*asked, "--token-file", str(own)]) == 0
        assert json.loads(capsys.readouterr().out)["by"] == "job"
        assert await asyncio.to_thread(main, [*asked, "--token-file", str(wrong)]) == 2
        assert "must hold one token" in capsys.readouterr().err


async def test_the_event_loop_does_not_compute_what_a_server_is_sent(postgres_server: Postgres) -> None:
    store = PostgresStore(postgres_server.new_database(), password="", topics=TOPICS, config=WebConfig().retention)
    written: list[tuple[int, threading.Thread]] = []
    for _ in range(2):
        await store.write(
            [run_message(RECORD)],
            now_s=MIDNIGHT_S,
            on_written=lambda n_written: written.append((n_written, threading.current_thread())),
        )
    await store.close()
    assert [n_written for n_written, _ in written] == [1, 1]
    assert threading.current_thread() not in {thread for _, thread in written}
