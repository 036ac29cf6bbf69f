"""Which GPU belongs to which run: a job names its GPUs, and one run at a time may own a board."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.ports import Gpu

MIN_UUID_PREFIX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRejection:
    """Why a claim is not granted: a stable code, and a sentence."""

    code: str
    detail: str


def resolve(reference: str | int, gpus: Sequence[Gpu]) -> Gpu | ClaimRejection:
    """Return the GPU that a training process means by a UUID, the beginning of one, or an index on its node.

    `CUDA_VISIBLE_DEVICES` may hold any of them, and MIG instances, whose limit would hit every tenant of the board.
    """
    if isinstance(reference, str) and reference.startswith("MIG-"):
        return ClaimRejection(
            code="mig_instance", detail=f"{reference} is a MIG instance: a limit would hit every tenant"
        )
    if isinstance(reference, str) and not reference.isdecimal():
        found = [gpu for gpu in gpus if gpu.uuid == reference]
        if not found and len(reference) >= MIN_UUID_PREFIX:
            found = [gpu for gpu in gpus if gpu.uuid.startswith(reference)]
    else:
        found = [gpu for gpu in gpus if gpu.index == int(reference)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{gpu.index} = {gpu.uuid}" for gpu in gpus) or "none"
    return ClaimRejection(code="gpu_unknown", detail=f"there is no GPU {reference!r} on this node; there is {known}")


def grant(
    references: Sequence[str | int], *, gpus: Sequence[Gpu], owners: Mapping[str, str], claimant: str
) -> list[Gpu] | ClaimRejection:
    """Return the GPUs that a run may have, all of them or none.

    Args:
        references: the GPUs as the training process names them.
        gpus: the GPUs of this node.
        owners: who owns a GPU now, by UUID.
        claimant: who asks, in the same terms.
    """
    granted = []
    for reference in references:
        gpu = resolve(reference, gpus)
        if isinstance(gpu, ClaimRejection):
            return gpu
        owner = owners.get(gpu.uuid, claimant)
        if owner != claimant:
            return ClaimRejection(code="gpu_taken", detail=f"{gpu.uuid} belongs to {owner}: a limit would hit both")
        granted.append(gpu)
    if not granted:
        return ClaimRejection(
            code="no_gpu", detail="the training process names no GPU; set gpus= or CUDA_VISIBLE_DEVICES"
        )
    return granted
