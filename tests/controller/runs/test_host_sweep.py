"""The daily sweep: what is left of hosts that are gone is cleared, and nothing that lives."""

import asyncio
from pathlib import Path

from controller.runs.retained_topics import ANYBODY_AFTER_S, MAX_CLEARED, SWEEP_EVERY_S, HostSweep
from controller.runs.router import SWEEP_PERIOD_S
from publishers.messages.codec import encode
from tests.controller.messages import BOOT_ID, rank_status
from tests.controller.runs.router_bench import TOPICS, RouterBench
from tests.fakes import KEY, MIDNIGHT_S, FakeBus

LATER_S = MIDNIGHT_S + SWEEP_EVERY_S
EARLY_NODE, EARLY_S = "node-18", 601.0
"""A node whose turn comes soon after its start."""
OLD_S = LATER_S - ANYBODY_AFTER_S - 1.0


def retain(bus: FakeBus, boot_id: str, *, time_s: float | None, state: str = "running", rank: int = 0) -> str:
    """Let the broker retain a status; return its topic."""
    topic = TOPICS.rank(boot_id, KEY, rank, "status")
    status = rank_status(boot_id=boot_id, time_s=time_s, state=state)
    bus.publish(topic, encode(status), qos=1, retain=True)
    return topic


def sweep(bus: FakeBus) -> HostSweep:
    """Return a sweep that has begun."""
    begun = HostSweep(TOPICS, bus, node="node-a", boot_id=BOOT_ID, now_s=MIDNIGHT_S)
    begun.advance(LATER_S)
    return begun


def test_what_is_left_of_a_host_that_is_gone_is_cleared() -> None:
    bus = FakeBus()
    for rank in (0, 1):
        retain(bus, "former-boot", time_s=OLD_S, state="lost", rank=rank)
    for leaf in ("profile", "schedule", "energy"):
        bus.publish(TOPICS.run(KEY, leaf), b"retained", qos=1, retain=True)
    sweep(bus)
    assert bus.retained == {}


def test_a_process_with_a_heartbeat_on_another_host_is_left_alone() -> None:
    bus = FakeBus()
    topics = [
        retain(bus, "boot-b", time_s=LATER_S - 10.0),
        retain(bus, "boot-c", time_s=OLD_S + 2.0, state="lost"),
        retain(bus, "boot-d", time_s=None),
    ]
    sweep(bus)
    assert list(bus.retained) == topics


def test_the_own_host_has_rules_of_its_own() -> None:
    bus = FakeBus()
    topic = retain(bus, BOOT_ID, time_s=OLD_S)
    sweep(bus)
    assert list(bus.retained) == [topic]


def test_what_is_no_status_is_left_alone() -> None:
    bus = FakeBus()
    bus.publish(TOPICS.rank("boot-b", KEY, 0, "status"), b"no status", qos=1, retain=True)
    sweep(bus)
    assert len(bus.retained) == 1


def test_one_sweep_clears_so_many_and_the_next_one_the_rest() -> None:
    bus = FakeBus()
    for number in range(MAX_CLEARED + 5):
        retain(bus, f"boot-{number}", time_s=OLD_S, rank=1)
    begun = sweep(bus)
    assert len(bus.retained) == 5
    begun.advance(LATER_S + SWEEP_PERIOD_S)
    begun.advance(LATER_S + SWEEP_EVERY_S)
    assert bus.retained == {}


def test_nodes_take_turns_over_the_day() -> None:
    began_h = set()
    for node in range(100):
        bus = FakeBus()
        late = HostSweep(TOPICS, bus, node=f"node-{node}", boot_id=BOOT_ID, now_s=MIDNIGHT_S)
        for hour in range(25):
            late.advance(MIDNIGHT_S + 3_600.0 * hour)
            if bus.filters:
                began_h.add(hour)
                break
    assert len(began_h) > 12


async def test_a_controller_sweeps_for_a_minute_each_day(tmp_path: Path) -> None:
    bench = RouterBench(tmp_path, node=EARLY_NODE)
    retain(bench.bus, "former-boot", time_s=MIDNIGHT_S - 2 * ANYBODY_AFTER_S)
    async with bench.working():
        own = list(bench.bus.filters)
        await asyncio.sleep(EARLY_S - SWEEP_PERIOD_S)
        assert bench.bus.retained, "its turn has not come yet"
        await asyncio.sleep(4 * SWEEP_PERIOD_S)
        assert bench.bus.filters == own
    assert bench.bus.retained == {}
