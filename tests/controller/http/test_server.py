"""Health, metrics, pauses and pins over HTTP, asked by a real client."""

import asyncio
import logging
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from controller.config import HttpConfig
from controller.errors import OrderRefusedError, PauseRefusedError
from controller.http.health import GpuSnapshot, Snapshot
from controller.http.server import NodeServer
from controller.ports import Hold, LimitState, Sample
from controller.ports.orders import GoalPreview, GoalState, PauseState, PinOwner, PinPreview, PinState
from publishers.messages.topics import RunKey
from publishers.shared.http import own_token
from tests.live.conftest import TIMEOUT_S, eventually

STATE = LimitState(
    hold=Hold.HELD,
    prior_power_limit_w=280.0,
    floor_power_limit_w=100.0,
    ceiling_power_limit_w=280.0,
    requested_power_limit_w=200.0,
    enforced_power_limit_w=190.0,
    since_ns=0,
)
SAMPLE = Sample(time_ns=1, power_w=185.5, energy_j=1_234.5)
WELL = Snapshot(
    connected=True,
    signal="fresh",
    signal_age_s=0.0,
    providers={"neso GB": True, "energy-charts DE": False},
    n_bad_messages=3,
    n_runs=2,
    gpus={"GPU-1": GpuSnapshot(limit=STATE, sample=SAMPLE)},
)


RUNNING = PauseState(
    state="running",
    pausable=True,
    max_pause_s=300.0,
    paused_for_s=None,
    ends_in_s=None,
    paused_s=12.5,
    why="",
    by="",
    ended_because="",
)
KEY = RunKey("ada", "bert", "r1")
GPU = "GPU-1"
RUN = "/v1/jobs/ada/bert/runs/r1"
PORT = 9_400


class FakePauses:
    """The pauses of one run, which begin at once."""

    def __init__(self) -> None:
        self.state = RUNNING
        self.error: PauseRefusedError | None = None
        self.asked: list[tuple[str, float | None, str]] = []

    def runs(self) -> dict[RunKey, PauseState]:
        return {KEY: self.state}

    def pause(self, key: RunKey, *, why: str, by: str, for_s: float | None) -> PauseState:
        self.state_of(key)
        self.asked.append((why, for_s, by))
        self.state = replace(RUNNING, state="paused", why=why, by=by)
        return self.state

    def resume(self, key: RunKey, *, why: str, by: str) -> PauseState:
        self.state_of(key)
        self.state = replace(RUNNING, ended_because=f"{by}: {why}")
        return self.state

    def state_of(self, key: RunKey) -> PauseState:
        if self.error is not None:
            raise self.error
        if key != KEY:
            raise PauseRefusedError("unknown_run", f"{key}: no such run trains on this node now")
        return self.state


PINNED = PinState(
    state="asked", power_limit_w=205.0, n_gpus=2, set_at_s=1.0, until_s=1_700_000_000.0, why="tea", by="ada"
)


class FakePins:
    """The pin of one run."""

    def __init__(self) -> None:
        self.state = PinState(state="none")
        self.error: OrderRefusedError | None = None
        self.asked: list[tuple[float | None, float, str, str]] = []
        self.owners: list[str] = []
        """Who has asked as the user whose run it is."""

    def gpu_pins(self) -> dict[str, PinState]:
        return {GPU: replace(PINNED, gpu_uuid=GPU)}

    def pin(
        self,
        owner: PinOwner,
        *,
        power_limit_w: float | None,
        until_s: float,
        why: str,
        by: str,
        by_owner: bool = False,
    ) -> PinState:
        self.state_of(owner)
        self.asked.append((power_limit_w, until_s, why, by))
        self.owners += [by] if by_owner else []
        self.state = replace(PINNED, power_limit_w=power_limit_w, until_s=until_s, why=why, by=by)
        return self.state

    def preview(
        self, owner: PinOwner, *, power_limit_w: float | None, until_s: float, by_owner: bool = False
    ) -> PinPreview:
        self.state_of(owner)
        del until_s, by_owner
        return PinPreview(power_limit_w=power_limit_w, n_gpus=2, speed_ratio=0.95, power_w=363.0, sentence="at 205 W …")

    def release(self, owner: PinOwner, *, why: str, by: str, by_owner: bool = False) -> PinState:
        self.state_of(owner)
        self.owners += [by] if by_owner else []
        self.state = PinState(state="none", ended_because=f"{by}: {why}")
        return self.state

    def state_of(self, owner: PinOwner) -> PinState:
        if self.error is not None:
            raise self.error
        if owner not in {KEY, GPU}:
            raise OrderRefusedError("unknown_run", f"{owner}: no such run trains on this node now")
        return self.state


AIMED = GoalState(state="asked", max_slowdown_ratio=1.08, set_at_s=1.0, why="tea", by="ada")


class FakeGoals:
    """The goal of one run."""

    def __init__(self) -> None:
        self.state = GoalState(state="none")
        self.asked: list[dict[str, object]] = []

    def aim(self, key: RunKey, *, why: str, by: str, **terms: float | None) -> GoalState:
        self.state_of(key)
        self.asked.append({"why": why, "by": by} | {name: value for name, value in terms.items() if value is not None})
        self.state = replace(AIMED, why=why, by=by)
        return self.state

    def preview(self, key: RunKey, **terms: float | None) -> GoalPreview:
        self.state_of(key)
        assert terms.keys() == {"max_slowdown_ratio", "deadline_s", "until_s"}
        return GoalPreview(power_limit_w=240.0, planned_power_limit_w=205.0, speed_ratio=0.93, sentence="with a …")

    def reset(self, key: RunKey, *, why: str, by: str) -> GoalState:
        self.state_of(key)
        self.state = GoalState(state="none", ended_because=f"{by}: {why}")
        return self.state

    def state_of(self, key: RunKey) -> GoalState:
        if key != KEY:
            raise OrderRefusedError("unknown_run", f"{key}: no such run trains on this node now")
        return self.state


class Server:
    """A health server whose snapshot can be changed."""

    own_token = Path(own_token.FILE)

    def __init__(self, snapshot: Snapshot = WELL) -> None:
        self.snapshot = snapshot
        self.pauses = FakePauses()
        self.pins = FakePins()
        self.goals = FakeGoals()
        self.token_file = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[aiohttp.ClientSession]:
        """Serve, and return a client."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        with tempfile.TemporaryDirectory() as state_dir:
            self.own_token = Path(state_dir) / own_token.FILE
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(self.server(HttpConfig(port=PORT, token_file=self.token_file)).run())
                await asyncio.sleep(1.0)
                async with aiohttp.ClientSession(f"http://127.0.0.1:{PORT}", timeout=timeout) as client:
                    yield client
                task.cancel()

    def server(self, config: HttpConfig) -> NodeServer:
        """Return the server, not running yet."""
        return NodeServer(
            config,
            node="node-1",
            snapshot=lambda: self.snapshot,
            pauses=self.pauses,
            pins=self.pins,
            goals=self.goals,
            own_token=self.own_token,
        )


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


async def test_what_cannot_be_read_is_told_at_once_and_is_in_no_metric() -> None:
    lost = replace(WELL, gpus={"GPU-1": GpuSnapshot(limit=STATE, fault="GPU-1: cannot be read: lost")})
    assert await _ask_ready(lost) == (503, ["GPU-1: cannot be read: lost"])
    suspect = replace(WELL, gpus={"GPU-1": GpuSnapshot(limit=replace(STATE, hold=Hold.SUSPECT))})
    for snapshot in (lost, suspect):
        async with Server(snapshot).serving() as client:
            metrics = await _scrape(client)
        assert ("gridchase_gpu_energy_joules_total", "GPU-1") not in metrics
        assert ("gridchase_gpu_power_watts", "GPU-1") not in metrics
        assert (("gridchase_gpu_power_limit_watts", "GPU-1") in metrics) is (snapshot is lost)
        assert metrics["gridchase_gpu_prior_power_limit_watts", "GPU-1"] == 280.0, "it is not read, but known"


async def test_a_gpu_of_which_nothing_is_believed_is_not_ready() -> None:
    silent = replace(WELL, gpus={"GPU-1": GpuSnapshot(limit=STATE)})
    assert await _ask_ready(silent) == (503, ["GPU-1: it has not been read yet"])
    doubted = replace(WELL, gpus={"GPU-1": GpuSnapshot(limit=STATE, doubts=("its power reads 3.7e+06 W",))})
    assert await _ask_ready(doubted) == (503, ["GPU-1: its power reads 3.7e+06 W"])


async def test_a_gpu_without_meters_is_noted_and_keeps_nobody_from_being_ready() -> None:
    absent = replace(WELL, gpus={"GPU-1": GpuSnapshot(limit=STATE, absence="GPU-1: its energy is not known")})
    assert await _ask(absent) == (200, [], ["GPU-1: its energy is not known"])


async def test_what_is_not_believed_is_noted() -> None:
    doubted = replace(
        WELL, gpus={"GPU-1": GpuSnapshot(limit=STATE, sample=SAMPLE, doubts=("its counter stands still",))}
    )
    assert await _ask(doubted) == (200, [], ["GPU-1: meter rejected: its counter stands still"])


async def test_it_is_ready_when_the_broker_and_every_gpu_answer() -> None:
    assert await _ask_ready(WELL) == (200, [])


async def test_a_suspect_gpu_makes_it_not_ready_and_is_named() -> None:
    state = replace(STATE, hold=Hold.SUSPECT)
    assert await _ask_ready(replace(WELL, gpus={"GPU-1": GpuSnapshot(limit=state)})) == (503, ["GPU-1 does not answer"])


async def test_every_trouble_is_told() -> None:
    snapshot = replace(WELL, connected=False, left_out=("open on GPU 1: lost",), gpus={"GPU-1": GpuSnapshot()})
    assert await _ask_ready(snapshot) == (
        503,
        [
            "the broker has not answered yet",
            "open on GPU 1: lost",
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
    status, troubles, notes = await _ask(replace(WELL, gpus={"GPU-1": GpuSnapshot(limit=state, sample=SAMPLE)}))
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
            ("gridchase_gpu_unmeasured_seconds_total", "GPU-1"): 0.0,
            ("gridchase_gpu_power_watts", "GPU-1"): 185.5,
            ("gridchase_gpu_power_limit_watts", "GPU-1"): 190.0,
            ("gridchase_gpu_prior_power_limit_watts", "GPU-1"): 280.0,
            ("gridchase_gpu_hold", "GPU-1,held"): 1.0,
        }
        server.snapshot = replace(
            WELL, signal="absent", signal_age_s=None, signal_detail="nobody answers", gpus={"GPU-1": GpuSnapshot()}
        )
        assert server.snapshot.notes() == ["signal: nobody answers"]
        server.snapshot = replace(server.snapshot, history_fault="the history is not written: the disk is full")
        assert server.snapshot.notes()[1:] == ["the history is not written: the disk is full"]
        metrics = await _scrape(client)
        assert ("gridchase_signal_age_seconds", "") not in metrics
        assert metrics["gridchase_signal_fresh", "absent"] == 0.0
        assert not [name for name, _ in metrics if name.startswith("gridchase_gpu")]


@pytest.mark.live
async def test_an_address_that_is_taken_is_logged_and_accepted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        health = Server().server(HttpConfig(port=taken.getsockname()[1]))
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(health.run())
            await eventually(lambda: caplog.records)
            assert not task.done()
            task.cancel()
    assert "health, metrics and orders: not served" in caplog.text


async def test_port_minus_one_serves_nothing() -> None:
    health = Server().server(HttpConfig(port=-1))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await health.run()


async def post(
    client: aiohttp.ClientSession, path: str, body: object, *, token: str | None, **headers: str
) -> tuple[int, dict[str, Any]]:
    """Return the status and the answer of a write."""
    sent = headers | ({"Authorization": f"Bearer {token}"} if token else {})
    async with client.post(path, json=body, headers=sent) as response:
        return response.status, await response.json()


async def test_whoever_has_the_controllers_own_token_pauses_and_resumes_a_run() -> None:
    server = Server()
    async with server.serving() as client:
        token = own_token.read_token(server.own_token)
        status, answer = await post(client, f"{RUN}/pause", {"why": "tea", "for_s": 60}, token=token)
        assert (status, answer["state"], answer["why"]) == (202, "paused", "tea")
        assert server.pauses.asked == [("tea", 60.0, "the operator of this node")]
        async with client.get(f"{RUN}/pause", headers={"Authorization": f"Bearer {token}"}) as response:
            assert (response.status, (await response.json())["state"]) == (200, "paused")
        status, answer = await post(client, f"{RUN}/resume", {"why": "done"}, token=token)
        assert (status, answer["state"]) == (200, "running")
        assert (await post(client, f"{RUN}/pause", {}, token=token))[0] == 202
    assert server.pauses.asked[-1] == ("", None, "the operator of this node")


@pytest.mark.parametrize("token", [None, "wrong"])
async def test_nobody_else_pauses_a_run_and_a_wrong_token_reads_nothing(token: str | None) -> None:
    server = Server()
    async with server.serving() as client:
        for leaf in ("pause", "resume"):
            status, answer = await post(client, f"{RUN}/{leaf}", {}, token=token)
            assert (status, answer["reason"]) == (401, "wrong_token" if token else "no_token")
            assert str(server.own_token) in answer["detail"]
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with client.get(f"{RUN}/pause", headers=headers) as response:
            assert response.status == (401 if token else 200)
    assert server.pauses.asked == []


@pytest.mark.parametrize("path", ["/v1/runs", f"{RUN}/pause"])
async def test_reading_needs_a_token_from_another_machine_alone(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    async with server.serving() as client:
        async with client.get(path) as response:
            assert response.status == 200
        monkeypatch.setattr("controller.http.orders.is_loopback", lambda _: False)
        async with client.get(path) as response:
            assert response.status == 401
            assert (await response.json())["detail"].startswith("reading from another machine needs a token: send it")


async def test_a_token_of_a_user_is_for_that_users_runs(tmp_path: Path) -> None:
    server, tokens = Server(), tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text("ada:of-ada\nbob:of-bob\nof-the-operator\n")
    server.token_file = str(tokens)
    async with server.serving() as client:
        answers = [await post(client, f"{RUN}/pause", {}, token=f"of-{who}") for who in ("ada", "bob", "the-operator")]
    assert [status for status, _ in answers] == [202, 403, 202]
    assert [by for _, _, by in server.pauses.asked] == ["ada", "an operator"]


async def test_a_page_of_another_site_cannot_pause_a_run() -> None:
    server = Server()
    async with server.serving() as client:
        token = own_token.read_token(server.own_token)
        status, _ = await post(client, f"{RUN}/pause", {}, token=token, Origin="http://evil.example")
    assert (status, server.pauses.asked) == (403, [])


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/jobs/ada/bert/runs/r2/pause", {}, 404),
        ("/v1/jobs/ada/bert/runs/a%20b/pause", {}, 400),
        (f"{RUN}/pause", {"for_s": 0}, 400),
        (f"{RUN}/pause", {"for_s": "long"}, 400),
        (f"{RUN}/pause", {"for": 3}, 400),
        (f"{RUN}/pause", {"why": "x" * 5_000}, 413),
        (f"{RUN}/resume", ["no", "object"], 400),
    ],
)
async def test_a_request_that_is_wrong_is_refused(path: str, body: object, status: int) -> None:
    server = Server()
    async with server.serving() as client:
        assert (await post(client, path, body, token=own_token.read_token(server.own_token)))[0] == status
    assert server.pauses.asked == []


@pytest.mark.parametrize(("reason", "status"), [("not_pausable", 409), ("too_long", 422), ("claim_unproven", 409)])
async def test_why_a_run_cannot_be_paused_is_the_answer(reason: str, status: int) -> None:
    server = Server()
    server.pauses.error = PauseRefusedError(reason, "because")
    async with server.serving() as client:
        answer = await post(client, f"{RUN}/pause", {}, token=own_token.read_token(server.own_token))
    assert (answer[0], answer[1]["reason"], answer[1]["detail"]) == (status, reason, "because")


async def test_a_flood_is_named_and_leaves_the_node_ready() -> None:
    server = Server()
    server.snapshot = replace(
        WELL, surplus_messages={"user mallory": 70_000, "user eve": 3}, flooding=("user mallory",)
    )
    async with server.serving() as client:
        async with client.get("/readyz") as response:
            answer = await response.json()
        assert (response.status, answer["notes"]) == (
            200,
            ["user mallory sends more messages than are read: 70000 dropped so far"],
        )
        metrics = await _scrape(client)
    assert metrics["gridchase_surplus_messages_total", "user mallory"] == 70_000
    assert metrics["gridchase_surplus_messages_total", "user eve"] == 3
