"""What a page shows without a script is what programs are told: every number of each page, by page."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

import msgspec
import pytest

from controller.history.energy_history.recorder import PERIOD_S
from controller.history.energy_history.report import Entry
from controller.web.app import REFRESH_S
from controller.web.charts.ticks import number_text
from controller.web.live.saved_sums import LONGER_S
from controller.web.pages.jobs.job_page import job_path
from controller.web.pages.savings import savings_of, slower_text
from controller.web.pages.words import percent_text, run_path, typeset
from policies.vocabulary.units import duration_text
from publishers.messages.topics import JobName, RunKey
from publishers.training.reporting.amounts import power_text
from tests.controller.history.energy_history.records import TOPICS, gpu_message, measured, run_message, run_record
from tests.controller.web.pages.site import PublishedSite, site_of
from tests.controller.web.test_site import Served, site
from tests.fakes import MIDNIGHT_S, FakeBus

N_GPUS: Final = 4
ENDED: Final = RunKey("grace", "bert", "7")
GROUPS: Final = ("job", "user", "day", "run", "gpu", "node")


class ById(HTMLParser):
    """The text of each element that has an id, and that of each row of a table."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.by_id: dict[str, str] = {}
        self.rows: list[str] = []
        self.all = ""
        self._open: list[str | None] = []
        self.feed(page)
        self.close()
        self.all = plain(self.all)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin an element."""
        if tag in {"meta", "link", "input"}:
            return
        name = dict(attrs).get("id")
        self._open.append(name)
        if name is not None:
            self.by_id[name] = ""
        if tag == "tr":
            self.rows.append("")

    def handle_endtag(self, tag: str) -> None:
        """End an element."""
        del tag
        self._open.pop()

    def handle_data(self, data: str) -> None:
        """Add a text to all that it is in."""
        self.all += f" {data}"
        for name in self._open:
            if name is not None:
                self.by_id[name] += data
        if self.rows:
            self.rows[-1] += f" {data}"


def plain(text: str) -> str:
    """Return a text with one plain space for each gap."""
    return re.sub(r"\s+", " ", text)


def missing(texts: Iterable[str], page: str) -> list[str]:
    """Return which texts are not on a page."""
    return [text for text in map(plain, texts) if text not in page]


def amounts(entry: Entry) -> list[str]:
    """Return how each amount that a line of a report has used is written."""
    return [typeset(saving.text_of(saving.used)) for saving in savings_of(entry) if saving.used is not None]


@asynccontextmanager
async def site_with_numbers(tmp_path: Path) -> AsyncIterator[Served]:
    """Serve a site with GPUs, runs that go on, one that has ended, a job that is learnt, and a grid."""
    bus = FakeBus()
    async with site(tmp_path, bus) as web:
        told = PublishedSite(bus, MIDNIGHT_S)
        site_of(N_GPUS, told)
        told.say_posterior()
        for hours, final in ((1.0, False), (1.5, False), (2.0, True)):
            record = run_record(run=ENDED.run, n_gpus=2, duration_s=3_600.0 * hours, energy_j=1.1e6 * hours)
            record = msgspec.structs.replace(
                record,
                time_s=MIDNIGHT_S + 3_600.0 * (hours - 2.0),
                carbon_g=90.0 * hours,
                cost=0.07 * hours,
                currency="EUR",
                final=final,
                state="finished" if final else "running",
            )
            bus.publish(*run_message(measured(record, saved_ratio=0.123), user=ENDED.user, job=ENDED.job))
            for node in ("node-a", "node-b"):
                energy = gpu_message(MIDNIGHT_S + 20.0 * (hours - 1.0), 5e5 + 4e3 * hours)[1]
                bus.publish(TOPICS.gpu(node, "GPU-0", "energy"), energy, retain=True)
            await asyncio.sleep(PERIOD_S + 1)
        await asyncio.sleep(REFRESH_S + 1)
        yield web


async def text_of(served: Served, path: str) -> ById:
    """Return what is on a page for whoever has no script."""
    async with served.client.get(served.url + path) as response:
        assert response.status == 200, path
        return ById(await response.text())


@pytest.mark.parametrize("path", ["/", "/gpus"])
async def test_the_numbers_of_gpus_are_those_of_the_state(path: str, tmp_path: Path) -> None:
    async with site_with_numbers(tmp_path) as served:
        _, state = await served.get("/v1/state")
        shown = (await text_of(served, path)).by_id
        here = {name: text for name, text in state["texts"].items() if name in shown}
        assert len(here) >= 2 * N_GPUS
        assert {name: shown[name] for name in here} == here


async def test_what_was_saved_today_in_a_week_and_a_month_is_that_of_the_reports(tmp_path: Path) -> None:
    async with site_with_numbers(tmp_path) as served:
        await asyncio.sleep(LONGER_S + REFRESH_S)
        page = (await text_of(served, "/")).all
        _, today = await served.get("/v1/report?since=2023-11-15")
        _, week = await served.get("/v1/report?since=7d")
        for report in (today, week):
            entry = msgspec.convert(report["total"], Entry)
            (saving, *_) = savings_of(entry)
            assert saving.saved is not None
            assert missing([saving.amount, slower_text(entry).partition(" (")[0]], page) == []
        assert missing([savings_of(msgspec.convert(week["total"], Entry))[0].saved_text], page) == []


async def test_the_numbers_of_each_run_are_those_of_its_report(tmp_path: Path) -> None:
    async with site_with_numbers(tmp_path) as served:
        _, report = await served.get("/v1/report?by=run")
        assert len(report["rows"]) == N_GPUS // 2 + 1
        lists = [plain(row) for row in (await text_of(served, "/runs")).rows]
        for each in report["rows"]:
            entry, key = msgspec.convert(each, Entry), RunKey(*each["name"].split("/"))
            (row,) = [row for row in lists if f" {key.job} " in row]
            (saving, *_) = savings_of(entry)
            assert missing([saving.amount, slower_text(entry).partition(" (")[0]], row) == []
            texts = [
                *amounts(entry),
                *(it.interval.replace(" to ", " and ") for it in savings_of(entry) if it.saved is not None),
                slower_text(entry),
                typeset(duration_text(entry.duration_s or 0.0)),
            ]
            assert missing(texts, (await text_of(served, run_path(key))).all) == [], key


@pytest.mark.parametrize("by", GROUPS)
async def test_the_numbers_of_a_month_are_those_of_its_report(by: str, tmp_path: Path) -> None:
    async with site_with_numbers(tmp_path) as served:
        query = f"month=2023-11&by={by}"
        _, report = await served.get(f"/v1/report?{query}")
        rows = (await text_of(served, f"/history?{query}")).rows
        assert report["rows"]
        for each in (*report["rows"], report["total"]):
            entry = msgspec.convert(each, Entry)
            name = "" if each is report["total"] else plain(entry.name)
            mine = [plain(row) for row in rows if name in plain(row)]
            for text in map(plain, amounts(entry)):
                assert any(text in row for row in mine), (by, name, text, mine)


async def test_the_numbers_of_a_job_are_those_of_its_posterior(tmp_path: Path) -> None:
    async with site_with_numbers(tmp_path) as served:
        _, posterior = await served.get("/v1/posterior?user=ada&job=resnet50")
        page = await text_of(served, job_path(JobName("ada", "resnet50")))
        (line,) = [plain(row) for row in (await text_of(served, "/jobs")).rows if "resnet50" in row]
        assert missing(map(number_text, (posterior["next_batch_size"], posterior["default_batch_size"])), line) == []
        for belief in posterior["beliefs"]:
            names = ("epochs", "epochs_lower", "epochs_upper"), ("cost_ratio", "cost_lower_ratio", "cost_upper_ratio")
            ends = [[belief[name] for name in each] for each in names if not belief.get("cannot_run")]
            texts = ["{} ({} to {})".format(*map(number_text, each)) for each in ends]
            size, n_runs = number_text(belief["batch_size"]), belief.get("n_runs", 0)
            assert any(not missing([f"{size} {n_runs} ", *texts], plain(row).lstrip() + " ") for row in page.rows), (
                belief,
                page.rows,
            )
        for trial in posterior["trials"]:
            numbers = [number_text(trial[name]) for name in ("batch_size", "epochs", "cost_ratio") if trial.get(name)]
            assert any(not missing([trial["run"], *numbers], plain(row)) for row in page.rows), trial


async def test_the_numbers_of_the_grid_are_those_of_its_message(tmp_path: Path) -> None:
    async with site_with_numbers(tmp_path) as served:
        signal = msgspec.json.decode(served.bus.retained[TOPICS.grid("DE", "carbon")])
        page = await text_of(served, "/grid")
        assert (
            missing([f"Now {number_text(signal['value'])} g/kWh", "25 known, 25 forecast or estimated"], page.all) == []
        )
        shown = [plain(row) for row in page.rows]
        for value in signal["values"][2:-2]:
            assert any(number_text(value["value"]) in row for row in shown), value


async def test_the_numbers_of_the_log_are_those_of_its_messages(tmp_path: Path) -> None:
    async with site_with_numbers(tmp_path) as served:
        rows = [plain(row) for row in (await text_of(served, "/log")).rows]
        changes = [
            msgspec.json.decode(payload) for topic, payload in served.bus.retained.items() if topic.endswith("/limit")
        ]
        assert len(changes) == N_GPUS
        for change in changes:
            before, after = (power_text(change[f"{name}power_limit_w"]) for name in ("previous_", ""))
            speed = f"{percent_text(change['speed_ratio'])} of full speed"
            texts = [
                f"{before.removesuffix(' W')} → {after}",
                change["signal"].partition(" (")[0],
                speed,
                change["job"],
            ]
            assert any(not missing(texts, row) for row in rows), (change, rows)
