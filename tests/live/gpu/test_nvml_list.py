"""NVML's list of boards, which changes while it is open: the real pynvml on a stub library."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from controller.errors import GpuSuspectError
from controller.gpu.nvml import backend as nvml
from controller.gpu.nvml import calls
from controller.gpu.nvml.backend import NvmlBackend
from controller.ports import UNLISTED
from tests.live.nvml_stub.backend import LONG_HANG_MS, POWER
from tests.live.nvml_stub.machine import STATE_VARIABLE, StubMachine

pytestmark = pytest.mark.live
UUID = "nvmlDeviceGetUUID"


@pytest.fixture
def boards(nvml_in_process: StubMachine, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubMachine]:
    """Return a machine of the boards A, B and C; what hangs there ends with the test."""
    machine = StubMachine.create(nvml_in_process.library_file, nvml_in_process.state_file.with_name("three"), n_gpus=3)
    monkeypatch.setenv(STATE_VARIABLE, str(machine.state_file))
    _list(machine, "A", "B", "C")
    yield machine
    for index in range(3):
        machine.gpu(index).hang(UUID, 0)
        machine.gpu(index).hang(POWER, 0)


def _list(machine: StubMachine, *uuids: str) -> None:
    for index, uuid in enumerate(uuids):
        machine.raw.gpus[index].uuid = uuid.encode()
    machine.raw.n_gpus = len(uuids)


@asynccontextmanager
async def _open(**timeouts_s: float) -> AsyncIterator[NvmlBackend]:
    backend = NvmlBackend(**timeouts_s)
    try:
        yield backend
    finally:
        await backend.close()


async def test_a_board_that_leaves_the_list_unopened_is_waited_for_no_more(boards: StubMachine) -> None:
    boards.gpu(2).fail(UUID, 15)
    async with _open() as backend:
        assert len(await backend.open()) == 2
        assert len(backend.faults) == 1
        _list(boards, "A", "B")
        assert list(await backend.open_late()) == []
        assert list(backend.faults) == []


async def test_a_board_that_has_left_keeps_no_index_until_it_is_back(boards: StubMachine) -> None:
    async with _open() as backend:
        gpus = await backend.open()
        _list(boards, "B", "C")
        assert list(await backend.open_late()) == []
        assert [gpu.index for gpu in gpus] == [UNLISTED, 0, 1]
        _list(boards, "A", "B", "C")
        assert list(await backend.open_late()) == []
        assert [gpu.index for gpu in gpus] == [0, 1, 2]


async def test_a_board_that_hangs_unopened_blocks_no_other_that_gets_its_index(
    boards: StubMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, identify = threading.Event(), calls.identify

    def identify_all_but_b(index: int) -> calls.BoardInfo:
        if boards.gpu(index).uuid == "B":
            answers.wait(LONG_HANG_MS / 1_000)
        return identify(index)

    monkeypatch.setattr(calls, "identify", identify_all_but_b)
    monkeypatch.setattr(nvml, "MAX_STUCK_THREADS", 1)
    async with _open(open_timeout_s=0.3) as backend:
        gpus = await backend.open()
        assert [gpu.uuid for gpu in gpus] == ["A", "C"]
        _list(boards, "A", "C")
        assert list(await backend.open_late()) == []
        assert ([gpu.index for gpu in gpus], list(backend.faults)) == ([0, 1], [])
        _list(boards, "A")
        assert list(await backend.open_late()) == []
        assert [gpu.index for gpu in gpus] == [0, 1], "only so many threads are left in calls"
    assert boards.calls("nvmlShutdown") == 0, "not while a call is overdue"
    answers.set()


async def test_no_board_is_identified_anew_while_a_known_one_hangs(boards: StubMachine) -> None:
    _list(boards, "A", "B")
    async with _open(read_timeout_s=0.3) as backend:
        hanging, _ = await backend.open()
        n_asked = boards.gpu(0).calls(UUID)
        boards.gpu(0).hang(POWER, LONG_HANG_MS)
        with pytest.raises(GpuSuspectError):
            await hanging.read_sample()
        _list(boards, "A", "B", "C")
        n_threads = threading.active_count()
        assert list(await backend.open_late()) == []
        assert (boards.gpu(0).calls(UUID), threading.active_count()) == (n_asked, n_threads)
        boards.gpu(0).hang(POWER, 0)
        while hanging.is_suspect:  # noqa: ASYNC110 — a thread has no event to wait for
            await asyncio.sleep(0.005)
        (late,) = await backend.open_late()
        assert (late.uuid, late.index) == ("C", 2)
