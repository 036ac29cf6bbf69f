"""The tests' view of the stub's machine: set it up, disturb it, look at what was done to it.

The machine is a file that every process maps, so what a test changes here, the controller under test sees at once.
"""

import ctypes
import mmap
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from controller.gpu.simulation.measured_curve import MeasuredCurve, load_curve

_MAX_GPUS, _MAX_POINTS, _MAX_PIDS, _MAX_ENTRIES, _MAX_WRITES = 16, 64, 32, 40, 256
_EVERY_WRITE = 2**32 - 1
STATE_VARIABLE: Final = "GRIDCHASE_NVML_STUB"
LIBRARY_NAME: Final = "libnvidia-ml.so.1"


class _Hooks(ctypes.Structure):
    _fields_ = (
        ("calls", ctypes.c_uint64 * _MAX_ENTRIES),
        ("fail_code", ctypes.c_int32 * _MAX_ENTRIES),
        ("hang_ms", ctypes.c_uint32 * _MAX_ENTRIES),
    )


class _Point(ctypes.Structure):
    _fields_ = (("limit_mw", ctypes.c_uint32), ("power_mw", ctypes.c_uint32), ("iteration_ns", ctypes.c_uint64))


class _WriteFaults(ctypes.Structure):
    _fields_ = tuple(
        (word, ctypes.c_uint32) for word in ("delay_ms", "readback_delay_ms", "n_ignored", "min_mw", "max_mw")
    )


class _Write(ctypes.Structure):
    _fields_ = (("time_ns", ctypes.c_uint64), ("pid", ctypes.c_uint32), ("limit_mw", ctypes.c_uint32))


_GPU_WORDS = (
    *("index", "min_mw", "max_mw", "default_mw", "requested_mw", "external_mw"),
    *("is_writable", "has_energy_counter", "has_power_fields", "mig_mode", "is_persistent", "is_busy", "is_lost"),
    *(
        "temperature_c",
        "idle_power_mw",
        "told_power_mw",
        "is_counter_stuck",
        "has_wide_processes",
        "n_points",
        "n_pids",
    ),
)


class _Gpu(ctypes.Structure):
    _fields_ = (
        ("uuid", ctypes.c_char * 96),
        ("name", ctypes.c_char * 96),
        *((word, ctypes.c_uint32) for word in _GPU_WORDS),
        ("pids", ctypes.c_uint32 * _MAX_PIDS),
        ("points", _Point * _MAX_POINTS),
        ("hooks", _Hooks),
        ("counter_period_ns", ctypes.c_uint64),
        ("settled_ns", ctypes.c_uint64),
        ("energy_mj", ctypes.c_double),
        ("visible_energy_mj", ctypes.c_double),
        ("faults", _WriteFaults),
        *((word, ctypes.c_uint32) for word in ("pending_mw", "former_mw", "n_writes")),
        *((word, ctypes.c_uint64) for word in ("pending_ns", "former_until_ns")),
        ("writes", _Write * _MAX_WRITES),
    )


class _Machine(ctypes.Structure):
    _fields_ = (
        ("magic", ctypes.c_uint32),
        ("layout", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("n_gpus", ctypes.c_uint32),
        ("lock", ctypes.c_uint64 * 8),
        ("driver_version", ctypes.c_char * 80),
        ("nvml_version", ctypes.c_char * 80),
        ("hooks", _Hooks),
        ("gpus", _Gpu * _MAX_GPUS),
    )


class _Hooked:
    """Something whose NVML entry points can be disturbed and counted."""

    def __init__(self, hooks: _Hooks, entries: Sequence[str]) -> None:
        self._hooks = hooks
        self._entries = entries

    def fail(self, entry_point: str, code: int) -> None:
        """Make an entry point return an NVML code; 0 makes it work again."""
        self._hooks.fail_code[self._entries.index(entry_point)] = code

    def hang(self, entry_point: str, hang_ms: int) -> None:
        """Make an entry point hang; 0 ends that, also for calls that hang already."""
        self._hooks.hang_ms[self._entries.index(entry_point)] = hang_ms

    def calls(self, entry_point: str) -> int:
        """Return how often an entry point was called, by all processes."""
        return int(self._hooks.calls[self._entries.index(entry_point)])


class StubGpu(_Hooked):
    """One GPU of the machine."""

    def __init__(self, library: Any, machine: _Machine, index: int, entries: Sequence[str]) -> None:  # noqa: ANN401 — ctypes makes its functions as they are asked for
        self.raw = machine.gpus[index]
        super().__init__(self.raw.hooks, entries)
        self._library = library
        self._place = (ctypes.byref(machine), index)

    @property
    def uuid(self) -> str:
        """Return its UUID."""
        return str(self.raw.uuid.decode())

    @property
    def requested_power_limit_w(self) -> float:
        """Return the limit that was requested last, as far as the driver has carried it out [W]."""
        return float(self._library.stub_requested_mw(*self._place) / 1_000)

    @property
    def enforced_power_limit_w(self) -> float:
        """Return the limit in force [W]."""
        return float(self._library.stub_enforced_mw(*self._place) / 1_000)

    @property
    def power_w(self) -> float:
        """Return the present draw [W]."""
        return float(self._library.stub_power_mw(*self._place) / 1_000)

    def iteration_time_s(self) -> float:
        """Return how long an iteration takes at the present limit [s]."""
        return float(self._library.stub_iteration_ns(*self._place) / 1e9)

    def set_requested_power_limit_w(self, power_limit_w: float) -> None:
        """Request a limit as another writer would, without a call that is counted."""
        self._library.stub_set_requested(*self._place, round(power_limit_w * 1_000))

    def set_external_limit_w(self, power_limit_w: float | None) -> None:
        """Enforce a limit out of band, as a BMC does; None ends that."""
        self._library.stub_set_external(*self._place, round((power_limit_w or 0.0) * 1_000))

    def fault_writes(
        self,
        *,
        delay_ms: int = 0,
        readback_delay_ms: int = 0,
        n_ignored: int | None = 0,
        min_power_limit_w: float = 0.0,
        max_power_limit_w: float = 0.0,
    ) -> None:
        """Make writes that return SUCCESS faulty from now on; without arguments they are carried out again.

        Args:
            delay_ms: they take effect this much later [ms].
            readback_delay_ms: they take effect now, but the former limit is read back for this long [ms].
            n_ignored: how many of the next ones have no effect; None: all of them.
            min_power_limit_w: they are raised to this [W]; 0: they are not.
            max_power_limit_w: they are lowered to this [W]; 0: they are not.
        """
        faults = self.raw.faults
        faults.delay_ms, faults.readback_delay_ms = delay_ms, readback_delay_ms
        faults.n_ignored = _EVERY_WRITE if n_ignored is None else n_ignored
        faults.min_mw, faults.max_mw = round(min_power_limit_w * 1_000), round(max_power_limit_w * 1_000)

    @property
    def writes(self) -> list[tuple[int, float]]:
        """Return the newest accepted writes, oldest first: process id and limit [W]."""
        numbers = range(max(0, self.raw.n_writes - _MAX_WRITES), self.raw.n_writes)
        newest = [self.raw.writes[number % _MAX_WRITES] for number in numbers]
        return [(write.pid, write.limit_mw / 1_000) for write in newest]

    @property
    def lost(self) -> bool:
        """Return whether it fell off the bus: every call about it fails."""
        return bool(self.raw.is_lost)

    @lost.setter
    def lost(self, is_lost: bool) -> None:
        self.raw.is_lost = is_lost

    def reload_driver(self) -> None:
        """Set the limit to the default and the energy counter to zero, as loading the driver anew does."""
        self._library.stub_reload(*self._place)

    def reset_energy_counter(self) -> None:
        """Let the energy counter start at zero again."""
        self._library.stub_reset_energy(*self._place)

    @property
    def busy(self) -> bool:
        """Return whether a job computes on it."""
        return bool(self.raw.is_busy)

    @busy.setter
    def busy(self, is_busy: bool) -> None:
        self._library.stub_set_busy(*self._place, is_busy)

    @property
    def writable(self) -> bool:
        """Return whether a write is allowed (else NO_PERMISSION)."""
        return bool(self.raw.is_writable)

    @writable.setter
    def writable(self, is_writable: bool) -> None:
        self.raw.is_writable = is_writable

    @property
    def pids(self) -> frozenset[int]:
        """Return the processes that compute on it."""
        return frozenset(self.raw.pids[: self.raw.n_pids])

    @pids.setter
    def pids(self, pids: frozenset[int]) -> None:
        self.raw.pids[: len(pids)] = sorted(pids)
        self.raw.n_pids = len(pids)

    def set_mig(self, mode: bool | None) -> None:
        """Set the MIG mode; None: this GPU knows no MIG."""
        self.raw.mig_mode = 0 if mode is None else 1 + mode

    @property
    def set_calls(self) -> int:
        """Return how many writes of a power limit were tried, by all processes."""
        return self.calls("nvmlDeviceSetPowerManagementLimit")


class StubMachine(_Hooked):
    """The machine; `create` makes one in a file, `from_environment` opens the one of the parent process."""

    def __init__(self, library_file: Path, state_file: Path) -> None:
        self.library_file = library_file
        self.state_file = state_file
        self.library: Any = ctypes.CDLL(str(library_file), mode=ctypes.RTLD_GLOBAL)
        self.library.stub_entry_point.restype = ctypes.c_char_p
        self.library.stub_iteration_ns.restype = ctypes.c_uint64
        for name in ("stub_power_mw", "stub_requested_mw", "stub_enforced_mw"):
            getattr(self.library, name).restype = ctypes.c_uint32
        if self.library.stub_layout_bytes() != ctypes.sizeof(_Machine):
            raise AssertionError("machine.py and nvml_stub.c differ in their layout")
        with state_file.open("r+b") as file:
            self.raw = _Machine.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(_Machine)))
        names = (self.library.stub_entry_point(k) for k in range(_MAX_ENTRIES))
        self._names = [name.decode() for name in names if name is not None]
        super().__init__(self.raw.hooks, self._names)

    @classmethod
    def create(
        cls,
        library_file: Path,
        state_file: Path,
        *,
        n_gpus: int = 1,
        curve: MeasuredCurve | None = None,
        speedup_ratio: float = 1.0,
        counter_period_s: float = 0.1,
    ) -> "StubMachine":
        """Return a new machine of A40s whose jobs follow `curve` (default: an A40's), `speedup_ratio` times as fast."""
        state_file.write_bytes(bytes(ctypes.sizeof(_Machine)))
        machine = cls(library_file, state_file)
        machine_id = secrets.token_hex(4)  # GPUs are locked node-wide by their UUIDs: two test runs must not share them
        machine.raw.n_gpus = n_gpus
        machine.raw.driver_version, machine.raw.nvml_version = b"535.104.05", b"12.535.104.05"
        for index in range(n_gpus):
            gpu = machine.raw.gpus[index]
            gpu.uuid, gpu.name = f"GPU-{machine_id}-0000-4000-8000-{index:012d}".encode(), b"NVIDIA A40"
            gpu.index, gpu.min_mw, gpu.max_mw, gpu.default_mw, gpu.requested_mw = (
                index,
                100_000,
                300_000,
                300_000,
                300_000,
            )
            gpu.is_writable = gpu.has_energy_counter = gpu.has_power_fields = gpu.is_persistent = 1
            gpu.temperature_c, gpu.idle_power_mw, gpu.counter_period_ns = 41, 30_000, round(counter_period_s * 1e9)
            _fill_curve(gpu, curve or load_curve(), speedup_ratio)
        machine.library.stub_prepare(ctypes.byref(machine.raw))
        return machine

    @classmethod
    def from_environment(cls) -> "StubMachine":
        """Return the machine that `environment()` of the parent process names."""
        return cls(Path(os.environ["LD_LIBRARY_PATH"].split(":")[0]) / LIBRARY_NAME, Path(os.environ[STATE_VARIABLE]))

    def gpu(self, index: int = 0) -> StubGpu:
        """Return a GPU."""
        return StubGpu(self.library, self.raw, index, self._names)

    def environment(self) -> dict[str, str]:
        """Return what a child process needs in its environment so that pynvml finds this machine."""
        path = [str(self.library_file.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        return {"LD_LIBRARY_PATH": ":".join(path), STATE_VARIABLE: str(self.state_file)}


def _fill_curve(gpu: _Gpu, curve: MeasuredCurve, speedup_ratio: float) -> None:
    gpu.n_points = len(curve.power_limits_w)
    points = zip(gpu.points, curve.power_limits_w, curve.powers_w, curve.speeds_per_s, strict=False)  # room for more
    for point, power_limit_w, power_w, speed_per_s in points:
        point.limit_mw = round(power_limit_w * 1_000)
        point.power_mw = round(power_w * 1_000)
        point.iteration_ns = round(1e9 / (speed_per_s * speedup_ratio))
