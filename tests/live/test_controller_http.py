"""Health and metrics over HTTP, asked by a real client on loopback."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from controller.config import HttpConfig
from controller.http import HealthServer, Snapshot
from controller.ports import Hold, LimitState, Sample
from tests.live.conftest import TIMEOUT_S, eventually, free_port

pytestmark = pytest.mark.live

STATE = LimitState(
    hold=Hold.HELD,
    prior_power_limit_w=280.0,
    floor_power_limit_w=100.0,
    ceiling_power_limit_w=280.0,
    requested_power_limit_w=200.0,
    enforced_power_limit_w=190.0,
    since_ns=0,
)
SAMPLE = Sample(time_ns=1, power_w=185.5, energy_j=1_000.0)
WELL = Snapshot(
    connected=True,
    signal="fresh",
    signal_age_s=0.0,
    providers={"neso GB": True, "energy-charts DE": False},
    n_bad_messages=3,
    n_runs=2,
    gpus={"GPU-1": (STATE, 1_234.5, SAMPLE)},
)


class Server:
    """A health server whose snapshot can be changed."""

    def __init__(self, snapshot: Snapshot = WELL) -> None:
        self.snapshot = snapshot
        self.port = free_port()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[aiohttp.ClientSession]:
        """Serve, and return a client."""
        health = HealthServer(HttpConfig(port=self.port), snapshot=lambda: self.snapshot)
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(health.run())
            await eventually(lambda: _listens(self.port))
            async with aiohttp.ClientSession(f"http://127.0.0.1:{self.port}", timeout=timeout) as client:
                yield client
            task.cancel()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def _ask(snapshot: Snapshot) -> tuple[int, list[str], list[str]]:
    """Return the status, the troubles and the notes of /readyz."""
    async with Server(snapshot).serving() as client, client.get("/readyz") as response:
        answer = await response.json()
        assert answer["ready"] == (response.status == 200)
        return response.status, answer["troubles"], answer["notes"]


async def _ask_ready(snapshot: Snapshot) -> tuple[int, list[str]]:
    return (await _ask(snapshot))[:2]


async def test_it_says_that_it_lives() -> None:
    async with Server().serving() as client, client.get("/healthz") as response:
        assert (response.status, await response.json()) == (200, {"status": "ok"})


async def test_it_is_ready_when_the_broker_and_every_gpu_answer() -> None:
    assert await _ask_ready(WELL) == (200, [])


async def test_a_suspect_gpu_makes_it_not_ready_and_is_named() -> None:
    state = replace(STATE, hold=Hold.SUSPECT)
    assert await _ask_ready(replace(WELL, gpus={"GPU-1": (state, 0.0, None)})) == (503, ["GPU-1 does not answer"])


async def test_every_trouble_is_told() -> None:
    snapshot = replace(WELL, connected=False, left_out=("open on GPU 1: lost",), gpus={"GPU-1": (None, 0.0, None)})
    assert await _ask_ready(snapshot) == (
        503,
        [
            "the broker has not answered yet",
            "a GPU was left out at the start: open on GPU 1: lost",
            "GPU-1 has not answered yet",
        ],
    )


@pytest.mark.parametrize("connected", [False, True])
async def test_what_the_bus_says_is_wrong_with_it_is_told(connected: bool) -> None:
    snapshot = replace(WELL, connected=connected, bus_error="the broker does not accept user 'ada'")
    assert await _ask_ready(snapshot) == (503, ["the broker does not accept user 'ada'"])


async def test_a_node_without_a_gpu_is_not_ready() -> None:
    assert await _ask_ready(replace(WELL, gpus={})) == (503, ["there is no GPU on this node: nothing is measured"])


@pytest.mark.parametrize(
    ("hold", "note"),
    [(Hold.FREE, ""), (Hold.HELD, ""), (Hold.YIELDED, "another writer"), (Hold.OBSERVING, "is not written")],
)
async def test_a_gpu_that_answers_is_no_trouble_and_a_limit_that_is_left_alone_is_noted(hold: Hold, note: str) -> None:
    state = replace(STATE, hold=hold)
    status, troubles, notes = await _ask(replace(WELL, gpus={"GPU-1": (state, 0.0, None)}))
    assert (status, troubles, len(notes)) == (200, [], int(bool(note)))
    assert all(line.startswith("GPU-1 ") and note in line for line in notes)


async def _scrape(client: aiohttp.ClientSession) -> dict[tuple[str, str], float]:
    """Return the metrics by name and labels."""
    async with client.get("/metrics") as response:
        assert response.status == 200
        families = text_string_to_metric_families(await response.text())
        return {
            (sample.name, ",".join(sample.labels.values())): sample.value
            for family in families
            for sample in family.samples
        }


async def test_the_metrics_are_what_the_snapshot_says_in_base_units() -> None:
    server = Server()
    async with server.serving() as client:
        assert await _scrape(client) == {
            ("gridchase_bus_connected", ""): 1.0,
            ("gridchase_runs", ""): 2.0,
            ("gridchase_bad_messages_total", ""): 3.0,
            ("gridchase_signal_fresh", "fresh"): 1.0,
            ("gridchase_signal_age_seconds", ""): 0.0,
            ("gridchase_signal_provider_up", "neso GB"): 1.0,
            ("gridchase_signal_provider_up", "energy-charts DE"): 0.0,
            ("gridchase_gpu_energy_joules_total", "GPU-1"): 1_234.5,
            ("gridchase_gpu_power_watts", "GPU-1"): 185.5,
            ("gridchase_gpu_power_limit_watts", "GPU-1"): 190.0,
            ("gridchase_gpu_prior_power_limit_watts", "GPU-1"): 280.0,
            ("gridchase_gpu_hold", "GPU-1,held"): 1.0,
        }
        server.snapshot = replace(
            WELL, signal="absent", signal_age_s=None, signal_detail="nobody answers", gpus={"GPU-1": (None, 0.0, None)}
        )
        assert server.snapshot.notes() == ["signal: nobody answers"]
        metrics = await _scrape(client)
        assert ("gridchase_signal_age_seconds", "") not in metrics
        assert metrics["gridchase_signal_fresh", "absent"] == 0.0
        assert ("gridchase_gpu_power_limit_watts", "GPU-1") not in metrics


async def test_an_address_that_is_taken_is_logged_and_accepted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        health = HealthServer(HttpConfig(port=taken.getsockname()[1]), snapshot=lambda: WELL)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(health.run())
            await eventually(lambda: caplog.records)
            assert not task.done()
            task.cancel()
    assert "health and metrics: not served" in caplog.text


async def test_port_minus_one_serves_nothing() -> None:
    health = HealthServer(HttpConfig(port=-1), snapshot=lambda: WELL)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await health.run()
