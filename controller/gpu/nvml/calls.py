"""The calls into NVML: the only module that imports pynvml (nvidia-ml-py), and that uses milliwatts and millijoules.

They may block indefinitely, so they run in the GPU's thread. They write only the power limit: no persistence mode, no
clocks.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from controller.errors import DriverUnavailableError, GpuLimitError
from controller.gpu.nvml import errors
from controller.ports import LimitRange, LiveLimit, Sample

try:
    import pynvml
except ImportError:  # `initialise` is not reached then: `check_package` says what to do
    pynvml = None

PACKAGE_FILE: Final[str | None] = getattr(pynvml, "__file__", None)
"""Where `import pynvml` found it, or None where it is not installed."""

_MW_PER_W: Final = 1_000
_NS_PER_S: Final = 1_000_000_000
_MJ_PER_J: Final = 1_000
_MW_END: Final = 1 << 32
"""NVML takes 32-bit milliwatts; ctypes would wrap a larger number into a small, valid limit."""

# Field ids of nvml.h. Only the GPU scope (0) is read: on Grace Hopper, the module's power includes the CPU.
_FIELD_POWER_INSTANT: Final = 186
_FIELD_REQUESTED_LIMIT: Final = 192
_VALUE_OF_TYPE: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_ABSENT: Final = (errors.NOT_SUPPORTED, errors.FUNCTION_NOT_FOUND)
_UNSEEN: Final = (*_ABSENT, errors.NO_PERMISSION, errors.NO_DATA)

_TOLD: Final[set[str]] = set()
"""The functions whose failure was told; there are a dozen."""
_LOGGER = logging.getLogger(__name__)

T = TypeVar("T")
Handle = Any  # nvidia-ml-py has no types


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardInfo:
    """What is read of a GPU once, when it is opened."""

    handle: Handle
    index: int
    uuid: str
    model: str
    has_energy_counter: bool


def initialise() -> tuple[int, str]:
    """Open NVML and return the number of GPUs, and the versions for people.

    Raises:
        DriverUnavailableError: with what to do.
    """
    try:
        pynvml.nvmlInit()
        try:
            return _count(), _versions()
        except pynvml.NVMLError:
            pynvml.nvmlShutdown()
            raise
    except pynvml.NVMLError as error:
        raise DriverUnavailableError(errors.open_message(error.value, str(error))) from error


def count() -> int:
    """Return the number of GPUs that the driver lists now; no board is initialised for it."""
    return translate_errors("NVML", "count", _count)


def _count() -> int:
    return int(pynvml.nvmlDeviceGetCount())


def _versions() -> str:
    driver, library = as_text(pynvml.nvmlSystemGetDriverVersion()), as_text(pynvml.nvmlSystemGetNVMLVersion())
    return f"NVIDIA {driver} (NVML {library})"


def shut_down() -> None:
    """Close NVML."""
    translate_errors("NVML", "close", pynvml.nvmlShutdown)


def identify(index: int) -> BoardInfo:
    """Return what does not change while a GPU is open."""
    return translate_errors(f"GPU {index}", "open", lambda: _read_board(index))


def _read_board(index: int) -> BoardInfo:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    return BoardInfo(
        handle=handle,
        index=index,
        uuid=as_text(pynvml.nvmlDeviceGetUUID(handle)),
        model=as_text(pynvml.nvmlDeviceGetName(handle)),
        has_energy_counter=_has_energy_counter(handle),
    )


def _has_energy_counter(handle: Handle) -> bool:
    """Return whether the GPU has a counter, though it may not be readable just now."""
    try:
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except pynvml.NVMLError as error:
        if errors.is_gone(error.value):
            raise
        return error.value not in _ABSENT
    return True


def translate_errors(gpu_uuid: str, operation: str, work: Callable[[], T]) -> T:
    """Return what `work()` returns, with NVML errors as `GpuError`s."""
    try:
        return work()
    except pynvml.NVMLError as error:
        raise errors.gpu_error(error.value, str(error), gpu_uuid=gpu_uuid, operation=operation) from error


def _none_on(codes: tuple[int, ...], read: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 — NVML's own
    """Return what `read` returns, or None where it fails with one of `codes`."""
    try:
        return read(*arguments)
    except pynvml.NVMLError as error:
        if error.value not in codes:
            raise
        return None


def _none_unless_gone(read: Callable[[Handle], Any], handle: Handle) -> Any:  # noqa: ANN401 — NVML's own
    """Return what `read` returns, or None where it fails, unless that is because the GPU or its driver is gone.

    A failure of which nobody would think, such as an unknown error, is told once for each function.
    """
    try:
        return read(handle)
    except pynvml.NVMLError as error:
        if errors.is_gone(error.value):
            raise
        name = read.__name__.strip("_")
        if error.value not in _UNSEEN and name not in _TOLD:
            _TOLD.add(name)
            _LOGGER.warning("%s fails (NVML error %d, %s): its value is omitted", name, error.value, error)
        return None


def _read_field(handle: Handle, field: int) -> int | None:
    """Return a field value, or None where the GPU or its driver has none."""
    values = _none_on((*_UNSEEN, errors.INVALID_ARGUMENT), pynvml.nvmlDeviceGetFieldValues, handle, [field])
    if values is None or values[0].nvmlReturn or not 0 <= values[0].valueType < len(_VALUE_OF_TYPE):
        return None
    return int(getattr(values[0].value, _VALUE_OF_TYPE[values[0].valueType]))


def read_range(handle: Handle) -> LimitRange:
    """Return what the GPU accepts as power limit."""
    min_mw, max_mw = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
    default_mw = _none_unless_gone(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)
    return LimitRange(
        min_power_limit_w=min_mw / _MW_PER_W,
        max_power_limit_w=max_mw / _MW_PER_W,
        default_power_limit_w=None if default_mw is None else default_mw / _MW_PER_W,
    )


def read_limit(handle: Handle) -> LiveLimit:
    """Return the power limit in force; where other limiters cannot be seen, the requested one counts as enforced."""
    requested_mw = _read_field(handle, _FIELD_REQUESTED_LIMIT)
    if requested_mw is None:
        requested_mw = pynvml.nvmlDeviceGetPowerManagementLimit(handle)
    enforced_mw = _none_unless_gone(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    return LiveLimit(
        requested_power_limit_w=requested_mw / _MW_PER_W,
        enforced_power_limit_w=(requested_mw if enforced_mw is None else enforced_mw) / _MW_PER_W,
    )


def set_power_limit(board: BoardInfo, power_limit_w: float) -> None:
    """Write the limit [W]; the board itself checks its range, because that changes."""
    if not 0 < power_limit_w * _MW_PER_W < _MW_END - 1:
        message = f"{power_limit_w:g} W is no power limit: {errors.SET_ERRORS[errors.INVALID_ARGUMENT][1]}"
        raise GpuLimitError(message, gpu_uuid=board.uuid, operation="set_power_limit")
    try:
        pynvml.nvmlDeviceSetPowerManagementLimit(board.handle, round(power_limit_w * _MW_PER_W))
    except pynvml.NVMLError as error:
        what = f"{power_limit_w:g} W{_range_hint(board.handle) if error.value == errors.INVALID_ARGUMENT else ''}"
        raise errors.set_error(
            error.value, str(error), gpu_uuid=board.uuid, operation="set_power_limit", what=what
        ) from error


def _range_hint(handle: Handle) -> str:
    try:
        limits = read_range(handle)
    except pynvml.NVMLError:  # the rejection itself is what matters, and is being raised
        return ""
    return f", where the GPU accepts {limits.min_power_limit_w:g} to {limits.max_power_limit_w:g} W"


def read_sample(handle: Handle, *, has_energy_counter: bool) -> Sample:
    """Return the meters; the time is that of the energy reading, else that of the power reading.

    A reading that fails is None, unless neither energy nor power can be read: that raises the error of the power.
    """
    energy_mj, energy_ns, read_s = _read_timed(lambda: _read_energy_mj(handle) if has_energy_counter else None)
    read_power_mw = _read_powers_mw if energy_mj is None else _read_powers_mw_or_none
    (power_mw, instant_mw), power_ns, _ = _read_timed(lambda: read_power_mw(handle))
    utilization = _none_unless_gone(pynvml.nvmlDeviceGetUtilizationRates, handle)
    temperature = _none_unless_gone(_read_temperature_c, handle)
    return Sample(
        time_ns=power_ns if energy_mj is None else energy_ns,
        power_w=None if power_mw is None else power_mw / _MW_PER_W,
        energy_j=None if energy_mj is None else energy_mj / _MJ_PER_J,
        instant_power_w=None if instant_mw is None else instant_mw / _MW_PER_W,
        utilization_ratio=None if utilization is None else min(utilization.gpu / 100, 1.0),
        temperature_c=None if temperature is None else float(temperature),
        read_s=0.0 if energy_mj is None else read_s,
    )


def _read_powers_mw(handle: Handle) -> tuple[int | None, int | None]:
    """Return the present draw, and the same if it is that of an instant: the usual reading is a mean of 1 s."""
    instant_mw = _read_field(handle, _FIELD_POWER_INSTANT)
    return int(pynvml.nvmlDeviceGetPowerUsage(handle)) if instant_mw is None else instant_mw, instant_mw


def _read_powers_mw_or_none(handle: Handle) -> tuple[int | None, int | None]:
    powers_mw: tuple[int | None, int | None] | None = _none_unless_gone(_read_powers_mw, handle)
    return powers_mw or (None, None)


def _read_energy_mj(handle: Handle) -> int | None:
    energy_mj: int | None = _none_unless_gone(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle)
    return energy_mj


def _read_temperature_c(handle: Handle) -> int:
    # The first is on every driver there is but announced to go with CUDA 14; the second only on recent ones.
    read = getattr(pynvml, "nvmlDeviceGetTemperature", None) or pynvml.nvmlDeviceGetTemperatureV
    return int(read(handle, pynvml.NVML_TEMPERATURE_GPU))


def _read_timed(read: Callable[[], T]) -> tuple[T, int, float]:
    """Return a reading, the middle of the time it took [ns], and that time: some drivers need milliseconds [s]."""
    before_ns = time.monotonic_ns()
    value = read()
    after_ns = time.monotonic_ns()
    return value, (before_ns + after_ns) // 2, (after_ns - before_ns) / _NS_PER_S


def read_processes(handle: Handle) -> frozenset[int] | None:
    """Return the ids of the processes that compute on the GPU, or None where that cannot be seen.

    The driver lists clients of the Multi-Process Service (MPS) apart from others; older ones have no such list.
    """
    processes = _listed_processes("nvmlDeviceGetComputeRunningProcesses", handle)
    if processes is None:
        return None
    return processes | (_listed_processes("nvmlDeviceGetMPSComputeRunningProcesses", handle) or frozenset())


def _listed_processes(function: str, handle: Handle) -> frozenset[int] | None:
    """Return the ids of the processes in the newest of the driver's lists that is sane, or None where none is.

    Drivers before R510 have no third version; that of 535.54 fills it with entries of another size, and process 0.
    """
    for version in ("_v3", "_v2"):
        try:
            processes = getattr(pynvml, function + version)(handle)
        except pynvml.NVMLError as error:
            if error.value in _ABSENT:
                continue
            if error.value in _UNSEEN:
                return None
            raise
        pids = frozenset(int(process.pid) for process in processes)
        if 0 not in pids:
            return pids
        if function not in _TOLD:
            _TOLD.add(function)
            _LOGGER.warning("%s%s lists process 0, which is a fault of the driver: update it", function, version)
    return None


def read_mig(handle: Handle) -> bool:
    """Return whether the GPU is partitioned (MIG); a driver without MIG has none."""
    modes = _none_on(_ABSENT, pynvml.nvmlDeviceGetMigMode, handle)
    return modes is not None and modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE


def read_persistence(handle: Handle) -> bool | None:
    """Return whether persistence mode is on, or None where the driver does not say."""
    mode = _none_on(_UNSEEN, pynvml.nvmlDeviceGetPersistenceMode, handle)
    return None if mode is None else mode == pynvml.NVML_FEATURE_ENABLED


def as_text(name: bytes | str) -> str:
    """Return a text of NVML, which older bindings give as bytes."""
    return name.decode() if isinstance(name, bytes) else name
