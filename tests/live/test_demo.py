"""The whole demo: a real broker, a training process and the controller, checked against the simulation's totals."""

import asyncio
import json
import signal
import subprocess
import sys
from datetime import UTC, datetime
from http.client import HTTPConnection
from io import StringIO
from pathlib import Path

import aiohttp
import pytest
from rich.console import Console
from sqlalchemy import select

from controller.demo.day.demo import DemoOptions, main_demo, run_demo
from controller.demo.day.page import serve
from controller.demo.day.page_process import PageTask
from controller.demo.runner import DemoError
from controller.errors import ConfigError
from controller.gpu.journal.storage import Journal
from controller.history.energy_history.history_file import read_history
from controller.history.energy_history.recorder import FILE
from controller.history.energy_history.schema import DECISIONS
from policies.vocabulary.units import DAY_S
from publishers.mqtt.client import MqttClient
from tests.controller.history.energy_history.records import gpu_message, limit_message
from tests.fakes import MIDNIGHT_S
from tests.live.conftest import Mosquitto

pytestmark = pytest.mark.live

DURATION_S = 90.0
"""A machine that stands still for a second sleeps through a quarter of an hour of the day, and measures nothing."""
_MAIN = "import sys; from controller.demo.day.demo import DemoOptions, main_demo; sys.exit(main_demo(DemoOptions({})))"


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delay the journal: the controller learns late that a restored limit was recorded."""
    forget = Journal.forget

    async def forget_late(journal: Journal, gpu_uuid: str) -> None:
        await asyncio.sleep(0.5)
        await forget(journal, gpu_uuid)

    monkeypatch.setattr(Journal, "forget", forget_late)


@pytest.mark.usefixtures("slow_disk")
def test_a_short_demo_saves_carbon_restores_the_limit_and_writes_its_result(
    tmp_path: Path, temporary: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "result.json"
    assert main_demo(DemoOptions(seed=1, duration_s=DURATION_S, zone="US-CAISO", json_path=path)) == 0
    result = json.loads(path.read_text())
    said = capfd.readouterr()

    assert result["carbon_saved_ratio"] > 0.05
    assert result["energy_saved_ratio"] > 0.05
    assert 1.0 < result["slowdown_ratio"] < 1.1
    assert 0 < result["profiling_energy_ratio"] < 0.5
    for totals in (result["run"], result["baseline"]):
        assert totals["iterations"] == 105_084
        assert {"energy_j", "carbon_g", "duration_s", "iterations"} <= set(totals)
    assert result["run"]["duration_s"] / result["baseline"]["duration_s"] == result["slowdown_ratio"]
    assert 1 - result["run"]["carbon_g"] / result["baseline"]["carbon_g"] == result["carbon_saved_ratio"]
    assert {"seed", "zone", "duration_s", "broker", "version"} <= set(result)

    published = result["published"]
    assert published["final"] is True
    assert published["iterations"] == result["run"]["iterations"]
    assert published["energy_j"] == pytest.approx(result["run"]["energy_j"], rel=0.02)
    assert published["carbon_g"] == pytest.approx(result["run"]["carbon_g"], rel=0.02)
    # The controller counts until it hears of the end, the simulation does not: seconds later on a busy machine.
    late_s = (published["duration_s"] - result["run"]["duration_s"]) * DURATION_S / DAY_S
    assert -0.5 < late_s < 5

    assert "measured" in said.out
    assert "prior limit restored" in said.out
    assert "Carbon" in said.out
    assert said.err == ""
    assert len(said.out.splitlines()) < 40
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "options"), [(signal.SIGINT, ""), (signal.SIGTERM, ", web_port=0"), (signal.SIGHUP, "")]
)
def test_stopped_on_request_it_exits_with_0_and_leaves_nothing_behind(
    temporary: Path, number: signal.Signals, options: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _MAIN.format(f"duration_s=60.0{options}")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        said: list[str] = []
        while "measur" not in "".join(said):  # it may be through with it
            said.append(demo.stdout.readline())
            assert said[-1]
        if options:
            url = said[0].removeprefix("the page: ").strip()
            connection = HTTPConnection(url.removeprefix("http://"), timeout=10.0)
            connection.request("GET", "/v1/state")
            now = datetime.fromtimestamp(json.load(connection.getresponse())["time_s"], UTC)
            assert now.year < 2025, "the demo's day"
            connection.close()
        children = Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text(encoding="ascii").split()
        demo.send_signal(number)
        stdout, stderr = demo.communicate(timeout=20)
    assert demo.returncode == 0, stderr
    assert stdout.rstrip().endswith("stopped on request")
    assert stderr == ""
    assert len(children) >= 1 + bool(options)
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert list(temporary.iterdir()) == []


async def test_the_page_shows_how_the_day_ended_until_its_stdin_closes(
    broker: Mosquitto, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = asyncio.StreamReader()
    task = PageTask(broker=broker.url, state_dir=str(tmp_path), port=0, starts_s=MIDNIGHT_S)
    limits = limit_message(MIDNIGHT_S + 70.0, detail="the last of the day"), limit_message(MIDNIGHT_S + 120.0)
    said = ""

    async def eventually_said(what: str) -> None:
        nonlocal said
        while what not in said:
            said += capfd.readouterr().out
            await asyncio.sleep(0.01)

    async with asyncio.timeout(30.0), MqttClient(url=broker.url) as bus, asyncio.TaskGroup() as tasks:
        tasks.create_task(serve(task, lines))
        await eventually_said("http://")
        async with aiohttp.ClientSession(said.strip()) as client:

            async def time_s() -> float:
                async with client.get("/v1/state") as answer:
                    return float((await answer.json())["time_s"])

            async def n_heard() -> str:
                async with client.get("/metrics") as answer:
                    return (await answer.text()).partition("\ngridchase_web_messages_total ")[2].split()[0]

            assert await time_s() == MIDNIGHT_S
            bus.publish(*gpu_message(MIDNIGHT_S + 60.0, 1.0), qos=1)
            bus.publish(*limits[0], qos=1)
            while await n_heard() != "2.0":  # noqa: ASYNC110 — by another task
                await asyncio.sleep(0.01)
            assert await time_s() == MIDNIGHT_S + 60.0, "of the newest reading"
            lines.feed_data(b"\n")
            await eventually_said("finished")
            bus.publish(*limits[1], qos=1)
            assert await bus.flush(10.0)
            assert await time_s() == MIDNIGHT_S + 70.0
        lines.feed_eof()
    recorded = read_history(
        tmp_path / FILE, lambda connection: connection.execute(select(DECISIONS)).all(), timeout_s=5.0
    )
    assert [decision.time_s for decision in recorded] == [MIDNIGHT_S + 70.0]


async def test_a_training_process_that_fails_fails_the_demo_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numpy.py").write_text("raise RuntimeError('no numpy today')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(DemoError, match="no numpy today"):
        await run_demo(DemoOptions(duration_s=5.0), console=Console(file=StringIO()))


def test_every_fault_of_the_options_is_told_and_nothing_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    options = DemoOptions(
        seed=-1, duration_s=1.0, zone="XX", json_path=Path("/nowhere/x.json"), max_slowdown=0.9, web_port=-1
    )
    with pytest.raises(ConfigError) as caught:
        main_demo(options)
    assert len(caught.value.faults) == 6
    for fault in ("--web -1", "--seed -1", "--duration-s 1", "--zone XX", "GB", "/nowhere", "--max-slowdown 0.9"):
        assert fault in str(caught.value)
    assert capsys.readouterr().out == ""
