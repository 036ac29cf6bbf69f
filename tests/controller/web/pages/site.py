"""A site as its messages make it, and what a reader without eyes for markup finds on a page."""

import math
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from controller.history.energy_history.growth import run_amounts
from controller.history.energy_history.reading import MeanPower
from controller.history.energy_history.report import Part, entry_of
from controller.web.live.saved_sums import Sums
from controller.web.live.site_state import Shown, SiteState
from controller.web.pages.overview import Overview
from publishers.messages.codec import encode
from publishers.messages.reports import (
    BatchSizeBelief,
    GpuDescription,
    GpuEnergy,
    GridSignal,
    JobPosterior,
    JobTrial,
    LimitChange,
    NodeStatus,
    ProfileEntry,
    ProfileReport,
    RunSchedule,
    ScheduleEntry,
    SignalValue,
)
from publishers.messages.topics import JobName, RunKey
from tests.controller.history.energy_history.records import TOPICS, measured, run_record
from tests.fakes import MIDNIGHT_S, FakeBus

NOW_S = MIDNIGHT_S + 14 * 3_600.0 + 1_200.0
ZONE = ZoneInfo("Europe/Berlin")
GPUS_PER_NODE = 8
MODEL = "NVIDIA A40"


class Site:
    """What is known of a site, made by messages."""

    def __init__(self, now_s: float = NOW_S) -> None:
        self.now_s = now_s
        self.state = SiteState()

    def say(self, topic: str, message: Shown) -> None:
        """Let a controller publish."""
        parsed = TOPICS.parse(topic)
        assert parsed is not None, topic
        self.state.take(parsed, message, self.now_s)

    def say_node(self, node: str, n_gpus: int, *, online: bool = True) -> None:
        """Say what a node has."""
        gpus = [
            GpuDescription(uuid=f"GPU-{index}", index=index, model=MODEL, prior_power_limit_w=300.0)
            for index in range(n_gpus)
        ]
        state = "online" if online else "offline"
        self.say(TOPICS.node_status(node), NodeStatus(state=state, version="1", time_s=self.now_s, gpus=gpus))  # type: ignore[arg-type]

    def say_gpu(
        self,
        node: str,
        index: int,
        *,
        power_w: float | None = 162.0,
        power_limit_w: float = 180.0,
        job: str | None = "resnet50",
        reason: str = "slowdown_signal",
        ago_s: float = 3.0,
    ) -> None:
        """Say what a GPU draws, and why it has its limit."""
        uuid = f"GPU-{index}"
        energy = GpuEnergy(
            time_s=self.now_s - ago_s,
            gpu_index=index,
            power_w=power_w,
            power_limit_w=power_limit_w,
            temperature_c=61.0,
            utilization_ratio=0.98,
            job=job,
        )
        self.say(TOPICS.gpu(node, uuid, "energy"), energy)
        change = LimitChange(
            time_s=self.now_s - 120.0,
            gpu_index=index,
            reason=reason,
            detail="numbers used",
            power_limit_w=power_limit_w,
            previous_power_limit_w=power_limit_w + 20.0,
            job=job,
            signal="267.3 g/kWh (source)",
            speed_ratio=0.985,
        )
        self.say(TOPICS.gpu(node, uuid, "limit"), change)

    def say_run(self, key: RunKey, *, n_gpus: int = 2, saved_ratio: float | None = 0.143, hours: float = 6.0) -> None:
        """Say what a run has used, its curve and its plan; without a ratio it is too early to tell."""
        record = run_record(
            run=key.run,
            time_s=self.now_s - 2.0,
            n_gpus=n_gpus,
            duration_s=7_200.0,
            energy_j=3e6,
            carbon_g=300.0,
            max_power_w=300.0 * n_gpus,
            evidence="too_early",
        )
        if saved_ratio is not None:
            record = measured(record, saved_ratio=saved_ratio)
        self.say(TOPICS.run(key, "energy"), record)
        points = [
            ProfileEntry(
                power_limit_w=100.0 + 50 * place,
                power_w=n_gpus * (90.0 + 45 * place),
                iterations_per_s=5.0 + place,
                power_ci_w=4.0,
            )
            for place in range(5)
        ]
        self.say(
            TOPICS.run(key, "profile"),
            ProfileReport(time_s=self.now_s, state="planned", gpu_model=MODEL, n_gpus=n_gpus, points=points),
        )
        end_s = self.now_s + 3_600 * hours
        self.say(
            TOPICS.run(key, "schedule"),
            RunSchedule(
                time_s=self.now_s,
                objective="slowdown",
                max_slowdown_ratio=1.05,
                until_s=end_s,
                expected_end_s=end_s,
                entries=[
                    ScheduleEntry(
                        starts_s=self.now_s + 300.0 * step, power_limit_w=180.0, power_w=324.0, speed_ratio=0.985
                    )
                    for step in range(math.ceil(12 * hours))
                ],
            ),
        )

    def say_posterior(self, job: JobName = JobName("ada", "resnet50"), **changes: Any) -> JobPosterior:  # noqa: ANN401, B008 — the record checks them; a constant
        """Say what is learnt of a job's batch sizes: 22 runs at the best one, one at the default, one that failed."""
        beliefs = [
            BatchSizeBelief(
                batch_size=size,
                n_runs=n_runs,
                n_reached=n_runs,
                epochs=epochs,
                epochs_lower=0.8 * epochs,
                epochs_upper=1.25 * epochs,
                cost_ratio=cost,
                cost_lower_ratio=lower,
                cost_upper_ratio=upper,
            )
            for size, n_runs, epochs, cost, lower, upper in (
                (32, 0, 13.0, 1.67, 0.78, 3.57),
                (64, 0, 15.0, 1.18, 0.75, 1.87),
                (128, 22, 19.0, 1.0, 0.97, 1.03),
                (256, 1, 39.0, 1.35, 1.19, 1.53),
                (512, 0, 60.0, 1.84, 1.37, 2.46),
                (1_024, 1, 88.0, 2.6, 2.28, 2.98),
            )
        ]
        posterior = JobPosterior(
            time_s=self.now_s,
            user=job.user,
            job=job.job,
            policy="gridchase",
            eta=0.5,
            default_batch_size=1_024,
            next_batch_size=128,
            next_reason="best_so_far",
            next_detail="128 is the best so far",
            best_batch_size=128,
            n_observations=24,
            beliefs=[*beliefs, BatchSizeBelief(batch_size=2_048, n_runs=1, cannot_run=True)],
            trials=[
                JobTrial(
                    run=f"slurm-{number}",
                    batch_size=128,
                    state="running" if number == 24 else "reached",
                    reason="best_so_far",
                    requested_at_s=self.now_s - 3_600.0 * (25 - number),
                    epochs=None if number == 24 else 19,
                    cost_ratio=None if number == 24 else 0.98,
                )
                for number in range(24, 16, -1)
            ],
        )
        posterior = msgspec.structs.replace(posterior, **changes)
        self.say(TOPICS.job(job, "posterior"), posterior)
        return posterior

    def say_signal(self, signal: GridSignal | None = None) -> None:
        """Say how the grid is."""
        signal = signal or grid_signal(self.now_s)
        self.say(TOPICS.grid(signal.zone, "price" if signal.kind == "price" else "carbon"), signal)

    def overview(self, troubles: Sequence[str] = ()) -> Overview:
        """Return what the first page is about, with the sums of the runs that are known."""
        parts = [Part(*key, run.energy, run_amounts(run.energy)) for key, run in self.state.runs.items() if run.energy]
        entry = entry_of("", parts)
        quarter_s = self.now_s // 900 * 900
        drawn = [MeanPower(quarter_s - 900.0 * back, 160.0 * len(self.state.gpus)) for back in range(48, 0, -1)]
        sums = Sums(self.now_s, self.now_s, entry, entry, entry)
        return Overview(self.state, sums, "", troubles, drawn if self.state.gpus else ())


def grid_signal(now_s: float, *, offset: float = 0.0, scale: float = 1.0) -> GridSignal:
    """Return a day of hours of carbon intensity; from the next hour on a forecast."""
    values = []
    for hour in range(-24, 26):
        value = scale * (340.0 - 110 * math.sin(hour / 24 * 2 * math.pi)) + offset
        starts_s = (now_s // 3_600 + hour) * 3_600.0
        half = abs(scale) * (2.0 * hour) if hour > 0 else None
        ends = {} if half is None else {"lower": value - half, "upper": value + half}
        values.append(SignalValue(starts_s=starts_s, value=value, estimated=hour > 0, **ends))
    return GridSignal(
        time_s=now_s,
        source="Energy-Charts",
        zone="DE",
        kind="average",
        unit="g/kWh",
        issued_at_s=now_s,
        state="fresh",
        age_s=0.0,
        value=values[24].value,
        values=values,
        forecast_from_s=values[25].starts_s,
    )


def price_signal(now_s: float) -> GridSignal:
    """Return a day of prices, some of which are below 0."""
    signal = grid_signal(now_s, scale=0.001, offset=-0.25)
    return msgspec.structs.replace(signal, kind="price", unit="EUR/kWh")


def site_of(n_gpus: int, site: Site | None = None) -> Site:
    """Return a site in the middle of a day, or fill one: a run on each two GPUs."""
    site = Site() if site is None else site
    for first in range(0, n_gpus, GPUS_PER_NODE):
        node, n_here = f"node-{first // GPUS_PER_NODE:02}", min(GPUS_PER_NODE, n_gpus - first)
        site.say_node(node, n_here)
        for index in range(n_here):
            site.say_gpu(node, index, power_w=150.0 + index, job=f"job-{(first + index) // 2}")
    for number in range((n_gpus + 1) // 2):
        site.say_run(RunKey("ada", f"job-{number}", "1"), n_gpus=min(2, n_gpus - 2 * number), hours=1.0 + number)
    if n_gpus:
        site.say_signal()
    return site


class Found(HTMLParser):
    """The texts and elements of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep an element."""
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        """Keep a text."""
        self.texts.append(data)

    @property
    def text(self) -> str:
        """Return all that is read, with plain spaces."""
        return " ".join(" ".join(self.texts).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """Return the attributes of each element of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]


class PublishedSite(Site):
    """A site whose messages are published on a bus, too."""

    def __init__(self, bus: FakeBus, now_s: float) -> None:
        super().__init__(now_s)
        self._bus = bus

    def say(self, topic: str, message: Shown) -> None:
        """Let a controller publish."""
        super().say(topic, message)
        self._bus.publish(topic, encode(message), qos=1, retain=True)
