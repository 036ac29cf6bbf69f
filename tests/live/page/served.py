"""The process of a site, as a child or within this process, and what is published to it: usual, or hostile."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import msgspec
from paho.mqtt.publish import multiple

from controller.runtime.clock import Clock, SystemClock
from controller.web.app import Site
from controller.web.config import WebConfig, WebSettings
from controller.web.store import SqliteStore
from publishers.messages.codec import encode
from publishers.messages.reports import GpuDescription, LimitChange, NodeStatus
from publishers.messages.topics import JobName, RunKey
from tests.controller.history.energy_history.records import NODE, TOPICS, gpu_message
from tests.controller.runtime.test_markup import HOSTILE
from tests.controller.web.pages.site import PublishedSite, grid_signal
from tests.fakes import FakeBus
from tests.live.conftest import Mosquitto, free_port, wait_until

TIMEOUT_S: Final = 30.0
LONG_NAME: Final = "n" * 64
MARKUP: Final = "".join(text for text in HOSTILE if "\0" not in text and text.isprintable()) + "\x1b[2J\u202egnp.exe"
RIGHT_TO_LEFT: Final = "\u05d0\u05d9\u05de\u05d5\u05df \u0627\u0644\u062a\u062f\u0631\u064a\u0628 <b>"
LONG_TEXT: Final = "w" * 256
HOSTILE_USER: Final = f"<img src=x onerror=alert(1)>\u05d0{'u' * 96}"
TOO_LONG: Final = "x" * 300
"""No name, and no short text, may have so many letters: such messages are refused."""


@asynccontextmanager
async def served(
    bus: FakeBus, state_dir: Path, port: int = 0, clock: Clock | None = None
) -> AsyncIterator[tuple[Site, str]]:
    """Run the process of a site within this one; yield it and its URL."""
    stop, urls = asyncio.Event(), asyncio.Queue[str]()
    config = WebConfig(web=WebSettings(state_dir=str(state_dir), port=port))
    store = SqliteStore(state_dir, topics=TOPICS, config=config.retention)
    site = Site(config, bus=bus, store=store, topics=TOPICS, clock=clock or SystemClock())
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(site.run(stop, urls.put_nowait))
        yield site, await urls.get()
        stop.set()


def published_site(bus: FakeBus) -> PublishedSite:
    """Return a site of now."""
    return PublishedSite(bus, SystemClock().now_s())


class Web:
    """`gridchase web` as a process."""

    def __init__(self, broker: Mosquitto, folder: Path) -> None:
        self.port, log_file = free_port(), folder / "web.log"
        self.url = f"http://127.0.0.1:{self.port}"
        keys = (f"bus.url={broker.url}", f"web.port={self.port}", f"web.state_dir={folder / 'state'}")
        settings = [word for key in keys for word in ("--set", key)]
        with log_file.open("wb") as log:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "controller", "web", *settings], stdout=log, stderr=log
            )
        wait_until(lambda: "connected to the broker" in log_file.read_text(), TIMEOUT_S)


@contextmanager
def running_web(broker: Mosquitto, folder: Path) -> Iterator[Web]:
    """Run it; it is to go on to the end, when it is killed."""
    web = Web(broker, folder)
    try:
        yield web
        assert web.child.poll() is None
    finally:
        web.child.kill()
        web.child.wait(TIMEOUT_S)


def say_of_one_gpu(broker: Mosquitto, power_w: float) -> None:
    """Let a controller publish that its node has a GPU, and what it draws [W]."""
    now_s = SystemClock().now_s()
    status = encode(NodeStatus(state="online", version="1", time_s=now_s))
    topic, payload = gpu_message(now_s, 5e5, power_w=power_w, gpu_index=0)
    multiple(
        [(TOPICS.node_status(NODE), status, 1, True), (topic, payload, 1, True)], hostname="127.0.0.1", port=broker.port
    )


def say_hostile(site: PublishedSite) -> tuple[RunKey, JobName]:
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
