"""The promises about limits, kept by the whole controller: whatever ends, every prior limit is restored."""

import asyncio
import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from controller.app import run_controller
from controller.errors import GpuError, GpuLostError, GpuPermissionError, JournalError, LimitsLeftError, NodeLockedError
from controller.gpu.journal.storage import FILE_NAME, Journal, copy_path_of
from controller.gpu.node_lock import NodeLock
from controller.ports import LiveLimit, Sample
from publishers.messages.codec import decode
from publishers.messages.reports import NodeStatus
from tests.fakes import FakeBus, FakeGpu
from tests.scenarios.site import FINE, NODE, PRIOR_W, TOPICS, Site, Training, prior_gpu


def two_gpus() -> list[FakeGpu]:
    """Return two GPUs at their prior limits."""
    return [prior_gpu("GPU-fake-0", 0), prior_gpu("GPU-fake-1", 1)]


def node_state(site: Site) -> str:
    """Return the retained state of the node."""
    return decode(site.bus.retained[TOPICS.node_status(NODE)], NodeStatus).state


async def train_both(site: Site, duration_s: float) -> list[Training]:
    """Train a job on each of the two GPUs."""
    trainings = [Training(site, [site.gpus[0]]), Training(site, [site.gpus[1]], job="bert", run="run-2")]
    async with asyncio.TaskGroup() as tasks:
        for training in trainings:
            tasks.create_task(training.train(duration_s))
    return trainings


async def test_a_stopped_controller_has_restored_every_limit_and_is_offline(tmp_path: Path) -> None:
    site = Site(tmp_path, two_gpus())
    async with site.controlled():
        assert node_state(site) == "online"
        await train_both(site, 600)
        assert all(gpu.requested_power_limit_w < PRIOR_W for gpu in site.gpus)
        assert len(Journal.read(tmp_path).entries) == 2
    assert [gpu.requested_power_limit_w for gpu in site.gpus] == [PRIOR_W] * 2
    assert Journal.read(tmp_path).entries == {}
    assert (node_state(site), site.backend.is_open) == ("offline", False)


async def test_the_node_publishes_its_gpus_with_their_limits(tmp_path: Path) -> None:
    site = Site(tmp_path, two_gpus())
    async with site.controlled():
        status = decode(site.bus.retained[TOPICS.node_status(NODE)], NodeStatus)
    first, _ = status.gpus
    assert (first.uuid, first.index, first.model) == ("GPU-fake-0", 0, "Fake 300")
    assert (first.min_power_limit_w, first.max_power_limit_w) == (100.0, 300.0)
    assert (first.default_power_limit_w, first.prior_power_limit_w) == (300.0, PRIOR_W)
    assert site.bus.will is not None
    assert decode(site.bus.will.payload, NodeStatus).state == "offline"
    assert (site.bus.will.qos, site.bus.will.retain) == (1, True)


class BuggyGpu(FakeGpu):
    """A GPU whose driver package has a bug, once `bug` names a call."""

    bug = ""

    async def read_sample(self) -> Sample:
        if self.bug == "read_sample":
            raise ZeroDivisionError
        return await super().read_sample()

    async def read_limit(self) -> LiveLimit:
        if self.bug == "read_limit":
            raise ZeroDivisionError
        return await super().read_limit()


def break_the_meter(site: Site) -> None:
    """Let the meter of the second GPU fail."""
    site.gpus[1].bug = "read_sample"  # type: ignore[attr-defined]


def break_the_limiter(site: Site) -> None:
    """Let the limiter of the second GPU fail, and its restore with it."""
    site.gpus[1].bug = "read_limit"  # type: ignore[attr-defined]


def break_a_job(site: Site) -> None:
    """Let the task of a run fail: the bus has a bug that its energy triggers."""

    def publish(topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> None:
        if topic.endswith("/run-2/energy"):
            raise ZeroDivisionError
        FakeBus.publish(site.bus, topic, payload, qos=qos, retain=retain)

    site.bus.publish = publish  # type: ignore[method-assign]


@pytest.mark.parametrize("break_it", [break_the_meter, break_the_limiter, break_a_job])
async def test_a_bug_in_any_worker_ends_the_controller_and_limits_are_restored(
    tmp_path: Path, break_it: Callable[[Site], None]
) -> None:
    gpus = [prior_gpu(), BuggyGpu("GPU-fake-1", index=1)]
    gpus[1].requested_power_limit_w = PRIOR_W
    site = Site(tmp_path, gpus)
    with pytest.raises(ExceptionGroup) as caught:
        await _train_and_break(site, break_it)
    assert caught.group_contains(ZeroDivisionError)
    assert gpus[0].requested_power_limit_w == PRIOR_W
    kept = Journal.read(tmp_path).entries
    assert (gpus[1].requested_power_limit_w == PRIOR_W) != (gpus[1].uuid in kept), "restored, or still in the journal"
    assert (node_state(site), site.backend.is_open) == ("offline", False)


async def _train_and_break(site: Site, break_it: Callable[[Site], None]) -> None:
    async with site.controlled():
        await train_both(site, 600)
        break_it(site)
        await train_both(site, 600)


async def test_a_gpu_that_fails_at_the_end_does_not_keep_the_others_limited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(tmp_path, two_gpus())

    async def train_and_lose() -> None:
        async with site.controlled():
            await train_both(site, 600)
            site.gpus[0].errors = {"set_power_limit": lost(site.gpus[0])}

    with pytest.raises(ExceptionGroup) as caught:
        await train_and_lose()
    assert caught.group_contains(LimitsLeftError, match="GPU-fake-0 still has .* instead of its prior limit 280 W")
    assert site.gpus[1].requested_power_limit_w == PRIOR_W
    assert list(Journal.read(tmp_path).entries) == [site.gpus[0].uuid]
    assert "gridchase restore" in caplog.text


def lost(gpu: FakeGpu) -> GpuError:
    """Return the error of a GPU that fell off the bus."""
    return GpuLostError("fell off the bus", gpu_uuid=gpu.uuid, operation="set_power_limit", code=15)


def leave_behind(folder: Path) -> None:
    """Kill what runs on `state`: what is on disk stays, in `killed`, and so does what is on the GPU."""
    half_written = shutil.ignore_patterns("*.new")  # a thread may just be moving one to its place
    shutil.copytree(folder / "state", folder / "killed", ignore=half_written)


async def test_a_gpu_that_does_not_tell_its_default_limit_is_controlled_and_restored(tmp_path: Path) -> None:
    gpu = prior_gpu()
    gpu.range = replace(gpu.range, default_power_limit_w=None)
    site = Site(tmp_path, [gpu])
    async with site.controlled():
        await Training(site).train(600)
        assert gpu.requested_power_limit_w < PRIOR_W
        gpu.set_externally(222.0)
        await asyncio.sleep(60)
        assert site.limits(gpu)[-1].reason == "another_writer"
    assert gpu.requested_power_limit_w == 222.0, "another writer's"


async def test_after_sigkill_the_next_start_restores_first_and_then_plans_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path / "state", [gpu])
    training = Training(site)
    async with site.controlled():
        await training.train(600)
        left_w = gpu.requested_power_limit_w
        leave_behind(tmp_path)
    gpu.set_externally(left_w)
    gpu.history.clear()
    after = Site(tmp_path / "killed", [gpu])
    after.bus = site.bus
    async with after.controlled():
        assert gpu.history[0][1] == PRIOR_W, "before anything else"
        await asyncio.sleep(1)
        assert "a killed controller left a limit behind" in caplog.text
        await training.train(200)
        assert gpu.requested_power_limit_w < PRIOR_W
    assert gpu.requested_power_limit_w == PRIOR_W


@pytest.mark.parametrize("has_copy", [True, False])
async def test_after_sigkill_a_journal_that_is_gone_strands_no_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, has_copy: bool
) -> None:
    gpu, state_dir = prior_gpu(), tmp_path / "state"
    site, copy = Site(state_dir, [gpu]), copy_path_of(state_dir)
    assert copy is not None
    async with site.controlled():
        await Training(site).train(600)
        left_w, kept = gpu.requested_power_limit_w, copy.read_bytes()
    gpu.set_externally(left_w)
    shutil.rmtree(state_dir)
    if has_copy:
        copy.write_bytes(kept)
    gpu.history.clear()
    async with Site(state_dir, [gpu]).controlled():
        assert gpu.requested_power_limit_w == (PRIOR_W if has_copy else left_w)
    assert (f"is gone; its copy {copy} counts" in caplog.text) is has_copy
    assert (f"has {left_w:g} W, less than its default of 300 W" in caplog.text) is not has_copy


async def test_after_sigkill_a_limit_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path / "state", [gpu])
    async with site.controlled():
        await Training(site).train(600)
        leave_behind(tmp_path)
    gpu.set_externally(222.0)
    gpu.history.clear()
    async with Site(tmp_path / "killed", [gpu]).controlled():
        pass
    assert (gpu.requested_power_limit_w, gpu.history) == (222.0, [])


async def test_a_gpu_that_failed_at_the_start_is_restored_when_it_answers(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path / "state", [gpu])
    async with site.controlled():
        await Training(site).train(600)
        left_w = gpu.requested_power_limit_w
        leave_behind(tmp_path)
    gpu.set_externally(left_w)
    gpu.errors = {operation: lost(gpu) for operation in ("read_limit", "read_range", "set_power_limit")}
    async with Site(tmp_path / "killed", [gpu]).controlled():
        await asyncio.sleep(60)
        assert gpu.requested_power_limit_w == left_w
        gpu.errors = {}
        await asyncio.sleep(60)
        assert gpu.requested_power_limit_w == PRIOR_W
    assert Journal.read(tmp_path / "killed").entries == {}


@pytest.mark.parametrize("state", ["finished", "lost", None], ids=["finished", "last will", "silence"])
async def test_the_end_of_a_run_restores_its_gpu(tmp_path: Path, state: str | None) -> None:
    site = Site(tmp_path, two_gpus(), FINE)
    async with site.controlled():
        first, _ = await train_both(site, 600)
        if state is not None:
            first.publish_status(state)
            await asyncio.sleep(40)
        else:
            await asyncio.sleep(80)
        assert site.gpus[0].requested_power_limit_w == PRIOR_W
        assert Journal.read(tmp_path).entries.keys() <= {site.gpus[1].uuid}
    final = site.energies()[-1]
    assert (final.final, final.state) == (True, state or "silent")
    assert site.limits(site.gpus[0])[-1].reason == {"finished": "run_finished", "lost": "run_lost"}.get(
        state or "", "lease_ended"
    )


async def test_a_silent_run_that_comes_back_is_limited_again(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    training = Training(site)
    async with site.controlled():
        await training.train(400)
        await asyncio.sleep(120)
        assert gpu.requested_power_limit_w == PRIOR_W
        await training.train(600)
        assert gpu.requested_power_limit_w < PRIOR_W


async def test_without_permission_a_run_is_measured_and_published_and_nothing_is_written(tmp_path: Path) -> None:
    gpu = prior_gpu()
    gpu.errors = {"set_power_limit": GpuPermissionError("no", gpu_uuid=gpu.uuid, operation="set_power_limit", code=4)}
    site = Site(tmp_path, [gpu], FINE)
    training = Training(site)
    async with site.controlled():
        await training.train(900)
        training.publish_status("finished")
        await asyncio.sleep(30)
    assert gpu.history == []
    assert site.profiles()[-1].state == "observing"
    assert "no_permission" in [change.reason for change in site.limits(gpu)]
    assert site.energies()[-1].energy_j == pytest.approx(900 * 0.9 * PRIOR_W, rel=0.02)


async def test_a_partitioned_gpu_is_measured_and_never_written(tmp_path: Path) -> None:
    gpu = prior_gpu()
    gpu.mig = True
    site = Site(tmp_path, [gpu])
    async with site.controlled():
        await Training(site).train(900)
    assert gpu.history == []
    assert site.profiles()[-1].state == "observing"


@pytest.mark.parametrize("content", [b"{", b'{"version": 9, "gpus": {}}'])
async def test_with_a_journal_that_cannot_be_understood_no_gpu_is_touched(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    await _fails_with(site, JournalError)
    assert (gpu.history, site.bus.sent) == ([], [])
    assert (tmp_path / FILE_NAME).read_bytes() == content


async def test_without_a_writable_state_directory_no_gpu_is_touched(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    gpu = prior_gpu()
    gpu.errors = {"read_limit": lost(gpu)}
    site = Site(tmp_path / "file", [gpu])
    await _fails_with(site, JournalError)
    assert site.bus.sent == []


def read_only(_: Path, __: bytes, **_options: object) -> None:
    """Stand in for `replace_file` on a file system that is mounted read-only."""
    raise OSError(errno.EROFS, "Read-only file system")


async def test_where_the_state_directory_cannot_be_written_a_start_restores_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path / "state", [gpu])
    async with site.controlled():
        await Training(site).train(600)
        left_w = gpu.requested_power_limit_w
        leave_behind(tmp_path)
    gpu.set_externally(left_w)
    content = (tmp_path / "killed" / FILE_NAME).read_bytes()
    monkeypatch.setattr("controller.gpu.journal.storage.replace_file", read_only)
    after = Site(tmp_path / "killed", [gpu])
    for limit_w in (left_w, PRIOR_W, 222.0):  # left by the kill; restored, but still in the journal; somebody else's
        gpu.set_externally(limit_w)
        with pytest.raises(ExceptionGroup) as caught:
            await run_to_its_end(after)
        assert caught.group_contains(JournalError, match="Read-only file system; set node.state_dir")
        assert gpu.requested_power_limit_w == (222.0 if limit_w == 222.0 else PRIOR_W)
    assert (tmp_path / "killed" / FILE_NAME).read_bytes() == content


@pytest.mark.skipif(os.geteuid() != 0, reason="for other users it is closed")
async def test_a_state_directory_that_others_may_write_is_told_once_limits_are_restored(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path / "state", [gpu])
    async with site.controlled():
        await Training(site).train(600)
        left_w = gpu.requested_power_limit_w
        leave_behind(tmp_path)
    gpu.set_externally(left_w)
    os.chmod(tmp_path / "killed", 0o770)  # noqa: PTH101, S103 — this is the danger
    with pytest.raises(ExceptionGroup) as caught:
        await run_to_its_end(Site(tmp_path / "killed", [gpu]))
    assert caught.group_contains(JournalError, match="can be written by other users: check what it holds")
    assert gpu.requested_power_limit_w == PRIOR_W


async def run_to_its_end(site: Site) -> None:
    """Run a controller that ends by itself."""
    async with site.controlled():
        await asyncio.sleep(60)


async def test_one_damaged_entry_leaves_its_gpu_alone_and_the_other_is_restored(tmp_path: Path) -> None:
    gpus = two_gpus()
    site = Site(tmp_path / "state", gpus)
    async with site.controlled():
        await train_both(site, 600)
        left_w = [gpu.requested_power_limit_w for gpu in gpus]
        leave_behind(tmp_path)
    for gpu, limit_w in zip(gpus, left_w, strict=True):
        gpu.set_externally(limit_w)
    path = tmp_path / "killed" / FILE_NAME
    content = path.read_bytes().replace(
        b'"GPU-fake-1","entry":{"prior_power_limit_w":2', b'"GPU-fake-1","entry":{"prior_power_limit_w":1'
    )
    path.write_bytes(content)
    with pytest.raises(ExceptionGroup) as caught:
        await run_to_its_end(Site(tmp_path / "killed", gpus))
    assert caught.group_contains(JournalError, match="only those of GPU-fake-0 are sound")
    assert [gpu.requested_power_limit_w for gpu in gpus] == [PRIOR_W, left_w[1]]
    assert path.read_bytes() == content, "left for the operator to see"


async def test_a_second_controller_on_a_node_is_rejected_and_touches_nothing(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    with NodeLock(tmp_path):
        await _fails_with(site, NodeLockedError)
    assert (gpu.history, site.bus.sent) == ([], [])


async def test_a_start_waits_for_a_restore_by_hand(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    site, stop = Site(tmp_path, [prior_gpu()]), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        with NodeLock(tmp_path, restores=True):
            tasks.create_task(run_controller(site.node(), stop=stop))
            await asyncio.sleep(10)
            assert not site.backend.is_open
        assert caplog.text.count("waiting for it to restore limits") == 1
        await asyncio.sleep(2)
        assert node_state(site) == "online"
        stop.set()


async def test_a_restore_that_does_not_end_is_waited_for_a_minute_at_most(tmp_path: Path) -> None:
    began_s = asyncio.get_running_loop().time()
    with NodeLock(tmp_path, restores=True), pytest.raises(NodeLockedError):
        await run_controller(Site(tmp_path, [prior_gpu()]).node(), stop=asyncio.Event())
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(60, abs=1)


async def _fails_with(site: Site, kind: type[Exception]) -> None:
    """Run a controller that must fail before it opens the GPUs."""
    opened: list[bool] = []
    real_open = site.backend.open

    async def watched() -> object:
        opened.append(True)
        return await real_open()

    site.backend.open = watched  # type: ignore[method-assign, assignment]
    with pytest.raises(ExceptionGroup) as caught:
        await site.controlled().__aenter__()
    assert caught.group_contains(kind)
    assert opened == []
