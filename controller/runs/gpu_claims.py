"""GPU claims: training processes name their GPUs, and each GPU belongs to one run at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from controller.ports import Gpu
from publishers.messages.topics import RunKey

MIN_UUID_PREFIX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRejection:
    """Why a claim is not granted: a stable code, a sentence, and the run that owns a GPU of it, if that is why."""

    code: str
    detail: str
    owner: RunKey | None = None


class GpuClaims:
    """Which run owns which GPU of this node, and which claims wait for one.

    Args:
        gpus: the GPUs of this node.

    Attributes:
        owned: the GPUs of each run, by UUID.
    """

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self.owned: dict[RunKey, set[str]] = {}
        self._gpus = list(gpus)
        self._owners: dict[str, RunKey] = {}
        """By UUID."""
        self._waiting: dict[str, dict[RunKey, set[int]]] = {}
        """The ranks whose claims were rejected because another run owns a GPU, by its UUID and their run."""
        self._order: dict[RunKey, int] = {}
        """Which run claimed first: the oldest comes first."""
        self._n_runs = 0

    def claim(self, run: RunKey, rank: int, references: Sequence[str | int]) -> list[Gpu] | ClaimRejection:
        """Give a run the GPUs that one of its ranks names: all of them, or none.

        A claim on another run's GPU waits: it is among those that `release` returns.

        Args:
            run: the run.
            rank: the rank.
            references: the GPUs as the training process names them.
        """
        if run not in self._order:
            self._order[run] = self._n_runs = self._n_runs + 1
        self._stop_waiting(run, rank)
        granted = []
        for reference in references:
            gpu = resolve(reference, self._gpus)
            if isinstance(gpu, ClaimRejection):
                return gpu
            owner = self._owners.get(gpu.uuid, run)
            if owner != run:
                self._waiting.setdefault(gpu.uuid, {}).setdefault(run, set()).add(rank)
                detail = f"{gpu.uuid} belongs to {owner}: a limit would affect both"
                return ClaimRejection(code="gpu_taken", detail=detail, owner=owner)
            granted.append(gpu)
        if not granted:
            detail = "the training process names no GPU; set gpus= or CUDA_VISIBLE_DEVICES"
            return ClaimRejection(code="no_gpu", detail=detail)
        for gpu in granted:
            self._owners[gpu.uuid] = run
            self.owned.setdefault(run, set()).add(gpu.uuid)
        return granted

    def release(self, run: RunKey) -> Iterator[tuple[RunKey, int]]:
        """Free the GPUs of a run that has ended; yield the run and rank of each claim to be tried again.

        The oldest run comes first. Once it has got a GPU, the claims of the others go on waiting for that GPU: the end
        of a run costs hardly more where many wait.
        """
        self._order.pop(run, None)
        freed = self.owned.pop(run, set())
        for uuid in freed:
            del self._owners[uuid]
        for waiting in self._waiting.values():
            waiting.pop(run, None)
        return self._to_retry(freed)

    def _to_retry(self, freed: set[str]) -> Iterator[tuple[RunKey, int]]:
        waiting_for = {
            (run, rank): uuid for uuid in freed for run, ranks in self._waiting.get(uuid, {}).items() for rank in ranks
        }
        for run, rank in sorted(waiting_for, key=lambda claim: (self._order[claim[0]], claim[1])):
            uuid = waiting_for[run, rank]
            if self._owners.get(uuid, run) == run and rank in self._waiting.get(uuid, {}).get(run, ()):
                yield run, rank

    def _stop_waiting(self, run: RunKey, rank: int) -> None:
        """Forget a waiting claim: it is tried again now."""
        for uuid, waiting in list(self._waiting.items()):
            if run in waiting and rank in waiting[run]:
                waiting[run].discard(rank)
                if not waiting[run]:
                    del waiting[run]
                if not waiting:
                    del self._waiting[uuid]


def resolve(reference: str | int, gpus: Sequence[Gpu]) -> Gpu | ClaimRejection:
    """Return the GPU that a training process means by a UUID, the beginning of one, or an index on its node.

    `CUDA_VISIBLE_DEVICES` may hold any of them, and MIG instances, whose limit would affect every tenant of the board.
    """
    if isinstance(reference, str) and reference.startswith("MIG-"):
        return ClaimRejection(
            code="mig_instance", detail=f"{reference} is a MIG instance: a limit would affect every tenant"
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
