"""The process of a site within this one, on a bus in memory, and what is published there: usual, or hostile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from controller.runtime.clock import SystemClock
from controller.web.app import Site
from controller.web.config import WebConfig, WebSettings
from controller.web.live.site_state import Shown
from controller.web.store import SqliteStore
from publishers.messages.codec import encode
from publishers.messages.reports import GpuDescription, LimitChange, NodeStatus
from publishers.messages.topics import JobName, RunKey
from tests.controller.history.energy_history.records import TOPICS
from tests.controller.runtime.test_markup import HOSTILE
from tests.controller.web.pages.site import Site as PagesSite
from tests.controller.web.pages.site import grid_signal
from tests.fakes import FakeBus

LONG_NAME: Final = "n" * 64
MARKUP: Final = "".join(text for text in HOSTILE if "\0" not in text and text.isprintable()) + "\x1b[2J\u202egnp.exe"
RIGHT_TO_LEFT: Final = "\u05d0\u05d9\u05de\u05d5\u05df \u0627\u0644\u062a\u062f\u0631\u064a\u0628 <b>"
LONG_TEXT: Final = "w" * 256
HOSTILE_USER: Final = f"<img src=x onerror=alert(1)>\u05d0{'u' * 96}"
TOO_LONG: Final = "x" * 300
"""No name, and no short text, may have so many letters: such messages are refused."""


@asynccontextmanager
async def served(bus: FakeBus, state_dir: Path, port: int = 0) -> AsyncIterator[tuple[Site, str]]:
    """Run the process of a site within this one; yield it and its URL."""
    stop, urls = asyncio.Event(), asyncio.Queue[str]()
    config = WebConfig(web=WebSettings(state_dir=str(state_dir), port=port))
    store = SqliteStore(state_dir, topics=TOPICS, config=config.retention)
    site = Site(config, bus=bus, store=store, topics=TOPICS, clock=SystemClock())
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(site.run(stop, urls.put_nowait))
        yield site, await urls.get()
        stop.set()


class PublishedSite(PagesSite):
    """A site of now, whose messages are published on a bus, too."""

    def __init__(self, bus: FakeBus) -> None:
        super().__init__(SystemClock().now_s())
        self._bus = bus

    def say(self, topic: str, message: Shown) -> None:
        """Let a controller publish."""
        super().say(topic, message)
        self._bus.publish(topic, encode(message), qos=1, retain=True)


def say_hostile(site: PagesSite) -> tuple[RunKey, JobName]:
    """Let a site of hostile and long names and texts publish; return the run and the job on whose pages they are."""
    key, job = RunKey(HOSTILE_USER, LONG_NAME, LONG_NAME), JobName(HOSTILE_USER, LONG_NAME)
    gpu = GpuDescription(uuid="GPU-0", index=0, model=MARKUP, prior_power_limit_w=300.0)
    status = NodeStatus(state="online", version="1", host=RIGHT_TO_LEFT, time_s=site.now_s, gpus=[gpu])
    site.say(TOPICS.node_status(LONG_NAME), status)
    site.say_gpu(LONG_NAME, 0, job=LONG_NAME, reason="pinned")
    change = LimitChange(
        time_s=site.now_s,
        gpu_index=0,
        reason="pinned",
        detail=f"{MARKUP} {RIGHT_TO_LEFT} {LONG_TEXT}",
        power_limit_w=180.0,
        previous_power_limit_w=200.0,
        job=LONG_NAME,
        signal=LONG_TEXT,
    )
    site.say(TOPICS.gpu(LONG_NAME, "GPU-0", "limit"), change)
    site.say_run(key, n_gpus=1)
    energy = site.state.runs[key].energy
    assert energy is not None
    pin = {"pinned_until_s": site.now_s + 3_600.0, "pinned_by": RIGHT_TO_LEFT, "pinned_why": MARKUP}
    words = {"gpu_model": LONG_TEXT, "reason": LONG_NAME, "detail": MARKUP, "power_limit_w": 180.0}
    site.say(TOPICS.run(key, "energy"), msgspec.structs.replace(energy, **pin, **words))
    site.say_posterior(job, next_detail=MARKUP, policy=LONG_NAME)
    site.say_signal(msgspec.structs.replace(grid_signal(site.now_s), source=LONG_TEXT, detail=MARKUP, zone=LONG_NAME))
    site.say_node(f"other-{LONG_NAME[:50]}", 2, online=False)
    for wrong in ({"host": TOO_LONG}, {"version": "1\0"}):
        site.say(TOPICS.node_status("refused"), msgspec.structs.replace(status, **wrong))
    return key, job
