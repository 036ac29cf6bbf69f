"""The process of a site: what it takes from the bus, what it answers over HTTP, and what cannot hurt it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from sqlalchemy import func, select
from yarl import URL

from controller.cli.main import main
from controller.history.energy_history.history_file import read_history
from controller.history.energy_history.recorder import CLOSE_TIMEOUT_S, FILE, PERIOD_S
from controller.history.energy_history.report import Entry
from controller.history.energy_history.schema import DECISIONS, GRID_QUARTERS
from controller.web.app import OPEN_TIMEOUT_S, REFRESH_S, Site
from controller.web.charts.ticks import number_text
from controller.web.config import WebConfig, WebSettings
from controller.web.live.intake import MAX_RECORD_BYTES, MAX_ZONES, REFUSED_S
from controller.web.pages.savings import savings_of
from controller.web.routes import N_WAITING
from controller.web.serving import ZONE_COOKIE
from controller.web.store import SqliteStore
from policies.database.errors import DatabaseUnavailableError
from policies.vocabulary.units import DAY_S
from publishers.messages.codec import decode, encode
from publishers.messages.reports import (
    GridSignal,
    JobPosterior,
    LimitChange,
    NodeStatus,
    RunSchedule,
    ScheduleEntry,
    SignalValue,
)
from publishers.messages.topics import JobName, RunKey
from tests.controller.history.energy_history.records import (
    TOPICS,
    gpu_message,
    limit_message,
    machine_zone,
    measured,
    run_message,
    run_record,
)
from tests.controller.web.pages.site import Found
from tests.controller.web.pages.site import Site as PagesSite
from tests.fakes import MIDNIGHT_S, FakeBus, LoopClock

FINAL = msgspec.structs.replace(
    measured(run_record(duration_s=3600.0, energy_j=1e6, carbon_g=80.0), saved_ratio=0.1), final=True, state="finished"
)
SIGNAL = GridSignal(
    time_s=MIDNIGHT_S,
    source="s",
    zone="GB",
    kind="average",
    unit="g/kWh",
    issued_at_s=MIDNIGHT_S,
    state="fresh",
    age_s=0.0,
    value=120.0,
    values=[SignalValue(starts_s=MIDNIGHT_S + 300.0 * number, value=120.0) for number in range(1_000)],
)


class Served:
    """A site that runs, and a client of it."""

    def __init__(self, bus: FakeBus, url: str, client: aiohttp.ClientSession, state_dir: Path) -> None:
        self.bus = bus
        self.url = url
        self.client = client
        self.state_dir = state_dir

    async def get(self, path: str) -> tuple[int, Any]:
        """Return status and JSON of an answer."""
        async with self.client.get(self.url + path) as response:
            return response.status, await response.json(content_type=None)

    async def page(self, path: str) -> Found:
        """Return what is on a page."""
        async with self.client.get(self.url + path) as response:
            assert response.status == 200
            assert "default-src 'none'" in response.headers["Content-Security-Policy"]
            return Found(await response.text())

    async def total_j(self, query: str = "") -> float:
        """Return what a report says was used, once all that waits is written [J]."""
        await asyncio.sleep(PERIOD_S + 1)
        status, report = await self.get(f"/v1/report{query}")
        assert status == 200
        return float(report["total"].get("energy_j", 0.0))

    async def dropped(self, why: str) -> float:
        """Return how many messages were dropped for a reason."""
        async with self.client.get(f"{self.url}/metrics") as response:
            lines = (await response.text()).splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if f'why="{why}"' in line)


@asynccontextmanager
async def site(
    state_dir: Path, bus: FakeBus | None = None, *, make_store: type[SqliteStore] = SqliteStore
) -> AsyncIterator[Served]:
    """Run the process of a site on a bus in memory."""
    bus, stop, urls = bus or FakeBus(), asyncio.Event(), asyncio.Queue[str]()
    config = WebConfig(web=WebSettings(state_dir=str(state_dir), port=9323))
    store = make_store(state_dir, topics=TOPICS, config=config.retention)
    parts = Site(config, bus=bus, store=store, topics=TOPICS, clock=LoopClock())
    async with asyncio.TaskGroup() as tasks, aiohttp.ClientSession() as client:
        tasks.create_task(parts.run(stop, urls.put_nowait))
        yield Served(bus, await urls.get(), client, state_dir)
        stop.set()


class HangingStore:
    """A history on a server that never answers."""

    name, n_impossible = "history", 0

    async def write(self, *_: object, **__: object) -> None:
        await asyncio.Event().wait()

    async def read(self, *_: object, timeout_s: float) -> Any:  # noqa: ANN401 — it never returns
        await asyncio.sleep(timeout_s)
        raise TimeoutError

    async def close(self) -> None:
        await asyncio.Event().wait()


async def test_a_database_that_hangs_delays_neither_the_pages_of_now_nor_the_end() -> None:
    stop, urls, clock = asyncio.Event(), asyncio.Queue[str](), LoopClock()
    parts = Site(WebConfig(), bus=FakeBus(), store=HangingStore(), topics=TOPICS, clock=clock)
    begun_s = clock.now_s()
    async with asyncio.TaskGroup() as tasks, aiohttp.ClientSession() as client:
        tasks.create_task(parts.run(stop, urls.put_nowait))
        async with client.get(await urls.get()) as response:
            assert response.status == 200
        assert clock.now_s() - begun_s <= OPEN_TIMEOUT_S + 0.1
        begun_s = clock.now_s()
        stop.set()
    assert clock.now_s() - begun_s <= CLOSE_TIMEOUT_S + 0.1


class UnreadableStore(SqliteStore):
    """A history that is written, and cannot be read."""

    async def read(self, *_: object, timeout_s: float) -> Any:  # noqa: ANN401 — it never returns
        del timeout_s
        raise DatabaseUnavailableError("disk I/O error")


async def test_health_tells_that_the_history_cannot_be_read(tmp_path: Path) -> None:
    async with site(tmp_path, make_store=UnreadableStore) as served:
        await asyncio.sleep(REFRESH_S + 1)
        status, health = await served.get("/healthz")
    assert (status, health["troubles"]) == (503, ["the history cannot be read: disk I/O error"])


async def test_what_is_published_is_reported_over_http(tmp_path: Path) -> None:
    async with site(tmp_path) as served:
        for after_s, energy_j in ((0.0, 5e5), (10.0, 5.02e5)):
            for node in ("a", "b"):
                topic = TOPICS.gpu(node, "GPU-0", "energy")
                served.bus.publish(topic, gpu_message(MIDNIGHT_S + after_s, energy_j)[1], retain=True)
            await asyncio.sleep(PERIOD_S + 1)
        served.bus.publish(*run_message(FINAL), qos=1, retain=True)
        served.bus.publish(*run_message(FINAL, node="a"), qos=1)
        served.bus.publish(*limit_message(MIDNIGHT_S), qos=1, retain=True)
        served.bus.publish(TOPICS.grid("GB", "carbon"), encode(SIGNAL), qos=1, retain=True)
        assert await served.total_j() == 1e6
        status, report = await served.get("/v1/report?by=node")
        assert [(row["name"], row["energy_j"]) for row in report["rows"]] == [("a", 2e3), ("b", 2e3)]
        status, report = await served.get("/v1/report?by=run&user=alice&job=resnet50")
        assert (status, report["records"][0]["saved_ratio"]) == (200, 0.1)
        assert await served.get("/healthz") == (200, {"status": "ok", "troubles": []})
    counts = [select(func.count()).select_from(table).scalar_subquery() for table in (DECISIONS, GRID_QUARTERS)]
    assert read_history(tmp_path / FILE, lambda it: tuple(it.execute(select(*counts)).one())) == (1, 1)


async def test_a_report_is_a_csv_file_with_the_lines_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with site(tmp_path) as served:
        served.bus.publish(*run_message(FINAL, user="=1+1"))
        await served.total_j()
        files = {}
        for query in ("month=2023-11&by=user", "since=2023-11-14%2200:00&by=job"):
            async with served.client.get(f"{served.url}/v1/report?{query}&format=csv") as response:
                assert (response.status, response.content_type, response.charset) == (200, "text/csv", "utf-8")
                files[response.headers["Content-Disposition"]] = await response.text()
    assert list(files) == [
        'attachment; filename="gridchase-2023-11-by-user.csv"',
        'attachment; filename="gridchase-since-2023-11-14-by-job.csv"',
    ]
    first, second = files.values()
    assert first.splitlines()[1].startswith("'=1+1,1,")
    assert main(["report", "--database", str(tmp_path / FILE), "--csv"]) == 0
    assert capsys.readouterr().out == second


async def test_what_was_saved_today_is_on_the_page_as_in_the_report(tmp_path: Path) -> None:
    async with site(tmp_path) as served:
        served.bus.publish(*run_message(FINAL), qos=1, retain=True)
        await asyncio.sleep(PERIOD_S + REFRESH_S + 1)
        _, report = await served.get("/v1/report?since=1d")
        text = (await served.page("/")).text
        (saving, *_) = savings_of(msgspec.convert(report["total"], Entry))
        assert saving.saved is not None
        assert f"{saving.text_of(saving.saved).replace('CO2e', 'CO₂e')} 10.0 % of" in text
        assert f"between {saving.interval.replace(' to ', ' and ')}".replace("\u00a0", " ") in text


async def test_the_pages_show_what_the_bus_says_until_it_is_cleared(tmp_path: Path) -> None:
    topic = TOPICS.gpu("node-a", "GPU-0", "energy")
    status = NodeStatus(state="online", version="1", time_s=MIDNIGHT_S)
    async with site(tmp_path) as served:
        served.bus.publish(TOPICS.node_status("node-a"), encode(status), qos=1, retain=True)
        served.bus.publish(topic, gpu_message(MIDNIGHT_S, 5e5, power_w=150.0, gpu_index=2)[1], retain=True)
        assert "node-a 2 150 W" in (await served.page("/")).text
        assert "150 W" in (await served.page("/gpus")).text
        served.bus.publish(topic, b"", retain=True)
        assert "150 W" not in (await served.page("/gpus")).text
        served.bus.publish("gridchase/v1/node/x", b"")
        assert await served.dropped("invalid") == 0


async def test_a_database_that_is_away_costs_the_page_what_was_saved_alone(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no directory")
    async with site(tmp_path / "state") as served:
        await asyncio.sleep(1)
        served.bus.publish(TOPICS.grid("GB", "carbon"), encode(SIGNAL))
        text = (await served.page("/")).text
        assert "Saved today since midnight, against the same work at the prior limits History Not known: " in text
        assert "to look at the history is not written" in text
        assert "Signal fresh: GB, s" in text


async def test_the_curve_and_the_plan_of_a_run_are_shown_and_not_recorded(tmp_path: Path) -> None:
    key = RunKey("alice", "resnet50", "r1")
    now_s = MIDNIGHT_S
    schedule = RunSchedule(
        time_s=now_s,
        objective="slowdown",
        entries=[ScheduleEntry(starts_s=now_s, power_limit_w=200.0, power_w=180.0, speed_ratio=0.99)],
        until_s=now_s + 3_600.0,
        expected_end_s=now_s + 3_600.0,
    )
    async with site(tmp_path) as served:
        served.bus.publish(*run_message(run_record(duration_s=3_600.0, n_gpus=1)))
        served.bus.publish(TOPICS.run(key, "schedule"), encode(schedule), qos=1, retain=True)
        text = (await served.page("/")).text
        assert "The run has a plan." in text
        assert "50 % · ends" in text
        assert await served.total_j() == 0
        mallory = msgspec.structs.replace(schedule, user="mallory")
        served.bus.publish(TOPICS.run(key, "schedule"), encode(mallory), qos=1, retain=True)
        assert await served.dropped("invalid") == 1


async def test_the_course_of_a_run_is_read_from_the_history_where_that_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(*_: object, **__: object) -> None:
        raise TimeoutError

    path = "/run/alice/resnet50/r1"
    async with site(tmp_path) as served:
        for hours in (1.0, 1.5, 2.0):
            record = run_record(n_gpus=1, duration_s=3_600.0 * hours, energy_j=36e4 * hours, carbon_g=80.0 * hours)
            record = msgspec.structs.replace(record, time_s=MIDNIGHT_S + 3_600.0 * (hours - 2.0))
            served.bus.publish(*run_message(measured(record, saved_ratio=0.1)))
            await asyncio.sleep(PERIOD_S + 1)
        page = await served.page(path)
        assert "Slower since the start" in page.text
        assert "2023-11-14 23:15 3 2.6 to 3.4" in page.text
        assert "100 to 100" not in page.text
        assert "W of its GPUs" in page.text
        monkeypatch.setattr(SqliteStore, "read", slow)
        text = (await served.page(path)).text
        assert "Slower since the start Not known: the history cannot be read now." in text


async def test_what_is_learnt_of_a_job_is_on_its_page_until_it_is_cleared(tmp_path: Path) -> None:
    job = JobName("ada@example.org", "bert.v2")
    topic = TOPICS.job(job, "posterior")
    posterior = PagesSite(MIDNIGHT_S).say_posterior(job)
    async with site(tmp_path) as served:
        served.bus.publish(topic, encode(posterior), qos=1, retain=True)
        (path,) = [
            str(it["href"]) for it in (await served.page("/jobs")).all("a") if str(it.get("href")).startswith("/job/")
        ]
        page = await served.page(path)
        status, found = await served.get("/v1/posterior?user=ada%40example.org&job=bert.v2")
        assert status == 200
        assert msgspec.convert(found, JobPosterior) == decode(encode(posterior), JobPosterior)
        for belief in found["beliefs"][:-1]:
            ends = (belief["cost_ratio"], belief["cost_lower_ratio"], belief["cost_upper_ratio"])
            assert "{} ({} to {})".format(*map(number_text, ends)) in page.text
        (file,) = [str(it["href"]) for it in page.all("a") if str(it.get("href")).endswith("format=csv")]
        async with served.client.get(URL(f"{served.url}{file}", encoded=True)) as response:
            assert response.content_type == "text/csv"
            lines = (await response.text()).splitlines()
        assert lines[0].startswith("batch_size,n_runs,n_reached,cannot_run,epochs")
        assert lines[3] == "128,22,22,False,19.0,15.2,23.75,1.0,0.97,1.03"
        assert len(lines) == 1 + len(posterior.beliefs)
        assert (await served.get("/v1/posterior?user=ada&job=bert.v2"))[0] == 404
        mallory = msgspec.structs.replace(posterior, user="mallory")
        served.bus.publish(topic, encode(mallory), qos=1, retain=True)
        assert await served.dropped("invalid") == 1
        served.bus.publish(topic, b"", qos=1, retain=True)
        assert "No job has asked" in (await served.page("/jobs")).text


async def test_runs_decisions_and_months_have_pages(tmp_path: Path) -> None:
    async with site(tmp_path) as served:
        served.bus.publish(*run_message(FINAL), qos=1, retain=True)
        served.bus.publish(*limit_message(MIDNIGHT_S), qos=1, retain=True)
        served.bus.publish(TOPICS.grid("GB", "carbon"), encode(SIGNAL))
        await asyncio.sleep(PERIOD_S + 1)
        assert "280 → 200 W plan" in (await served.page("/log")).text
        assert "There are none." in (await served.page(f"/log?before={MIDNIGHT_S}")).text
        runs = await served.page("/runs")
        (path,) = [str(it["href"]) for it in runs.all("a") if str(it.get("href")).startswith("/run/")]
        assert "Run resnet50" in (await served.page(path)).text
        assert "finished" in (await served.page(path)).text
        assert "Now 120 g/kWh" in (await served.page("/grid")).text
        history = (await served.page("/history?by=user")).text
        assert "alice 1 1 h 00 min 278 Wh, 80 g CO₂e 8.89 g CO₂e, 10.0 %" in history


@pytest.mark.parametrize(
    ("zone", "named", "day", "clock"),
    [
        ("Asia/Kathmandu", "Asia/Kathmandu", 15, "00:05"),
        ("America/St_Johns", "America/St Johns", 14, "14:50"),
        ("Mars/Olympus", "the machine that serves this page (UTC)", 14, "18:20"),
        ("", "the machine that serves this page (UTC)", 14, "18:20"),
    ],
)
async def test_all_pages_and_the_report_are_of_the_days_of_the_browser(
    zone: str, named: str, day: int, clock: str, tmp_path: Path
) -> None:
    early_s = MIDNIGHT_S - 5.75 * 3_600.0 + 300.0  # the 15th has begun in Kathmandu, and not yet in St. John's
    headers = {"Cookie": f"{ZONE_COOKIE}={zone}"} if zone else {}
    with machine_zone("UTC"):
        async with site(tmp_path) as served:
            served.bus.publish(*run_message(msgspec.structs.replace(FINAL, time_s=early_s)), qos=1, retain=True)
            served.bus.publish(*limit_message(early_s), qos=1, retain=True)
            await asyncio.sleep(PERIOD_S + 2)
            texts = {}
            for path in (
                "/",
                "/gpus",
                "/runs",
                "/grid",
                "/log",
                "/history?by=day",
                "/run/alice/resnet50/r1",
                "/log?x=y",
            ):
                async with served.client.get(served.url + path, headers=headers) as response:
                    texts[path] = Found(await response.text()).text
                    assert response.headers["Vary"] == "Accept-Encoding, Cookie"
                assert f"Times and days are those of {named}." in texts[path], path
            for path in ("/", "/log", "/runs", "/run/alice/resnet50/r1"):
                assert clock in texts[path], path
            assert f"2023-11-{day} 1 1 h 00 min" in texts["/history?by=day"]
            async with served.client.get(f"{served.url}/v1/report?month=2023-11&by=day", headers=headers) as response:
                assert response.headers["Vary"] == "Cookie"
                assert [row["name"] for row in (await response.json())["rows"]] == [f"2023-11-{day}"]


async def test_the_overview_is_kept_a_moment_for_each_zone(tmp_path: Path) -> None:
    async with site(tmp_path) as served:
        zones = [f"Etc/GMT+{hours}" for hours in range(1, 13)] + [f"Etc/GMT-{hours}" for hours in range(1, 15)]
        for zone in (*zones, zones[0], *zones):
            async with served.client.get(f"{served.url}/", headers={"Cookie": f"{ZONE_COOKIE}={zone}"}) as response:
                assert f"those of {zone}." in await response.text()


async def test_decisions_from_before_a_restart_are_on_the_overview_once(tmp_path: Path) -> None:
    bus = FakeBus()
    for restarts in range(2):
        async with site(tmp_path, bus) as served:
            if not restarts:
                for place in range(3):
                    topic, payload = limit_message(MIDNIGHT_S - 60.0 * place)
                    change = msgspec.structs.replace(decode(payload, LimitChange), power_limit_w=200.0 + place)
                    served.bus.publish(topic, encode(change), qos=1, retain=place == 0)
            await asyncio.sleep(PERIOD_S + 2)
            for path in ("/", "/log"):
                text = (await served.page(path)).text
                assert [text.count(f"280 → {limit_w} W") for limit_w in (200, 201, 202)] == [1, 1, 1], path
        bus._handlers.clear()


@pytest.mark.parametrize(
    ("path", "status", "why"),
    [
        ("/run/ada/bert/1", 404, "No run ada/bert/1 is known."),
        ("/job/ada/bert", 404, "No job ada/bert is known"),
        ("/job/ada/%3Cscript%3E", 404, "must be 1 to 64"),
        ("/run/ada/%3Cscript%3E/1", 404, "must be 1 to 64"),
        ("/run/ada/..%2F../1", 404, "must be 1 to 64"),
        ("/log?before=soon", 400, "before"),
        ("/log?before=nan", 400, "before"),
        ("/log?planet=x", 400, "planet"),
        ("/history?by=planet", 400, "planet"),
        ("/history?month=2026-13", 400, "must be a month"),
        ("/history?month=%3Cb%3E", 400, "must be a month"),
        ("/history?month=2999-12", 400, "before now"),
    ],
)
async def test_what_is_wrong_with_an_address_is_said_on_a_page(
    path: str, status: int, why: str, tmp_path: Path
) -> None:
    async with site(tmp_path) as served:
        await asyncio.sleep(PERIOD_S + 1)
        async with served.client.get(URL(served.url + path, encoded=True)) as response:
            page = await response.text()
            assert response.status == status
            assert response.content_type == "text/html"
        assert why in Found(page).text


async def test_a_database_that_is_away_costs_its_own_pages_alone(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no directory")
    async with site(tmp_path / "state") as served:
        await asyncio.sleep(1)
        served.bus.publish(*run_message(run_record(duration_s=3_600.0, n_gpus=1)))
        served.bus.publish(TOPICS.grid("GB", "carbon"), encode(SIGNAL))
        for path in ("/log", "/runs", "/history"):
            async with served.client.get(served.url + path) as response:
                assert response.status == 503
                assert "The history cannot be read: " in Found(await response.text()).text
        assert "running" in (await served.page("/run/alice/resnet50/r1")).text
        assert "Now 120 g/kWh" in (await served.page("/grid")).text


async def test_a_database_that_is_slow_costs_its_own_pages_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(*_: object, **__: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(SqliteStore, "read", slow)
    async with site(tmp_path) as served:
        async with served.client.get(f"{served.url}/log") as response:
            assert response.status == 503
            assert "The history did not answer within 5 s." in Found(await response.text()).text
        await served.page("/grid")
        await served.page("/")


async def test_all_filters_are_there_before_the_bus_connects(tmp_path: Path) -> None:
    bus = FakeBus()
    Site(
        WebConfig(),
        bus=bus,
        store=SqliteStore(tmp_path, topics=TOPICS, config=WebConfig().retention),
        topics=TOPICS,
        clock=LoopClock(),
    )
    assert bus.filters == [
        "gridchase/v1/node/+/status",
        "gridchase/v1/user/+/job/+/run/+/profile",
        "gridchase/v1/user/+/job/+/run/+/schedule",
        "gridchase/v1/user/+/job/+/run/+/energy",
        "gridchase/v1/user/+/job/+/run/+/node/+/energy",
        "gridchase/v1/node/+/gpu/+/energy",
        "gridchase/v1/node/+/gpu/+/limit",
        "gridchase/v1/grid/+/carbon",
        "gridchase/v1/grid/+/price",
        "gridchase/v1/user/+/job/+/posterior",
    ]


async def test_a_restart_counts_nothing_that_the_broker_has_retained_twice(tmp_path: Path) -> None:
    bus = FakeBus()
    bus.publish(*run_message(FINAL), retain=True)
    for _ in range(3):
        async with site(tmp_path, bus) as served:
            assert await served.total_j() == 1e6
        bus._handlers.clear()


@pytest.mark.parametrize(
    ("topic", "payload"),
    [
        run_message(msgspec.structs.replace(FINAL, time_s=MIDNIGHT_S + 1e6)),
        run_message(msgspec.structs.replace(FINAL, time_s=None)),
        run_message(msgspec.structs.replace(FINAL, detail="a\0b")),
        gpu_message(MIDNIGHT_S, 1e3, gpu_index=1 << 40),
        (run_message(FINAL)[0], b'{"energy_j": NaN}'),
        (run_message(FINAL)[0], run_message(FINAL)[1].replace(b'"energy_j":1000000.0', b'"energy_j":-5.0')),
        (run_message(FINAL)[0], run_message(FINAL, user="mallory")[1]),
        (run_message(FINAL)[0], run_message(FINAL)[1] + b" " * MAX_RECORD_BYTES),
        (TOPICS.gpu("a", "GPU-0", "energy"), gpu_message(MIDNIGHT_S, 1e3, node="b")[1]),
        (TOPICS.grid("FR", "carbon"), encode(SIGNAL)),
        (TOPICS.grid("GB", "price"), encode(SIGNAL)),
        (TOPICS.grid("GB", "carbon"), encode(msgspec.structs.replace(SIGNAL, kind="price"))),
        (TOPICS.grid("GB", "carbon"), encode(msgspec.structs.replace(SIGNAL, time_s=MIDNIGHT_S - 2 * DAY_S))),
        ("gridchase/v1/user/%3Cscript%3E/job/x/run/y/energy", run_message(FINAL)[1]),
        (TOPICS.run(RunKey("a", "b", "c"), "energy"), b"\xff" * 100),
    ],
)
async def test_what_is_hostile_costs_a_count(topic: str, payload: bytes, tmp_path: Path) -> None:
    async with site(tmp_path) as served:
        served.bus.publish(topic, payload)
        served.bus.publish(*run_message(FINAL))
        assert await served.total_j() == 1e6
        assert await served.dropped("invalid") == 1


async def test_the_zones_of_a_site_are_bounded(tmp_path: Path) -> None:
    async with site(tmp_path) as served:
        for _ in range(2):
            for number in range(MAX_ZONES + 5):
                signal = msgspec.structs.replace(SIGNAL, zone=f"zone-{number}", values=[])
                served.bus.publish(TOPICS.grid(signal.zone, "carbon"), encode(signal))
        assert await served.dropped("invalid") == 10


async def test_health_tells_that_all_messages_are_refused_until_one_is_taken(tmp_path: Path) -> None:
    ahead = msgspec.structs.replace(FINAL, time_s=MIDNIGHT_S + 7_200.0)
    async with site(tmp_path) as served:
        served.bus.publish(*run_message(ahead))
        assert (await served.get("/healthz"))[0] == 200
        await asyncio.sleep(REFUSED_S)
        served.bus.publish(*run_message(ahead))
        status, health = await served.get("/healthz")
        assert status == 503
        assert "no message was taken for 300 s" in health["troubles"][0]
        assert "ahead of the clock here" in health["troubles"][0]
        served.bus.publish(*run_message(FINAL))
        served.bus.publish(*run_message(ahead))
        assert (await served.get("/healthz"))[0] == 200
        await asyncio.sleep(3 * REFUSED_S)
        assert (await served.get("/healthz"))[0] == 200, "nothing comes"


async def test_what_is_impossible_costs_a_count(tmp_path: Path) -> None:
    async with site(tmp_path) as served:
        served.bus.publish(*run_message(msgspec.structs.replace(FINAL, run="r2", energy_j=1e17)))
        served.bus.publish(*run_message(FINAL))
        assert await served.total_j() == 1e6
        assert await served.dropped("impossible") == 1


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("by=planet", "planet"),
        ("by=gpu&job=x", "counts all that a GPU used"),
        ("month=2026-13", "must be a month"),
        ("since=7d&month=2026-11", "choose one"),
        ("job=" + "x" * 500, "128"),
        ("by=job&by=run", "twice"),
        ("limit=1", "limit"),
    ],
)
async def test_a_wrong_question_is_refused_with_its_reason(query: str, why: str, tmp_path: Path) -> None:
    async with site(tmp_path) as served:
        status, problem = await served.get(f"/v1/report?{query}")
        assert status == 400
        assert why in problem["detail"]


async def test_nobody_writes_and_the_browser_of_another_site_reads_nothing(tmp_path: Path) -> None:
    async with site(tmp_path) as served:
        async with served.client.post(f"{served.url}/v1/report") as response:
            assert response.status == 405
        async with served.client.get(f"{served.url}/v1/report", headers={"Host": "evil.example"}) as response:
            assert response.status == 403


async def test_health_tells_a_broker_and_a_database_that_are_away(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no directory")
    async with site(tmp_path / "state") as served:
        served.bus.connected = False
        status, health = await served.get("/healthz")
        assert (status, health["status"], health["troubles"][0]) == (503, "degraded", "the broker has not answered yet")
        assert "the history is not written" in health["troubles"][1]
        status, problem = await served.get("/v1/report")
        assert (status, problem["reason"]) == (503, "no_history")


async def test_more_questions_than_can_wait_are_refused_and_the_rest_is_answered(tmp_path: Path) -> None:
    async with site(tmp_path) as served, asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(served.get("/v1/report?by=day")) for _ in range(3 * N_WAITING)]
    statuses = {task.result()[0] for task in asked}
    assert statuses <= {200, 503}
    assert 200 in statuses


async def test_what_is_published_is_on_an_open_stream_and_in_the_state_of_now(tmp_path: Path) -> None:
    async with site(tmp_path) as served, served.client.get(f"{served.url}/v1/events") as stream:
        await stream.content.readuntil(b"\n\n")
        await stream.content.readuntil(b"\n\n")  # nothing is known yet
        served.bus.publish(*gpu_message(MIDNIGHT_S, 5e5), retain=True)
        event = (await stream.content.readuntil(b"\n\n")).decode()
        status, now = await served.get("/v1/state")
        assert status == 200
        sent = msgspec.json.decode(event.partition("data: ")[2])
        assert (sent["texts"], sent["bars"]) == (now["texts"], now["bars"])
        assert sent["texts"]
