"""`gridchase restore`: `--forget` strikes the entry of a board that is gone, and no other; an old copy is removed."""

import asyncio
import errno
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from controller.cli.main import main
from controller.cli.restore import forget, restore
from controller.config import Config, NodeConfig
from controller.errors import BackendError, ConfigError, DriverUnavailableError, JournalError, NodeLockedError
from controller.gpu.journal.entry import JournalEntry
from controller.gpu.journal.storage import Journal, copy_path_of
from controller.gpu.node_lock import NodeLock
from tests.controller.cli.test_main import FailingBackend, arguments
from tests.fakes import FakeBackend, FakeGpu

GONE, OTHER = "GPU-that-is-gone", "GPU-that-stays"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Return the configuration of a node whose journal names two boards."""
    asyncio.run(_leave_limits(tmp_path))
    return Config(node=NodeConfig(state_dir=str(tmp_path)))


async def _leave_limits(state_dir: Path) -> None:
    journal = await Journal.load(state_dir)
    for uuid, written_w in ((GONE, 150.0), (OTHER, 200.0)):
        entry = JournalEntry(prior_power_limit_w=280.0, written_power_limits_w=(written_w,), written_at_s=0.0)
        await journal.record(uuid, entry)


def _driver(monkeypatch: pytest.MonkeyPatch, backend: FakeBackend) -> FakeBackend:
    monkeypatch.setattr("controller.cli.restore.backend_of", lambda *_: backend)
    return backend


@pytest.mark.parametrize("lost", ["", "the file", "the copy"])
def test_a_board_that_is_gone_is_struck_from_every_copy_of_the_journal(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lost: str
) -> None:
    file, copy = tmp_path / "journal.json", copy_path_of(tmp_path)
    assert copy is not None
    (file if lost == "the file" else copy).unlink() if lost else None
    stays = FakeGpu(OTHER)
    stays.requested_power_limit_w = 200.0
    backend = _driver(monkeypatch, FakeBackend([stays]))
    assert forget(config, GONE) == 0
    assert GONE.encode() not in file.read_bytes() + copy.read_bytes()
    assert OTHER.encode() in file.read_bytes()
    assert OTHER.encode() in copy.read_bytes()
    assert f"{GONE}: forgotten: it was left at 150 W, instead of its prior limit 280 W" in capsys.readouterr().out
    assert (stays.history, backend.is_open) == ([], False)


@pytest.mark.parametrize("absent", [frozenset(), frozenset({GONE})])
def test_a_board_that_may_be_there_is_not_forgotten(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absent: frozenset[str]
) -> None:
    backend = _driver(monkeypatch, FakeBackend([FakeGpu(GONE)]))
    backend.absent = set(absent)
    with pytest.raises(
        ConfigError, match="does not answer" if absent else f"run `gridchase restore --set node.state_dir={tmp_path}`"
    ):
        forget(config, GONE)
    assert (GONE in Journal.read(tmp_path).entries, backend.is_open) == (True, False)


def test_no_board_is_forgotten_where_the_driver_cannot_be_asked(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _driver(monkeypatch, FailingBackend(DriverUnavailableError("the driver is not loaded")))
    with pytest.raises(BackendError, match="not loaded"):
        forget(config, GONE)
    assert GONE in Journal.read(tmp_path).entries


def test_a_board_that_the_journal_does_not_name_is_told(config: Config) -> None:
    with pytest.raises(ConfigError, match=rf"--forget GPU-typo: .* there is {GONE}, {OTHER}"):
        forget(config, "GPU-typo")


def test_no_board_is_forgotten_while_a_controller_runs(config: Config, tmp_path: Path) -> None:
    with NodeLock(tmp_path), pytest.raises(NodeLockedError):
        forget(config, GONE)
    assert GONE in Journal.read(tmp_path).entries


def test_no_board_is_forgotten_that_another_controller_holds(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _driver(monkeypatch, FakeBackend([]))
    with NodeLock(tmp_path / "theirs") as lock:
        lock.lock_gpus([GONE])
        with pytest.raises(NodeLockedError, match=GONE):
            forget(config, GONE)
    assert GONE in Journal.read(tmp_path).entries


def test_a_damaged_journal_is_left_as_it_is(config: Config, tmp_path: Path) -> None:
    path = tmp_path / "journal.json"
    content = path.read_bytes().replace(b"200.0", b"201.0")
    path.write_bytes(content)
    with pytest.raises(JournalError, match="is damaged"):
        forget(config, GONE)
    assert path.read_bytes() == content


@pytest.mark.usefixtures("config")
def test_the_verb_forgets_a_board_and_restores_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _driver(monkeypatch, FakeBackend([]))
    restoring = arguments("restore", tmp_path, "gpu.backend=nvml")
    assert main(restoring) == 1
    assert f"`gridchase restore --set node.state_dir={tmp_path} --forget {GONE}`" in capsys.readouterr().out
    assert main([*restoring, "--forget", GONE]) == 0
    assert main([*restoring, "--forget", GONE]) == 2
    assert Journal.read(tmp_path).entries.keys() == {OTHER}


@pytest.mark.usefixtures("config")
def test_a_simulation_forgets_no_board_and_advises_it_for_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments("restore", tmp_path)) == 1
    shown = capsys.readouterr().out
    assert f"{GONE}: failed: the simulation does not list it" in shown
    assert "--forget" not in shown
    assert main([*arguments("restore", tmp_path), "--forget", GONE]) == 2
    assert "gpu.backend is simulation" in capsys.readouterr().err
    assert Journal.read(tmp_path).entries.keys() == {GONE, OTHER}


def test_no_board_is_forgotten_while_the_driver_counts_none(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Empty(FakeBackend):
        faults = (DriverUnavailableError("the driver counts no GPU"),)

    _driver(monkeypatch, Empty([]))
    with pytest.raises(ConfigError, match="counts no GPU"):
        forget(config, GONE)
    assert GONE in Journal.read(tmp_path).entries


def test_a_board_that_a_full_disk_does_not_forget_stays_in_the_copy_too(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _driver(monkeypatch, FakeBackend([]))
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_replace", _full)
        with pytest.raises(JournalError, match="No space left"):
            forget(config, GONE)
    assert Journal.read(tmp_path).entries.keys() == {GONE, OTHER}
    assert forget(config, GONE) == 0


@pytest.mark.parametrize("is_running", [False, True])
def test_a_restore_removes_a_copy_that_is_older_than_the_empty_journal(
    config: Config, tmp_path: Path, *, is_running: bool
) -> None:
    copy = copy_path_of(tmp_path)
    assert copy is not None
    content = copy.read_bytes()
    asyncio.run(_empty_the_journal(tmp_path))
    copy.write_bytes(content)
    with NodeLock(tmp_path) if is_running else nullcontext():
        assert restore(config) == 0
    assert copy.exists() is is_running, "a running controller replaces it"


def test_a_copy_that_is_newer_than_the_disk_stays_though_it_is_empty(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_replace", _full)
        for _ in range(2):
            with suppress(JournalError):
                asyncio.run(_empty_the_journal(tmp_path))
    assert restore(config) == 0
    assert Journal.read(tmp_path).entries == {}, "what is on the disk was restored before"


def _full(_: Journal, __: bytes) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


async def _empty_the_journal(state_dir: Path) -> None:
    journal = await Journal.load(state_dir)
    for uuid in (GONE, OTHER):
        await journal.forget(uuid)
