"""GPUs that do not answer, are not listed, or are another process's when the controller starts."""

import asyncio
import math
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from controller.errors import GpuError, GpuLostError, GpuNotSupportedError, LimitsLeftError
from controller.gpu.intake import GpuIntake
from controller.gpu.journal.entry import JournalEntry
from controller.gpu.journal.storage import Journal, copy_path_of
from controller.gpu.node_lock import NodeLock, lock_holders
from controller.gpu.read_back import restore_all
from controller.ports import UNLISTED, Gpu
from publishers.messages.codec import decode
from publishers.messages.reports import NodeStatus
from tests.controller.health_probe import HealthProbe
from tests.fakes import FakeGpu
from tests.scenarios.site import NODE, TOPICS, Site, Training, prior_gpu


async def test_a_gpu_that_is_not_ready_at_the_start_is_taken_in_when_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.app.NodeServer", HealthProbe)
    first, late = prior_gpu(), prior_gpu("GPU-fake-1", index=1)
    site = Site(tmp_path, [first, late])
    site.backend.absent = {late.uuid}
    async with site.controlled():
        assert HealthProbe.snapshot().troubles() == ["not managed until it answers: open on GPU 1: it is not ready"]
        training = Training(site, [late])
        await training.train(600)
        assert late.requested_power_limit_w == 280.0
        site.backend.absent = set()
        await training.train(900)
        assert HealthProbe.snapshot().troubles() == []
        assert {gpu.uuid for gpu in decode(site.bus.retained[TOPICS.node_status(NODE)], NodeStatus).gpus} == {
            first.uuid,
            late.uuid,
        }
        assert min(limit.power_limit_w or 280.0 for limit in site.limits(late)) < 280.0, (
            "the claim that was refused is granted"
        )
        assert TOPICS.gpu(NODE, late.uuid, "energy") in site.bus.retained
    assert late.requested_power_limit_w == 280.0
    assert TOPICS.gpu(NODE, late.uuid, "energy") not in site.bus.retained


async def test_a_limit_that_a_kill_left_comes_back_as_soon_as_its_gpu_answers(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    await leave_limit(tmp_path, gpu, 150.0)
    site.backend.absent = {gpu.uuid}
    async with site.controlled():
        await asyncio.sleep(4)
        assert gpu.requested_power_limit_w == 150.0
        site.backend.absent = set()
        await asyncio.sleep(10)
        assert gpu.requested_power_limit_w == 280.0
    assert not (await Journal.load(tmp_path)).entries


async def test_a_stop_says_what_a_gpu_that_never_answered_may_still_have(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    await leave_limit(tmp_path, gpu, 150.0)
    site.backend.absent = {gpu.uuid}
    with pytest.raises(ExceptionGroup) as caught:
        async with site.controlled():
            await asyncio.sleep(600)
    assert caught.group_contains(LimitsLeftError, match=r"GPU-fake-0 may still have 150 W .*prior limit 280 W")
    assert gpu.uuid in (await Journal.load(tmp_path)).entries


async def test_a_stop_cuts_no_restore_of_a_late_gpu_short(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    await leave_limit(tmp_path, gpu, 150.0)
    site.backend.absent = {gpu.uuid}
    gpu.write_delay_s = 0.3
    await _stop_while_it_opens(site)
    assert gpu.requested_power_limit_w == 280.0
    assert not (await Journal.load(tmp_path)).entries


async def test_a_stop_while_a_late_gpu_refuses_its_prior_limit_says_so(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    await leave_limit(tmp_path, gpu, 150.0)
    site.backend.absent = {gpu.uuid}
    gpu.n_ignored_writes = math.inf
    with pytest.raises(ExceptionGroup) as caught:
        await _stop_while_it_opens(site)
    assert caught.group_contains(LimitsLeftError, match="GPU-fake-0 may still have .*: the limit still is 150 W")


async def test_a_late_gpu_that_cannot_be_locked_is_set_once_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("controller.app.NodeServer", HealthProbe)
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    await leave_limit(tmp_path, gpu, 150.0)
    site.backend.absent = {gpu.uuid}
    async with site.controlled():
        training = Training(site)
        with monkeypatch.context() as patch:
            patch.setattr("controller.gpu.intake.GpuIntake.fault", "GPU-fake-0: cannot be locked")
            site.backend.absent = set()
            await training.train(600)
            assert "a GPU is not managed: GPU-fake-0: cannot be locked" in HealthProbe.snapshot().troubles()
            assert not site.limits(gpu)
            assert gpu.requested_power_limit_w == 280.0, "its prior limit comes back all the same"
        await training.train(600)
        assert HealthProbe.snapshot().troubles() == []
        assert site.limits(gpu)[-1].job == "resnet50"
    assert caplog.text.count("cannot be locked") == 1


async def test_a_late_gpu_with_a_low_limit_and_no_journal_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, late = prior_gpu(), prior_gpu("GPU-fake-1", index=1)
    late.requested_power_limit_w = 150.0
    site = Site(tmp_path, [first, late])
    site.backend.absent = {late.uuid}
    async with site.controlled():
        training = Training(site)
        await training.train(900)
        site.backend.absent = set()
        await training.train(100)
    assert caplog.text.count("GPU-fake-1 has 150 W, less than its default of 300 W, and there is no journal") == 1
    assert "is gone" not in caplog.text


async def test_a_gpu_of_the_journal_that_is_absent_or_held_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.app.NodeServer", HealthProbe)
    ours, away = (prior_gpu(f"GPU-fake-{index}", index) for index in range(2))
    site = Site(tmp_path / "ours", [ours, away], "gpu.backend=nvml")
    await leave_limit(tmp_path / "ours", away, 150.0)
    site.backend.absent = {away.uuid}
    with ExitStack() as other:
        other.enter_context(NodeLock(tmp_path / "theirs")).lock_gpus([away.uuid])
        async with site.controlled():
            assert HealthProbe.snapshot().troubles() == ["not managed until it answers: open on GPU 1: it is not ready"]
            site.backend.absent = set()
            await asyncio.sleep(30)
            (trouble,) = HealthProbe.snapshot().troubles()
            assert "held by process" in trouble
            other.close()
            await asyncio.sleep(30)


async def test_a_low_limit_without_a_journal_is_told_once_however_often_its_gpu_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = prior_gpu()
    gpu.requested_power_limit_w = 150.0
    monkeypatch.setattr("controller.gpu.intake.GpuIntake.fault", "GPU-fake-0: cannot be locked")
    with NodeLock(tmp_path) as lock:
        intake = GpuIntake(lock, await Journal.load(tmp_path), gpu.clock, locks_gpus=True)
        assert [await intake.take(opened) for opened in ([gpu], [], [])] == [[], [], []]
    assert caplog.text.count("there is no journal") == 1


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_gpu_that_another_process_holds_is_taken_when_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, is_late: bool
) -> None:
    monkeypatch.setattr("controller.app.NodeServer", HealthProbe)
    caplog.set_level("INFO")
    ours, theirs = (prior_gpu(f"GPU-fake-{index}", index) for index in range(2))
    site = Site(tmp_path / "ours", [ours, theirs], "gpu.backend=nvml")
    await leave_limit(tmp_path / "ours", theirs, 150.0)
    site.backend.absent = {theirs.uuid} if is_late else set()
    with ExitStack() as other:
        other.enter_context(NodeLock(tmp_path / "theirs")).lock_gpus([theirs.uuid])
        async with site.controlled():
            site.backend.absent = set()
            await asyncio.sleep(600)
            (trouble,) = HealthProbe.snapshot().troubles()
            assert f"{theirs.uuid}: held by process" in trouble
            assert theirs.requested_power_limit_w == 150.0
            other.close()
            await Training(site, [theirs]).train(900)
            assert HealthProbe.snapshot().troubles() == []
            status = decode(site.bus.retained[TOPICS.node_status(NODE)], NodeStatus)
            assert {gpu.uuid for gpu in status.gpus} == {ours.uuid, theirs.uuid}
            assert site.limits(theirs)[-1].job == "resnet50", "it is controlled like any other"
    assert theirs.requested_power_limit_w == 280.0
    assert caplog.text.count(f"a GPU is not managed: {theirs.uuid}: held by process") == 1
    assert caplog.text.count(f"GPU {theirs.uuid} is managed from now on") == 1


async def test_a_limit_that_another_controller_left_is_not_taken_for_a_prior_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.app.NodeServer", HealthProbe)
    ours, theirs = (prior_gpu(f"GPU-fake-{index}", index) for index in range(2))
    site = Site(tmp_path / "ours", [ours, theirs], "gpu.backend=nvml")
    with ExitStack() as killed:
        killed.enter_context(NodeLock(tmp_path / "theirs")).lock_gpus([theirs.uuid])
        async with site.controlled():
            await leave_limit(tmp_path / "theirs", theirs, 150.0)
            killed.close()
            await asyncio.sleep(60)
            (trouble,) = HealthProbe.snapshot().troubles()
            assert "another controller has left a limit on it: 150 W, instead of its prior limit 280 W" in trouble
            assert str(copy_path_of(tmp_path / "theirs")) in trouble
            with NodeLock(tmp_path / "theirs") as lock:
                assert lock.lock_gpus([theirs.uuid]) == {}, "it can be restored"
                await restore_all([theirs], await Journal.load(tmp_path / "theirs"), site.clock)
            await Training(site, [theirs]).train(900)
            assert HealthProbe.snapshot().troubles() == []
    assert theirs.requested_power_limit_w == 280.0


async def test_a_limit_that_another_left_on_the_only_gpu_is_waited_for(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path / "ours", [gpu], "gpu.backend=nvml")
    await leave_limit(tmp_path / "theirs", gpu, 150.0)
    async with site.controlled():
        await asyncio.sleep(60)
        with NodeLock(tmp_path / "theirs") as lock:
            assert lock.lock_gpus([gpu.uuid]) == {}
            await restore_all([gpu], await Journal.load(tmp_path / "theirs"), site.clock)
        await Training(site, [gpu]).train(900)
        assert min(limit.power_limit_w or 280.0 for limit in site.limits(gpu)) < 280.0
    assert gpu.requested_power_limit_w == 280.0


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_limit_that_another_left_on_a_free_gpu_is_no_prior_one_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_late: bool
) -> None:
    monkeypatch.setattr("controller.app.NodeServer", HealthProbe)
    ours, theirs = (prior_gpu(f"GPU-fake-{index}", index) for index in range(2))
    site = Site(tmp_path / "ours", [ours, theirs], "gpu.backend=nvml")
    await leave_limit(tmp_path / "theirs", theirs, 150.0)
    site.backend.absent = {theirs.uuid} if is_late else set()
    async with site.controlled():
        site.backend.absent = set()
        await Training(site, [theirs]).train(60)
        (trouble,) = HealthProbe.snapshot().troubles()
        assert "another controller has left a limit on it" in trouble
        assert lock_holders(tmp_path / "ours", [theirs.uuid]) == {}, "its controller gets at it when it starts again"
        theirs.requested_power_limit_w = 280.0  # by hand: their state directory may be gone for good
        await Training(site, [theirs]).train(900)
        assert HealthProbe.snapshot().troubles() == []
    assert theirs.requested_power_limit_w == 280.0


async def test_a_copy_that_others_left_keeps_no_gpu_whose_limit_is_ours(tmp_path: Path) -> None:
    gpu = prior_gpu()
    await leave_limit(tmp_path / "theirs", gpu, 150.0)
    await leave_limit(tmp_path / "ours", gpu, 150.0)
    assert await _taken(tmp_path / "ours", gpu) == [gpu]
    assert gpu.requested_power_limit_w == 280.0


@pytest.mark.parametrize("live_w", [280.0, 300.0, 200.0])
async def test_a_copy_that_others_left_keeps_no_gpu_with_another_limit(tmp_path: Path, live_w: float) -> None:
    gpu = prior_gpu()
    await leave_limit(tmp_path / "theirs", gpu, 150.0)
    gpu.requested_power_limit_w = live_w
    assert await _taken(tmp_path / "ours", gpu) == [gpu]
    assert gpu.requested_power_limit_w == live_w


async def test_a_limit_of_others_below_ours_is_no_prior_one_once_ours_is_given_back(tmp_path: Path) -> None:
    gpu = prior_gpu()
    await leave_limit(tmp_path / "ours", gpu, 200.0)
    await leave_limit(tmp_path / "theirs", gpu, 150.0)
    assert await _taken(tmp_path / "ours", gpu) == []
    assert await _taken(tmp_path / "theirs", gpu) == [gpu]
    assert gpu.requested_power_limit_w == 280.0


@pytest.mark.parametrize(("kind", "n_taken"), [(GpuLostError, 0), (GpuNotSupportedError, 1)])
async def test_a_limit_that_others_may_have_left_and_cannot_be_read_is_none_to_take(
    tmp_path: Path, kind: type[GpuError], n_taken: int
) -> None:
    gpu = prior_gpu()
    await leave_limit(tmp_path / "theirs", gpu, 150.0)
    gpu.errors["read_limit"] = kind("no", gpu_uuid=gpu.uuid, operation="read_limit")
    assert len(await _taken(tmp_path / "ours", gpu)) == n_taken


async def test_a_gpu_that_leaves_the_list_while_it_is_held_is_taken_once_it_is_back(tmp_path: Path) -> None:
    gpu = prior_gpu()
    with NodeLock(tmp_path) as lock:
        intake = GpuIntake(lock, await Journal.load(tmp_path), gpu.clock, locks_gpus=True)
        gpu.index = UNLISTED  # which is no index to publish
        assert (await intake.take([gpu]), intake.held) == ([], {gpu.uuid: f"{gpu.uuid}: the driver lists it no more"})
        gpu.index = 1
        assert (await intake.take([]), intake.held) == ([gpu], {})


async def _taken(state_dir: Path, gpu: FakeGpu) -> Sequence[Gpu]:
    """Return what is taken of a GPU that another process has held before."""
    with NodeLock(state_dir) as lock:
        intake = GpuIntake(lock, await Journal.load(state_dir), gpu.clock, locks_gpus=True)
        with NodeLock(state_dir / "holder") as holder:
            holder.lock_gpus([gpu.uuid])
            assert await intake.take([gpu]) == []
        return await intake.take([])


async def test_a_gpu_of_the_journal_that_is_listed_late_is_taken_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("controller.app.NodeServer", HealthProbe)
    first, late = prior_gpu(), prior_gpu("GPU-fake-1", index=1)
    site = Site(tmp_path, [first, late])
    await leave_limit(tmp_path, late, 150.0)
    site.backend.unlisted = {late.uuid}
    async with site.controlled():
        await asyncio.sleep(3_600)
        assert late.requested_power_limit_w == 150.0
        assert HealthProbe.snapshot().troubles() == [
            f"a GPU is not managed: {late.uuid}: the simulation does not list it"
        ]
        assert 200 < site.backend.n_late_tries < 300, "it is asked for every 15 s, at first sooner"
        assert caplog.text.count(late.uuid) == 1, "and told once"
        site.backend.unlisted = set()
        await asyncio.sleep(30)
        assert late.requested_power_limit_w == 280.0
        assert HealthProbe.snapshot().troubles() == []
        n_tries = site.backend.n_late_tries
        await asyncio.sleep(600)
        assert site.backend.n_late_tries == n_tries, "nothing is missing any more"
    assert not (await Journal.load(tmp_path)).entries


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("absent", r"it does not answer \(open on GPU 1: .*\); run `gridchase restore --set \S+/ours` once it does"),
        (
            "unlisted",
            r"the driver does not list it; .* is gone for good, `gridchase restore --set \S+/ours --forget GPU-",
        ),
        ("held", r"held by process \d+; stop that one first; then run `gridchase restore --set \S+/ours`"),
    ],
    ids=["absent", "unlisted", "held"],
)
async def test_a_stop_says_why_a_gpu_could_not_be_restored(tmp_path: Path, case: str, why: str) -> None:
    first, away = (prior_gpu(f"GPU-fake-{index}", index) for index in range(2))
    site = Site(tmp_path / "ours", [first, away], "gpu.backend=nvml")
    await leave_limit(tmp_path / "ours", away, 150.0)
    site.backend.absent = {away.uuid} if case == "absent" else set()
    site.backend.unlisted = {away.uuid} if case == "unlisted" else set()
    with NodeLock(tmp_path / "theirs") as lock:
        lock.lock_gpus([away.uuid] if case == "held" else [])
        with pytest.raises(ExceptionGroup) as caught:
            async with site.controlled():
                await asyncio.sleep(60)
    assert caught.group_contains(LimitsLeftError, match=f"{away.uuid} may still have 150 W .*prior limit 280 W: {why}")


async def _stop_while_it_opens(site: Site) -> None:
    async with site.controlled():
        site.backend.absent = set()
        await site.backend.opened_late.wait()


async def leave_limit(state_dir: Path, gpu: FakeGpu, power_limit_w: float) -> None:
    """Leave a limit on a GPU, as a controller does that is killed."""
    entry = JournalEntry(prior_power_limit_w=280.0, written_power_limits_w=(power_limit_w,), written_at_s=0.0)
    await (await Journal.load(state_dir)).record(gpu.uuid, entry)
    gpu.requested_power_limit_w = power_limit_w
