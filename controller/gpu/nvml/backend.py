"""The GPUs of this node through NVML: each has threads of its own, and every call a deadline.

The library stays open as long as the backend is, because without persistence mode the driver forgets every limit when
its last client leaves.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final, TypeVar

from controller.errors import BackendError, ControllerError, DriverUnavailableError, GpuError, GpuSuspectError
from controller.gpu.nvml import calls
from controller.gpu.nvml.driver_thread import DriverThread
from controller.ports import UNLISTED, LimitRange, LiveLimit, Sample

OPEN_TIMEOUT_S: Final = 30.0
"""The first client of a driver without persistence mode initialises the boards: seconds for each."""
READ_TIMEOUT_S: Final = 2.0
WRITE_TIMEOUT_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 5.0
MAX_STUCK_THREADS: Final = 8
"""While so many are left in calls to boards whose index has passed to another one, no board is identified anew."""
_REINSTALL: Final = "pip uninstall pynvml, then pip install --force-reinstall nvidia-ml-py"

T = TypeVar("T")

_LOGGER = logging.getLogger(__name__)


@dataclass(slots=True)
class _AbsentGpu:
    """A GPU that does not answer yet. It keeps its thread: a call may hang there, and no second one may join it."""

    thread: DriverThread
    fault: GpuError


class NvmlBackend:
    """The NVIDIA GPUs of this node; obeys `Backend`.

    Attributes:
        driver: the versions of driver and library, such as `NVIDIA 535.104.05 (NVML 12.535.104.05)`.
    """

    def __init__(
        self,
        *,
        open_timeout_s: float = OPEN_TIMEOUT_S,
        read_timeout_s: float = READ_TIMEOUT_S,
        write_timeout_s: float = WRITE_TIMEOUT_S,
    ) -> None:
        self.driver = "NVIDIA (not open)"
        self._open_timeout_s = open_timeout_s
        self._read_timeout_s = read_timeout_s
        self._write_timeout_s = write_timeout_s
        self._thread: DriverThread | None = None
        """That of the driver as a whole, from the first try to open it on."""
        self._fault: DriverUnavailableError | None = None
        self._is_open = False
        self._n_listed = 0
        self._gpus: list[NvmlGpu] = []
        self._absent: dict[int, _AbsentGpu] = {}
        self._stuck: list[DriverThread] = []
        """In calls to absent GPUs whose index has passed to another board; closed, they end with their calls."""

    @property
    def faults(self) -> Sequence[ControllerError]:
        """Return why the driver, or some of its GPUs, do not answer yet."""
        absent = [gpu.fault for gpu in self._absent.values()]
        return absent if self._fault is None else [self._fault, *absent]

    async def open(self) -> "Sequence[NvmlGpu]":
        """Return the GPUs that answer.

        Raises:
            DriverUnavailableError: there is no driver, or no library, or it does not answer.
            BackendError: it is the wrong Python package, or open already.
        """
        if self._is_open:
            raise BackendError("NVML is open already: close it first")
        _check_package(calls.PACKAGE_FILE)
        self._thread = self._thread or DriverThread("NVML")
        try:
            self._n_listed, self.driver = await self._thread.call(
                "open", calls.initialise, timeout_s=self._open_timeout_s
            )
        except GpuSuspectError as error:
            self._fault = DriverUnavailableError(f"{error}; the driver hangs: see the kernel log (dmesg, Xid)")
            raise self._fault from error
        except DriverUnavailableError as error:
            self._fault = error
            raise
        self._is_open = True
        self._fault = None if self._n_listed else DriverUnavailableError("the driver counts no GPU")
        for index in range(self._n_listed):
            await self._open_gpu(index)
        return tuple(self._gpus)

    async def open_late(self) -> "Sequence[NvmlGpu]":
        """Return the GPUs that answer now, and did not before; does not fail: `faults` tells of the others."""
        if self._is_open and not self._gpus and not self._absent:  # it counts again when it is opened
            await self._shut_down()
        if not self._is_open:
            try:
                return await self.open()
            except BackendError:
                return ()
        n_before, n_listed = len(self._gpus), self._n_listed
        found = [await self._open_gpu(index) for index in await self._unknown_indices()]
        if n_listed != self._n_listed:
            for gpu in self._gpus:
                gpu.index = gpu.index if gpu.uuid in found else UNLISTED
        return tuple(self._gpus[n_before:])

    async def _unknown_indices(self) -> Sequence[int]:
        """Return the indices at which a GPU may be that is not open: all, where the driver's list has changed.

        A process that has NVML open sees its list change, and the indices with it (nvmlDeviceDiscoverGpus says so). To
        open NVML anew would take every handle and, without persistence mode, every limit. Where a driver shows a board
        to new clients alone, it is taken at the next start. While a known GPU is suspect, a changed list waits: its new
        index is not known, and nothing more may be sent to it.
        """
        n_listed = self._n_listed
        if self._thread is not None:
            with suppress(GpuError):
                n_listed = await self._thread.call("count", calls.count, timeout_s=self._read_timeout_s)
        if n_listed == self._n_listed:
            return tuple(self._absent)
        self._stuck = [thread for thread in self._stuck if thread.is_stuck]
        if any(gpu.is_suspect for gpu in self._gpus) or len(self._stuck) >= MAX_STUCK_THREADS:
            return ()
        self._n_listed = n_listed
        moved = [index for index, gpu in self._absent.items() if index >= n_listed or gpu.thread.is_stuck]
        threads = [self._absent.pop(index).thread for index in moved]
        for thread in threads:
            thread.close()
        self._stuck += [thread for thread in threads if thread.is_stuck]
        return range(n_listed)

    async def _open_gpu(self, index: int) -> str:
        """Open the GPU at an index, unless it is known; return its UUID, or "" where it does not answer."""
        absent = self._absent.get(index)
        thread = absent.thread if absent else DriverThread(f"GPU {index}")
        try:
            board = await thread.call("open", lambda: calls.identify(index), timeout_s=self._open_timeout_s)
        except GpuError as error:
            self._absent[index] = _AbsentGpu(thread, error)
            if absent is None:
                _LOGGER.error("GPU %d is not managed until it answers: %s", index, error)
            return ""
        self._absent.pop(index, None)
        known = next((gpu for gpu in self._gpus if gpu.uuid == board.uuid), None)
        if known is not None:
            known.index = index
            thread.close()
            return board.uuid
        thread.label = board.uuid
        gpu = NvmlGpu(board, thread, read_timeout_s=self._read_timeout_s, write_timeout_s=self._write_timeout_s)
        self._gpus.append(gpu)
        return board.uuid

    async def close(self) -> None:
        """Close the driver; does not fail. While a call is overdue, the library stays loaded until the process ends."""
        gpus, self._gpus = self._gpus, []
        absent, self._absent = self._absent, {}
        threads = [*(gpu.thread for gpu in absent.values()), *self._stuck]
        is_hung = any(gpu.is_suspect for gpu in gpus) or any(thread.is_stuck for thread in threads)
        for gpu in gpus:
            gpu.close()
        for waiting in threads:
            waiting.close()
        if not is_hung:
            await self._shut_down()
        thread, self._thread, self._is_open, self._fault = self._thread, None, False, None
        if thread is not None:
            thread.close()

    async def _shut_down(self) -> None:
        if self._is_open and self._thread is not None:
            self._is_open = False
            try:
                await self._thread.call("close", calls.shut_down, timeout_s=CLOSE_TIMEOUT_S)
            except GpuError as error:
                _LOGGER.warning("NVML was not closed: %s", error)


class NvmlGpu:
    """One NVIDIA GPU; obeys `Gpu`.

    Attributes:
        uuid: its identity, `GPU-…`.
        index: NVML's index: PCI order, not that of CUDA_VISIBLE_DEVICES; it changes with the driver's list (`UNLISTED`:
            it has left that).
        model: such as `NVIDIA A40`.
    """

    def __init__(
        self, board: calls.BoardInfo, thread: DriverThread, *, read_timeout_s: float, write_timeout_s: float
    ) -> None:
        self.uuid = board.uuid
        self.index = board.index
        self.model = board.model
        self._board = board
        self._thread = thread
        self._meter_thread = DriverThread(board.uuid)
        """No limit waits for an energy counter: to read it may take 100 ms, or for ever."""
        self._read_timeout_s = read_timeout_s
        self._write_timeout_s = write_timeout_s

    @property
    def is_suspect(self) -> bool:
        """Return whether a call is overdue."""
        return self._thread.is_stuck or self._meter_thread.is_stuck

    async def read_range(self) -> LimitRange:
        """Return what it accepts as power limit."""
        return await self._read("read_range", calls.read_range)

    async def read_limit(self) -> LiveLimit:
        """Return the power limit in force."""
        return await self._read("read_limit", calls.read_limit)

    async def set_power_limit(self, power_limit_w: float) -> None:
        """Request a power limit [W].

        Raises:
            GpuLimitError: it lies outside what the GPU accepts.
            GpuPermissionError: this process may not write.
        """
        board = self._board
        await self._thread.call(
            "set_power_limit", lambda: calls.set_power_limit(board, power_limit_w), timeout_s=self._write_timeout_s
        )

    async def read_sample(self) -> Sample:
        """Return its meters; the time is that of the energy reading, or of the power reading where no counter is."""
        return await self._read(
            "read_sample",
            lambda handle: calls.read_sample(handle, has_energy_counter=self._board.has_energy_counter),
            is_of_meters=True,
        )

    async def read_power(self) -> Sample:
        """Return its meters but for the energy counter."""
        return await self._read(
            "read_power", lambda handle: calls.read_sample(handle, has_energy_counter=False), is_of_meters=True
        )

    async def read_processes(self) -> frozenset[int] | None:
        """Return the ids of the processes that compute on it, or None where that cannot be seen.

        NVML lists ids of the host: a container with its own pid namespace may see none, though some run.
        """
        return await self._read("read_processes", calls.read_processes)

    async def read_mig(self) -> bool:
        """Return whether it is partitioned (MIG)."""
        return await self._read("read_mig", calls.read_mig)

    async def read_persistence(self) -> bool | None:
        """Return whether the driver keeps the limit when its last client leaves, or None where it does not say."""
        return await self._read("read_persistence", calls.read_persistence)

    def close(self) -> None:
        """End its threads; does not wait."""
        self._thread.close()
        self._meter_thread.close()

    async def _read(self, operation: str, read: Callable[[calls.Handle], T], *, is_of_meters: bool = False) -> T:
        board, thread = self._board, self._thread
        if is_of_meters:
            thread.reject_when_stuck(operation)
            thread = self._meter_thread
        return await thread.call(
            operation,
            lambda: calls.translate_errors(board.uuid, operation, lambda: read(board.handle)),
            timeout_s=self._read_timeout_s,
        )


def _check_package(module_file: str | None) -> None:
    """Check that the module `pynvml`, loaded from `module_file` (None: it is missing), is NVIDIA's own.

    Up to version 11, the package called pynvml on PyPI brings a `pynvml/` of its own, which hides NVIDIA's `pynvml.py`
    where both are installed. From version 12 on it only depends on nvidia-ml-py and is harmless. So it does not matter
    which packages are installed, but which one the module comes from.

    Raises:
        BackendError: it is missing, or it is another one.
    """
    if module_file is None:
        raise BackendError("the Python package nvidia-ml-py is not installed: pip install nvidia-ml-py")
    official = _find_package("nvidia-ml-py")
    if official is not None and _resolved(official.locate_file("pynvml.py")) == _resolved(module_file):
        return
    other = _find_package("pynvml")
    origin = f"the unofficial package pynvml {other.version}" if other is not None else "a package of unknown origin"
    raise BackendError(f"`import pynvml` gives {module_file}, from {origin}; NVIDIA's is needed: {_REINSTALL}")


def _find_package(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _resolved(file: object) -> Path:
    return Path(str(file)).resolve()
