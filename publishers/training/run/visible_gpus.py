"""Which GPUs a process sees, from its environment: by UUID, or by index on its node.

CUDA counts its devices in an order of its own, and a container counts its GPUs from 0, in its own order, too: there an
index names a GPU only where it has but one (`NVIDIA_VISIBLE_DEVICES`). What is not known is not guessed.
"""

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from publishers.messages.codec import GpuRef
from publishers.training.coerce import to_int, to_text

VARIABLES: Final = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
MAX_INDEX: Final = 1_023
_CUDA_DEVICE: Final = re.compile(r"cuda(:[0-9]{1,4})?")
_MAX_CHARACTERS: Final = 96


class VisibleGpus(NamedTuple):
    """The GPUs that CUDA and the container show a process.

    Attributes:
        by_cuda: those in `CUDA_VISIBLE_DEVICES`, in this order; None where it is not set.
        by_container: those in `NVIDIA_VISIBLE_DEVICES`; None where it says nothing, or that all are visible.
        is_in_bus_order: whether CUDA counts in the order of the bus, as the node does.
    """

    by_cuda: tuple[GpuRef, ...] | None
    by_container: tuple[GpuRef, ...] | None
    is_in_bus_order: bool

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> "VisibleGpus":
        """Return what the environment says."""
        by_cuda, by_container = (environ.get(name) for name in VARIABLES)
        says_all = by_container is None or by_container.strip() in {"", "all", "void", "none"}
        return cls(
            by_cuda=None if by_cuda is None else _listed(by_cuda),
            by_container=None if by_container is None or says_all else _listed(by_container),
            is_in_bus_order=environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID",
        )

    def of_rank(self, local_rank: int | None, *, world_size: int) -> tuple[GpuRef, ...]:
        """Return the GPUs of a rank, as far as they are known.

        Where several are visible, it uses the one at the place of its `LOCAL_RANK`; without one a process that trains
        alone uses them all.

        Raises:
            IndexError: there is no GPU at that place.
        """
        visible = self.by_cuda
        if visible is None:
            return self._named((0,)) if self.by_container is not None else ()
        if len(visible) > 1:
            if local_rank is not None:
                visible = (visible[local_rank],)
            elif world_size > 1:
                return ()
        return self._named(visible)

    def named(self, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return given GPUs with those behind devices of CUDA; none where one of these is not known."""
        if not any(map(_is_cuda_device, given)):
            return given
        devices = self._cuda_devices()
        gpus = [_gpu_of(gpu, devices) if _is_cuda_device(gpu) else gpu for gpu in given]
        return () if any(gpu is None for gpu in gpus) else tuple(gpus)

    def _cuda_devices(self) -> tuple[GpuRef, ...]:
        """Return the GPUs in the order in which CUDA counts them, as far as it is known."""
        if self.by_cuda is None and self.by_container is None:
            return tuple(range(MAX_INDEX + 1)) if self.is_in_bus_order else ()
        return self._named((0,) if self.by_cuda is None else self.by_cuda)

    def _named(self, visible: tuple[GpuRef, ...]) -> tuple[GpuRef, ...]:
        """Return visible GPUs by what names them on the node; none where a container's index does not."""
        inside = self.by_container
        if inside is None or not any(isinstance(gpu, int) for gpu in visible):
            return visible
        return inside if len(inside) == 1 and visible == (0,) else ()


def plain_gpus(value: object) -> tuple[Any, ...]:
    """Return GPUs that a training has passed in plain types, as far as they have any; the bus' format checks them."""
    given: tuple[object, ...] = (value,)
    if not isinstance(value, str):
        with contextlib.suppress(TypeError):  # one GPU
            given = tuple(value)  # type: ignore[arg-type]
    return tuple(_plain_gpu(gpu) for gpu in given)


def has_loaded_cuda(maps: Path) -> bool:
    """Return whether the process with this memory map has loaded CUDA's driver library; True if that is unknown.

    Frameworks load it when they first look for a GPU, so a process that only computes on the CPU does not have it.
    """
    try:
        return b"/libcuda.so" in maps.read_bytes()
    except OSError:
        return True


def _plain_gpu(gpu: object) -> object:
    if isinstance(gpu, str):
        return str(gpu)
    if _is_cuda_device(text := to_text(gpu, _MAX_CHARACTERS)):
        return text
    return gpu if isinstance(gpu, bool) or (index := to_int(gpu)) is None else index


def _is_cuda_device(gpu: object) -> bool:
    """Return whether this is how frameworks write one of CUDA's devices: `cuda`, `cuda:1`."""
    return isinstance(gpu, str) and _CUDA_DEVICE.fullmatch(gpu) is not None


def _gpu_of(cuda_device: str, devices: Sequence[GpuRef]) -> GpuRef | None:
    """Return which of the devices in CUDA's order one is; None where that is not known."""
    index = cuda_device.partition(":")[2]
    if not index:  # the current device
        return devices[0] if len(devices) == 1 else None
    return devices[int(index)] if int(index) < len(devices) else None


def _listed(variable: str) -> tuple[GpuRef, ...]:
    """Return the GPUs in a variable; as in CUDA, the first invalid one ends the list."""
    gpus: list[GpuRef] = []
    for part in (piece.strip() for piece in variable.split(",")):
        if not part or part.startswith("-"):
            break
        gpus.append(int(part) if part.isascii() and part.isdigit() else part)
    return tuple(gpus)
