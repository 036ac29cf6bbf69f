"""The task tree: what is published, in which order it stops, and which GPUs it locks."""

import asyncio
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from controller.app import run_controller
from controller.errors import (
    BackendError,
    ControllerError,
    DriverUnavailableError,
    GpuLostError,
    LimitsLeftError,
    NodeLockedError,
)
from controller.gpu.node_lock import NodeLock
from policies.providers.sources.constant import ConstantProvider
from publishers.messages.codec import decode
from publishers.messages.reports import GridSignal, NodeStatus
from tests.controller.health_probe import HealthProbe
from tests.fakes import FakeBackend, FakeGpu, FakeHistoryStore, FixedProvider, flat_signal
from tests.scenarios.site import ANY_PROVIDER, NODE, TOPICS, Site, Training, prior_gpu


class AbsentBackend(FakeBackend):
    """A node without a driver, until `is_loaded`."""

    is_loaded = False

    @property
    def faults(self) -> Sequence[ControllerError]:
        return super().faults if self.is_loaded else [DriverUnavailableError("there is no NVIDIA driver")]

    async def open(self) -> Sequence[FakeGpu]:
        if not self.is_loaded:
            raise DriverUnavailableError("there is no NVIDIA driver")
        return await super().open()

    async def open_late(self) -> Sequence[FakeGpu]:
        return await super().open_late() if self.is_loaded else []


class HangingBackend(FakeBackend):
    """A node whose driver hangs while it is closed."""

    async def close(self) -> None:
        await asyncio.Event().wait()


async def test_a_node_without_a_driver_is_an_error_and_releases_its_lock(tmp_path: Path) -> None:
    site = Site(tmp_path, [])
    site.backend = AbsentBackend([])
    with pytest.raises(ExceptionGroup) as caught:
        await site.controlled().__aenter__()
    assert caught.group_contains(BackendError)
    with NodeLock(tmp_path):
        pass


async def test_a_service_waits_for_its_driver_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("controller.app.NodeServer", HealthProbe)
    caplog.set_level("INFO")
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], waits_for_driver=True)
    site.backend = driver = AbsentBackend([gpu])
    async with site.controlled():
        await Training(site).train(3_600)
        awaited = "not managed until it answers: there is no NVIDIA driver"
        assert awaited in HealthProbe.snapshot().troubles()
        assert caplog.text.count("there is no NVIDIA driver") == 1
        driver.is_loaded = True
        await Training(site, run="run-2").train(600)
        assert HealthProbe.snapshot().troubles() == []
        (described,) = decode(site.bus.retained[TOPICS.node_status(NODE)], NodeStatus).gpus
        assert (described.uuid, described.prior_power_limit_w) == (gpu.uuid, 280.0)
        assert site.limits(gpu)[-1].job == "resnet50", "it is controlled like any other"
        assert min(limit.power_limit_w or 280.0 for limit in site.limits(gpu)) < 280.0
    assert gpu.requested_power_limit_w == 280.0


async def test_a_node_without_gpus_runs_and_logs_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    site = Site(tmp_path, [])
    async with site.controlled():
        assert decode(site.bus.retained[TOPICS.node_status(NODE)], NodeStatus).gpus == []
    assert "there is no GPU on this node: nothing is measured" in caplog.text


async def test_a_driver_that_hangs_while_closing_does_not_fail_a_clean_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    site.backend = HangingBackend([gpu])
    async with site.controlled():
        await Training(site).train(500)
    assert gpu.requested_power_limit_w == 280.0
    assert "fake driver 1.0: did not close in 10 s" in caplog.text
    with NodeLock(tmp_path):
        pass


async def test_readiness_reflects_gpus_and_bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.app.NodeServer", HealthProbe)
    site = Site(tmp_path, [prior_gpu()])
    async with site.controlled():
        assert HealthProbe.snapshot().troubles() == []
        site.bus.last_error = "the broker refuses the subscription"
        assert HealthProbe.snapshot().troubles() == ["the broker refuses the subscription"]


async def test_readiness_is_lost_while_nothing_of_ours_reaches_the_bus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("controller.app.NodeServer", HealthProbe)
    caplog.set_level("INFO")
    site = Site(tmp_path, [prior_gpu()], "bus.username=node-b")
    async with site.controlled():
        assert HealthProbe.snapshot().troubles() == []
        site.bus.is_dropping = True
        await asyncio.sleep(30)
        (trouble,) = HealthProbe.snapshot().troubles()
        assert trouble.startswith("nothing that is published comes back from the broker: user 'node-b' may not write")
        assert "bus.username and node.name" in trouble
        site.bus.is_dropping = False
        await asyncio.sleep(10)
        assert HealthProbe.snapshot().troubles() == []
    assert caplog.text.count("nothing that is published comes back") == 1
    assert caplog.text.count("what is published reaches the broker again") == 1


async def test_a_stopped_controller_leaves_no_power_behind(tmp_path: Path) -> None:
    site = Site(tmp_path, [prior_gpu()])
    topic = TOPICS.gpu(NODE, "GPU-fake-0", "energy")
    async with site.controlled():
        await Training(site).train(500)
        assert topic in site.bus.retained
    assert topic not in site.bus.retained


async def test_what_is_retained_of_gpus_that_have_left_the_node_is_cleared(tmp_path: Path) -> None:
    site = Site(tmp_path, [prior_gpu()])
    gone = [TOPICS.gpu(NODE, "GPU-gone", leaf) for leaf in ("energy", "limit")]
    elsewhere = TOPICS.gpu("node-b", "GPU-gone", "energy")
    site.bus.retained |= dict.fromkeys([*gone, elsewhere], b"{}")
    async with site.controlled():
        assert site.bus.retained.keys() & {*gone, elsewhere} == {elsewhere}


async def test_readiness_is_lost_while_a_gpu_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.app.NodeServer", HealthProbe)
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    async with site.controlled():
        gpu.errors = {"read_limit": GpuLostError("gone", gpu_uuid=gpu.uuid, operation="read_limit")}
        await Training(site).train(60)
        assert HealthProbe.snapshot().troubles() == [f"{gpu.uuid} does not answer"]
        gpu.errors = {}
        await asyncio.sleep(60)
        assert HealthProbe.snapshot().troubles() == []


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the locks of GPUs into a directory of the test."""
    monkeypatch.setattr("controller.gpu.run_dir.RUN_DIR", tmp_path / "run")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.mark.usefixtures("run_dir")
async def test_real_gpus_are_locked_against_every_other_controller(tmp_path: Path) -> None:
    gpu = prior_gpu(f"GPU-{uuid.uuid4()}")
    site = Site(tmp_path / "ours", [gpu], "gpu.backend=nvml")
    async with site.controlled():
        with NodeLock(tmp_path / "theirs") as lock:
            assert gpu.uuid in lock.lock_gpus([gpu.uuid])
    with NodeLock(tmp_path / "theirs") as lock:
        assert lock.lock_gpus([gpu.uuid]) == {}


@pytest.mark.usefixtures("run_dir")
async def test_real_gpus_of_another_controller_are_not_touched(tmp_path: Path) -> None:
    gpu = prior_gpu(f"GPU-{uuid.uuid4()}")
    gpu.errors = {"read_limit": GpuLostError("not even read", gpu_uuid=gpu.uuid, operation="read_limit")}
    site = Site(tmp_path / "ours", [gpu], "gpu.backend=nvml")
    with NodeLock(tmp_path / "theirs") as lock:
        lock.lock_gpus([gpu.uuid])
        with pytest.raises(ExceptionGroup) as caught:
            await site.controlled().__aenter__()
    assert caught.group_contains(NodeLockedError)
    assert (gpu.history, site.bus.sent, site.backend.is_open) == ([], [], False)


@pytest.mark.usefixtures("run_dir")
async def test_a_gpu_that_another_process_holds_is_left_out_and_the_others_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.app.NodeServer", HealthProbe)
    gpus = [prior_gpu(f"GPU-{uuid.uuid4()}", index) for index in range(2)]
    gpus[0].errors = {"read_limit": GpuLostError("not even read", gpu_uuid=gpus[0].uuid, operation="read_limit")}
    site = Site(tmp_path / "ours", gpus, "gpu.backend=nvml")
    with NodeLock(tmp_path / "theirs") as lock:
        lock.lock_gpus([gpus[0].uuid])
        async with site.controlled():
            assert len(HealthProbe.snapshot().troubles()) == 1
            assert f"{gpus[0].uuid}: held by process" in HealthProbe.snapshot().troubles()[0]
            status = decode(site.bus.retained[TOPICS.node_status(NODE)], NodeStatus)
            assert [gpu.uuid for gpu in status.gpus] == [gpus[1].uuid]


async def test_a_gpu_whose_limits_cannot_be_read_is_described_without_them(tmp_path: Path) -> None:
    gpu = prior_gpu()
    gpu.errors = {"read_range": GpuLostError("gone", gpu_uuid=gpu.uuid, operation="read_range")}
    site = Site(tmp_path, [gpu])
    async with site.controlled():
        (description,) = decode(site.bus.retained[TOPICS.node_status(NODE)], NodeStatus).gpus
    assert (description.uuid, description.model, description.max_power_limit_w) == (gpu.uuid, gpu.model, None)


async def test_a_gpu_in_the_journal_that_is_not_on_the_node_keeps_its_entry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    away = prior_gpu("GPU-away", 0)
    site = Site(tmp_path, [away])
    async with site.controlled():
        await Training(site).train(500)
        kept = (tmp_path / "journal.json").read_bytes()
        assert b"GPU-away" in kept
    (tmp_path / "journal.json").write_bytes(kept)
    with pytest.raises(ExceptionGroup) as caught:
        async with Site(tmp_path, [prior_gpu("GPU-other", 0)], "gpu.backend=nvml").controlled():
            pass
    assert caught.group_contains(LimitsLeftError, match="GPU-away may still have .* --forget GPU-away`")
    assert b"GPU-away" in (tmp_path / "journal.json").read_bytes()
    assert "GPU GPU-away has a journal entry but is not managed: the driver does not list it" in caplog.text


async def test_the_last_messages_are_the_limits_then_offline(tmp_path: Path) -> None:
    site = Site(tmp_path, [prior_gpu()])
    async with site.controlled():
        await Training(site).train(500)
    gpu_topic, node_topic = TOPICS.gpu(NODE, "GPU-fake-0", "limit"), TOPICS.node_status(NODE)
    assert [message.topic for message in site.bus.sent[-2:]] == [gpu_topic, node_topic]
    assert site.limits(site.gpus[0])[-1].reason == "controller_stopped"
    assert all(message.retain and message.qos == 1 for message in site.bus.sent[-2:])


@pytest.mark.parametrize(
    ("kind", "zone", "topic"),
    [("carbon", "DE", TOPICS.grid("DE", "carbon")), ("price", "", TOPICS.grid("local", "price"))],
)
async def test_the_signal_is_published_under_its_zone(tmp_path: Path, kind: str, zone: str, topic: str) -> None:
    provider = ConstantProvider(300.0, kind="price" if kind == "price" else "average", unit="g/kWh", zone=zone)
    site = Site(tmp_path, [], f"signal.kind={kind}", ANY_PROVIDER, f'signal.zone="{zone}"', providers=[provider])
    async with site.controlled():
        assert decode(site.bus.retained[topic], GridSignal).values[-1].value == 300.0


async def test_what_providers_return_is_stored(tmp_path: Path) -> None:
    store, provider = FakeHistoryStore(), FixedProvider(flat_signal(300.0))
    site = Site(tmp_path, [], "signal.kind=carbon", ANY_PROVIDER, providers=[provider], store=store)
    async with site.controlled():
        pass
    assert [signal.unit for signal in store.saved.values()] == ["g/kWh"]


async def test_every_topic_is_under_the_configured_root(tmp_path: Path) -> None:
    site = Site(tmp_path, [prior_gpu()], "bus.root=lab/grid")
    async with site.controlled():
        await asyncio.sleep(10)
    assert site.bus.sent
    assert all(message.topic.startswith("lab/grid/") for message in site.bus.sent)


async def test_an_energy_message_comes_every_period_from_every_gpu(tmp_path: Path) -> None:
    site = Site(tmp_path, [prior_gpu("GPU-a", 0), prior_gpu("GPU-b", 1)], "energy.period_s=20")
    async with site.controlled():
        await asyncio.sleep(100)
    for gpu in site.gpus:
        payloads = site.bus.payloads(TOPICS.gpu(NODE, gpu.uuid, "energy"))
        times_s = [msgspec.json.decode(payload)["time_s"] for payload in payloads if payload]
        assert len(times_s) == 6
        assert times_s[-1] - times_s[0] == pytest.approx(100)


async def test_being_cancelled_from_outside_restores_limits_too(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    with pytest.raises(TimeoutError):
        await _cancelled_in_mid_sweep(site, gpu)
    assert gpu.requested_power_limit_w == 280.0
    assert b"GPU" not in (tmp_path / "journal.json").read_bytes()


async def test_a_cancellation_while_limits_are_restored_waits_for_them(tmp_path: Path) -> None:
    gpu, stop = prior_gpu(), asyncio.Event()
    site = Site(tmp_path, [gpu])
    async with asyncio.TaskGroup() as tasks:
        controller = tasks.create_task(run_controller(site.node(), stop=stop))
        await Training(site).train(500)
        gpu.write_gate = asyncio.Event()
        stop.set()
        for _ in range(3):
            await asyncio.sleep(1)
            controller.cancel()
        gpu.write_gate.set()
    assert controller.cancelled()
    assert gpu.requested_power_limit_w == 280.0
    assert b"GPU" not in (tmp_path / "journal.json").read_bytes()


async def test_a_status_that_comes_while_the_controller_stops_starts_nothing(tmp_path: Path) -> None:
    gpu, stop = prior_gpu(), asyncio.Event()
    site = Site(tmp_path, [gpu])
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run_controller(site.node(), stop=stop))
        await Training(site).train(500)
        gpu.write_gate = asyncio.Event()
        stop.set()
        await asyncio.sleep(1)
        Training(site, run="late").publish_status()
        gpu.write_gate.set()
    assert gpu.requested_power_limit_w == 280.0
    assert not site.energies(run="late")


async def _cancelled_in_mid_sweep(site: Site, gpu: FakeGpu) -> None:
    async with asyncio.timeout(600), site.controlled():
        await Training(site).train(500)
        assert gpu.requested_power_limit_w < 280.0
        await asyncio.sleep(1_000)
