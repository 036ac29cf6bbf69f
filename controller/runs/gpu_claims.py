"""GPU claims: training processes name their GPUs, and each GPU belongs to one run at a time."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from controller.ports import UNLISTED, Blocked, Gpu
from publishers.messages.topics import RunKey

_UUID_HEAD: Final = "GPU-"
"""What every UUID begins with: alone it names none."""
_REASONS: Final = {
    "shared": "another tenant computes on a GPU of the run: a limit would affect both",
    "claim_unproven": "the driver does not show that the run computes on its GPUs",
    "claim_unrelated": "the run's rate does not change with the power limit of the GPU that it claims",
}
"""Why a run whose claim is refused has no limit, the gravest first."""


class Standing(IntEnum):
    """How sure it is that a run computes on a GPU: a surer claim takes it from one that is less so."""

    OBSERVED = 0
    """It cannot be seen: the GPU is measured, and no limit is set."""
    TRUSTED = 1
    """It cannot be seen, and the operator trusts what is said on the bus."""
    PROVEN = 2
    """The driver lists its processes on the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRejection:
    """Why a claim is not granted: a stable code, a sentence, and the run that owns a GPU of it, if that is why."""

    code: str
    detail: str
    owner: RunKey | None = None


def blocked_by_claims(codes: Collection[str]) -> Blocked:
    """Return why a run has no limit whose claims were refused with these codes."""
    for code, detail in _REASONS.items():
        if code in codes:
            return Blocked(reason=code, detail=detail)
    return Blocked(reason="claim_rejected", detail="the run's claim is invalid or conflicts with another one")


class GpuClaims:
    """Which run owns which GPU of this node.

    Attributes:
        owned: the GPUs of each run, by UUID.
    """

    def __init__(self) -> None:
        self.owned: dict[RunKey, set[str]] = {}
        self._owners: dict[str, tuple[RunKey, Standing]] = {}
        """By UUID."""

    def claim(self, run: RunKey, gpus: Sequence[Gpu], standing: Standing) -> list[tuple[RunKey, str]] | ClaimRejection:
        """Give a run GPUs: all of them, or none; return from which runs which of them were taken.

        Args:
            run: the run.
            gpus: the GPUs.
            standing: how sure it is that the run computes on them.
        """
        displaced = []
        for gpu in gpus:
            owner, its_standing = self._owners.get(gpu.uuid, (run, standing))
            if owner != run and standing <= its_standing:
                detail = f"{gpu.uuid} belongs to {owner}: a limit would affect both"
                return ClaimRejection(code="gpu_taken", detail=detail, owner=owner)
            if owner != run:
                displaced.append((owner, gpu.uuid))
        for owner, uuid in displaced:
            self.owned[owner].discard(uuid)
        for gpu in gpus:
            self._owners[gpu.uuid] = run, standing
            self.owned.setdefault(run, set()).add(gpu.uuid)
        return displaced

    def standing(self, run: RunKey) -> Standing | None:
        """Return how sure it is that a run computes on its GPUs, at least; None where it has none."""
        return min((self._owners[uuid][1] for uuid in self.owned.get(run, ())), default=None)

    def weaken(self, run: RunKey) -> None:
        """Let any other claim that may have a limit take the GPUs of a run: its own is not proven any more."""
        for uuid in self.owned.get(run, ()):
            self._owners[uuid] = run, Standing.OBSERVED

    def give_up(self, run: RunKey, uuid: str) -> None:
        """Free one GPU of a run that goes on without it."""
        self.owned[run].discard(uuid)
        del self._owners[uuid]

    def release(self, run: RunKey) -> set[str]:
        """Free the GPUs of a run that has ended, and return them."""
        freed = self.owned.pop(run, set())
        for uuid in freed:
            del self._owners[uuid]
        return freed


def resolve(reference: str | int, gpus: Sequence[Gpu]) -> Gpu | ClaimRejection:
    """Return the GPU that a training process means by a UUID, the beginning of one alone, or an index on its node.

    `CUDA_VISIBLE_DEVICES` may hold any of them, and MIG instances, whose limit would affect every tenant of the board.
    """
    if isinstance(reference, str) and reference.startswith("MIG-"):
        return ClaimRejection(
            code="mig_instance", detail=f"{reference} is a MIG instance: a limit would affect every tenant"
        )
    if isinstance(reference, str) and not is_index(reference):
        found = [gpu for gpu in gpus if gpu.uuid == reference]
        if not found and reference.startswith(_UUID_HEAD) and reference != _UUID_HEAD:
            found = [gpu for gpu in gpus if gpu.uuid.startswith(reference)]
    else:
        found = [gpu for gpu in gpus if UNLISTED != gpu.index == int(reference)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{gpu.index} = {gpu.uuid}" for gpu in gpus if gpu.index != UNLISTED) or "none"
    fault = f"{reference!r} is the beginning of {len(found)} GPUs" if found else f"there is no GPU {reference!r}"
    return ClaimRejection(code="gpu_unknown", detail=f"{fault} on this node; it has {known}")


def is_index(reference: str | int) -> bool:
    """Return whether a reference is an index, which CUDA, a container and NVML may count differently."""
    return isinstance(reference, int) or reference.isdecimal()
