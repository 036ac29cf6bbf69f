"""The newest message of each topic: what is kept, what is one too many, and what is forgotten."""

from typing import Any

import msgspec
import pytest

from controller.web.live import site_state
from controller.web.live.site_state import (
    ENDED_S,
    GONE_S,
    MAX_DECISIONS,
    MAX_PERIOD_S,
    SILENT_PERIODS,
    SILENT_S,
    GpuKey,
    Shown,
    SiteState,
)
from policies.vocabulary.units import DAY_S
from publishers.messages.reports import (
    GpuDescription,
    GpuEnergy,
    GridSignal,
    JobPosterior,
    LimitChange,
    NodeStatus,
    ProfileReport,
    RunSchedule,
    SignalValue,
)
from publishers.messages.topics import JobName, ParsedTopic, RunKey
from tests.controller.history.energy_history.records import TOPICS, run_record
from tests.fakes import KEY, MIDNIGHT_S

GPU = GpuKey("node-a", "GPU-0")
STATUS = NodeStatus(
    state="online", version="1", time_s=MIDNIGHT_S, gpus=[GpuDescription(uuid="GPU-0", index=3, model="A40")]
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
    values=[SignalValue(starts_s=MIDNIGHT_S, value=120.0)],
)


POSTERIOR = JobPosterior(
    time_s=MIDNIGHT_S,
    policy="knowledge-gradient",
    eta=0.5,
    default_batch_size=128,
    next_batch_size=128,
    next_reason="default_first",
    next_detail="",
    beliefs=[],
)


def change(time_s: float = MIDNIGHT_S, **more: Any) -> LimitChange:  # noqa: ANN401 — the record checks them
    return LimitChange(time_s=time_s, reason="slowdown_static", detail="why", power_limit_w=200.0, **more)


class Site:
    """A state, and its messages by topic."""

    def __init__(self) -> None:
        self.state = SiteState()

    def say(self, topic: str, message: Shown | None, now_s: float = MIDNIGHT_S) -> None:
        """Take a message, or clear the topic."""
        parsed = TOPICS.parse(topic)
        assert parsed is not None
        if message is None:
            self.state.clear(parsed)
        else:
            self.state.take(parsed, message, now_s)

    def say_all(self, now_s: float = MIDNIGHT_S) -> None:
        """Say something of each kind."""
        self.say(TOPICS.node_status("node-a"), STATUS, now_s)
        self.say(TOPICS.gpu(*GPU, "energy"), GpuEnergy(time_s=now_s, power_w=150.0), now_s)
        self.say(TOPICS.gpu(*GPU, "limit"), change(now_s), now_s)
        self.say(TOPICS.run(KEY, "energy"), run_record(time_s=now_s), now_s)
        self.say(TOPICS.run_on_node(KEY, "node-a"), run_record(time_s=now_s), now_s)
        self.say(TOPICS.run(KEY, "profile"), profile(now_s), now_s)
        self.say(TOPICS.run(KEY, "schedule"), schedule(now_s), now_s)
        self.say(TOPICS.grid("GB", "carbon"), msgspec.structs.replace(SIGNAL, time_s=now_s), now_s)


def profile(time_s: float) -> ProfileReport:
    return ProfileReport(time_s=time_s, state="planned", gpu_model="A40", n_gpus=1, points=[])


def schedule(time_s: float) -> RunSchedule:
    return RunSchedule(time_s=time_s, objective="slowdown", entries=[], until_s=time_s)


def test_the_newest_message_of_each_topic_is_kept_with_the_names_of_its_topic() -> None:
    site = Site()
    site.say_all()
    state = site.state
    gpu, run = state.gpus[GPU], state.runs[KEY]
    assert gpu.energy is not None
    assert gpu.limit is not None
    assert run.energy is not None
    assert (gpu.energy.node, gpu.limit.gpu_uuid, run.energy.user) == ("node-a", "GPU-0", KEY.user)
    assert (run.parts["node-a"].node, run.parts["node-a"].job) == ("node-a", KEY.job)
    assert run.profile is not None
    assert run.schedule is not None
    assert state.grid["GB", "carbon"].values == SIGNAL.values
    assert state.version == 8
    assert state.is_online("node-a")
    description = state.description_of(GPU)
    assert description is not None
    assert description.index == 3
    assert state.description_of(GpuKey("node-b", "GPU-0")) is None


def test_what_is_cleared_is_forgotten_and_nothing_else() -> None:
    site = Site()
    site.say_all()
    site.say(TOPICS.gpu(*GPU, "energy"), None)
    site.say(TOPICS.run(KEY, "schedule"), None)
    site.say(TOPICS.run(KEY, "metric"), None)
    assert site.state.gpus[GPU].energy is None
    assert site.state.gpus[GPU].limit is not None
    assert site.state.runs[KEY].schedule is None
    for topic in (
        TOPICS.gpu(*GPU, "limit"),
        TOPICS.run(KEY, "energy"),
        TOPICS.run(KEY, "profile"),
        TOPICS.run_on_node(KEY, "node-a"),
        TOPICS.grid("GB", "carbon"),
        TOPICS.node_status("node-a"),
        TOPICS.node_status("node-b"),
    ):
        site.say(topic, None)
    state = site.state
    assert (state.gpus, state.runs, state.grid, state.nodes) == ({}, {}, {}, {})
    assert len(state.decisions) == 1, "what was decided has been"


def test_a_decision_that_a_broker_sends_again_is_one_and_all_are_in_order() -> None:
    site = Site()
    for time_s in (5.0, 5.0, 3.0, 9.0):
        site.say(TOPICS.gpu("node-a", f"GPU-{time_s:.0f}", "limit"), change(time_s))
    assert [it.time_s for it in site.state.decisions] == [3.0, 5.0, 9.0]
    for number in range(MAX_DECISIONS + 1):
        site.say(TOPICS.gpu("node-a", "GPU-0", "limit"), change(10.0 + number))
    site.say(TOPICS.gpu("node-a", "GPU-old", "limit"), change(1.0))
    assert [it.time_s for it in site.state.decisions] == [11.0 + number for number in range(MAX_DECISIONS)]


@pytest.mark.parametrize("bound", ["MAX_NODES", "MAX_GPUS", "MAX_RUNS", "MAX_PARTS", "MAX_SIGNALS"])
def test_what_is_one_too_many_is_counted_and_what_is_known_goes_on(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_state, bound, 1)
    site = Site()
    site.say_all()
    kind, other = bound.removeprefix("MAX_").lower(), RunKey("bob", "job", "run-2")
    said: dict[str, tuple[str, Shown]] = {
        "nodes": (TOPICS.node_status("node-b"), STATUS),
        "gpus": (TOPICS.gpu("node-a", "GPU-1", "energy"), GpuEnergy(time_s=MIDNIGHT_S)),
        "runs": (TOPICS.run(other, "energy"), run_record()),
        "parts": (TOPICS.run_on_node(KEY, "node-b"), run_record()),
        "signals": (TOPICS.grid("GB", "price"), msgspec.structs.replace(SIGNAL, kind="price")),
    }
    site.say(*said[kind])
    assert site.state.n_refused == 1
    site.say_all(MIDNIGHT_S + 5.0)
    assert site.state.n_refused == 1
    assert site.state.gpus[GPU].heard_s == MIDNIGHT_S + 5.0


def test_of_too_many_jobs_those_heard_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs do not end: one that is new must not be refused for ever."""
    monkeypatch.setattr(site_state, "MAX_JOBS", 2)
    state = SiteState()
    for number in (1, 2, 1, 3):
        job = JobName("ada", f"job-{number}")
        state.take(ParsedTopic(leaf="posterior", job=job), POSTERIOR, MIDNIGHT_S)
    assert [job.job for job in state.jobs] == ["job-1", "job-3"]
    assert (state.n_refused, state.version) == (1, 4)


def test_a_wrong_clock_makes_nobody_silent_and_what_a_broker_kept_is_not_new() -> None:
    site = Site()
    topic, behind_s = TOPICS.gpu(*GPU, "energy"), 3_600.0

    def say(at_s: float, now_s: float) -> float:
        site.say(topic, GpuEnergy(time_s=at_s - behind_s), now_s)
        site.say(TOPICS.run(KEY, "energy"), run_record(time_s=at_s - behind_s), now_s)
        assert site.state.gpus[GPU].spoke_s == site.state.runs[KEY].spoke_s
        return site.state.gpus[GPU].spoke_s - MIDNIGHT_S

    assert say(MIDNIGHT_S, MIDNIGHT_S) == -behind_s, "perhaps retained"
    assert say(MIDNIGHT_S + 5.0, MIDNIGHT_S + 5.0) == 5.0
    assert say(MIDNIGHT_S + 5.0, MIDNIGHT_S + 900.0) == 5.0, "sent again by the broker"


def test_what_speaks_seldom_is_silent_after_three_of_its_periods() -> None:
    site = Site()
    topic = TOPICS.gpu(*GPU, "energy")

    def silence_s(period_s: float) -> float:
        begin_s = MIDNIGHT_S
        for at_s in (begin_s, begin_s + period_s):
            site.say(topic, GpuEnergy(time_s=at_s), at_s)
        said_s = begin_s + period_s
        gpu = site.state.gpus.pop(GPU)
        return next(after_s for after_s in range(0, 20_000, 10) if not gpu.is_heard(said_s + after_s))

    assert silence_s(5.0) == SILENT_S + 10.0
    assert silence_s(300.0) == SILENT_PERIODS * 300.0 + 10.0
    assert silence_s(1e7) == SILENT_PERIODS * MAX_PERIOD_S + 10.0, "a clock that was set"
    assert silence_s(-3_600.0) == SILENT_S + 10.0


def test_what_only_tests_the_broker_is_not_shown() -> None:
    site = Site()
    site.say(TOPICS.run(RunKey("alice", "gridchase-check", "r"), "energy"), run_record())
    site.say(TOPICS.gpu("node-a", "gridchase-check-1", "energy"), GpuEnergy(time_s=1.0))
    site.say(TOPICS.grid("gridchase-check-1", "carbon"), SIGNAL)
    assert site.state.version == 0


def test_a_run_is_forgotten_a_day_after_its_last_word_however_late_that_arrives() -> None:
    site = Site()
    site.say(TOPICS.run(KEY, "energy"), run_record(time_s=MIDNIGHT_S), MIDNIGHT_S + ENDED_S)
    site.state.forget(MIDNIGHT_S + ENDED_S)
    assert KEY in site.state.runs
    site.state.forget(MIDNIGHT_S + ENDED_S + 1)
    assert site.state.runs == {}


def test_a_node_is_missed_for_a_week_and_one_that_is_online_never_forgotten() -> None:
    site = Site()
    site.say_all()
    site.state.forget(MIDNIGHT_S + GONE_S + 1)
    assert (set(site.state.gpus), set(site.state.nodes), site.state.grid) == ({GPU}, {"node-a"}, {})
    site.say(TOPICS.node_status("node-a"), NodeStatus(state="offline", version="1", time_s=MIDNIGHT_S))
    site.state.forget(MIDNIGHT_S + GONE_S)
    assert set(site.state.nodes) == {"node-a"}
    site.state.forget(MIDNIGHT_S + GONE_S + 1)
    assert (site.state.gpus, site.state.nodes) == ({}, {})


def test_a_node_whose_last_will_is_a_month_old_is_missed_since_its_gpus_were_heard() -> None:
    site, end_s = Site(), MIDNIGHT_S + 30 * DAY_S
    site.say_all()
    site.say(TOPICS.gpu(*GPU, "energy"), GpuEnergy(time_s=end_s, power_w=90.0), end_s)
    will = NodeStatus(state="offline", version="1", time_s=MIDNIGHT_S)
    for name in ("node-a", "node-without-gpu"):
        site.say(TOPICS.node_status(name), will, end_s + 10.0)
    site.state.forget(end_s + GONE_S)
    assert set(site.state.nodes) == {"node-a"}
    site.state.forget(end_s + GONE_S + 1)
    assert site.state.nodes == {}


def test_room_is_free_again_once_a_run_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_state, "MAX_PARTS", 1)
    site = Site()
    site.say_all()
    site.state.forget(MIDNIGHT_S + ENDED_S + 1)
    site.say(TOPICS.run_on_node(KEY, "node-b"), run_record(), MIDNIGHT_S + ENDED_S + 1)
    assert set(site.state.runs[KEY].parts) == {"node-b"}


def test_decisions_of_the_history_come_before_what_was_heard_and_none_comes_twice() -> None:
    site, topic = Site(), TOPICS.gpu(*GPU, "limit")
    past = [change(MIDNIGHT_S - ago_s, node=GPU.node, gpu_uuid=GPU.gpu_uuid) for ago_s in (0.0, 60.0, 120.0)]
    site.say(topic, change(MIDNIGHT_S, speed_ratio=0.9))
    version = site.state.version
    site.state.take_past(past)
    assert site.state.version > version
    site.say(topic, change(MIDNIGHT_S - 60.0, speed_ratio=0.8))
    found = [(it.time_s - MIDNIGHT_S, it.speed_ratio) for it in site.state.decisions]
    assert found == [(-120.0, None), (-60.0, 0.8), (0.0, 0.9)]
    site.state.take_past([change(1e9 + number, node="n", gpu_uuid="g") for number in range(2 * MAX_DECISIONS, 0, -1)])
    assert len(site.state.decisions) == MAX_DECISIONS
    assert site.state.decisions[-1].time_s == MIDNIGHT_S
