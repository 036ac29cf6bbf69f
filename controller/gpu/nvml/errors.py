"""NVML return codes: what each means, and what to do about it.

Codes are those of nvml.h (nvmlReturn_t). Drivers also return codes that the documentation of a call does not list:
nvmlDeviceSetPowerManagementLimit does so with 4, NO_PERMISSION.
"""

from collections.abc import Mapping
from typing import Final

from controller.errors import GpuError, GpuLimitError, GpuLostError, GpuNotSupportedError, GpuPermissionError

INVALID_ARGUMENT: Final = 2
NOT_SUPPORTED: Final = 3
NO_PERMISSION: Final = 4
FUNCTION_NOT_FOUND: Final = 13
NO_DATA: Final = 21

_KERNEL_LOG = "see the kernel log (dmesg, Xid) and nvidia-smi"
_MISMATCH = "the driver was upgraded under a running system: reboot, or unload and reload the nvidia kernel modules"
_DEVICES = "check that the device files /dev/nvidia* are there and that this process or container may open them"

CALL_ERRORS: Final[Mapping[int, tuple[type[GpuError], str]]] = {
    1: (GpuError, "NVML is closed"),
    INVALID_ARGUMENT: (GpuError, "NVML refuses an argument; the driver may be too old for this call"),
    NOT_SUPPORTED: (GpuNotSupportedError, "this GPU or its driver does not offer it"),
    NO_PERMISSION: (GpuPermissionError, f"this process may not do this; {_DEVICES}"),
    8: (GpuError, "external power cables are not attached to the board"),
    9: (GpuLostError, "the NVIDIA driver is no longer loaded; load it, then restart the controller"),
    10: (GpuError, "the driver gave up waiting; it is tried again"),
    11: (GpuError, f"the kernel reports an interrupt problem with the GPU; {_KERNEL_LOG}"),
    FUNCTION_NOT_FOUND: (GpuNotSupportedError, "the installed driver is too old for this call"),
    15: (GpuLostError, f"the GPU has fallen off the bus; reboot the node; {_KERNEL_LOG}"),
    16: (GpuLostError, "the GPU needs a reset: nvidia-smi --gpu-reset, or reboot the node"),
    17: (GpuError, f"the operating system blocks it (cgroup, container); {_DEVICES}"),
    18: (GpuError, _MISMATCH),
    19: (GpuError, "the GPU is in use by another client of the driver; it is tried again"),
    NO_DATA: (GpuError, "the driver has no reading at the moment; it is tried again"),
    27: (GpuError, "the GPU is not ready; it is tried again"),
    28: (GpuLostError, f"the GPU is no longer there; {_KERNEL_LOG}"),
    999: (GpuError, f"the driver failed without saying why; {_KERNEL_LOG}"),
}

SET_ERRORS: Final[Mapping[int, tuple[type[GpuError], str]]] = {
    INVALID_ARGUMENT: (GpuLimitError, "check gpu.min_power_limit_w and gpu.max_power_limit_w"),
    NOT_SUPPORTED: (GpuNotSupportedError, "this GPU's power limit cannot be set (laptop, vGPU): it is only observed"),
    NO_PERMISSION: (
        GpuPermissionError,
        "needs CAP_SYS_ADMIN: run the controller as its systemd unit does, or its container with --cap-add SYS_ADMIN",
    ),
}

OPEN_ERRORS: Final[Mapping[int, str]] = {
    NO_PERMISSION: f"this process may not talk to the driver; {_DEVICES}",
    9: "the NVIDIA driver is not loaded: run modprobe nvidia, and see dmesg if that fails",
    12: "libnvidia-ml.so.1 is missing: install the NVIDIA driver, or give the container access to it (--gpus all)",
    FUNCTION_NOT_FOUND: "libnvidia-ml.so.1 is too old: install a newer NVIDIA driver",
    17: f"the operating system blocks it (cgroup, container); {_DEVICES}",
    18: _MISMATCH,
}


def is_gone(code: int) -> bool:
    """Return whether it is the GPU or its driver that fails, whatever is asked of it."""
    return CALL_ERRORS.get(code, (GpuError, ""))[0] is GpuLostError


def gpu_error(code: int, text: str, *, gpu_uuid: str, operation: str) -> GpuError:
    """Return the error for NVML's return code `code`, whose own name is `text`."""
    kind, advice = CALL_ERRORS.get(code, (GpuError, _KERNEL_LOG))
    return kind(f"{text} (NVML error {code}): {advice}", gpu_uuid=gpu_uuid, operation=operation, code=code)


def set_error(code: int, text: str, *, gpu_uuid: str, operation: str, what: str) -> GpuError:
    """Return the error for `code` from a write; `what` says what was asked, and what the GPU accepts."""
    kind, advice = SET_ERRORS.get(code) or CALL_ERRORS.get(code, (GpuError, _KERNEL_LOG))
    return kind(f"{what}: {text} (NVML error {code}): {advice}", gpu_uuid=gpu_uuid, operation=operation, code=code)


def open_message(code: int, text: str) -> str:
    """Return why NVML as a whole cannot be opened, and what to do."""
    return f"cannot open NVML: {text} (NVML error {code}): {OPEN_ERRORS.get(code, _KERNEL_LOG)}"
