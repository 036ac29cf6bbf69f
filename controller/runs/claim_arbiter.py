"""Decides which run gets which GPU: names are resolved, the driver is asked for proof, and a refusal is told.

The processes of a GPU are read before a claim on it is granted, and then every `CHECK_S`. A claim that is not proven
(any more) holds no limit, and a GPU that no rank of a run has any more is given back at once. While CUDA is not
initialised yet, a training process is not in the driver's list: such a claim waits.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from controller.accounting.ranks import process_of
from controller.errors import GpuError
from controller.ports import Gpu, ProcessTable
from controller.runs.claim_proof import BoardProcesses, Claimant, NamedProcess, Tenant, Verdict, judge
from controller.runs.gpu_claims import ClaimRejection, GpuClaims, Standing, is_index, resolve
from controller.runs.run import TrainingRun
from controller.runtime.clock import Clock
from publishers.messages.topics import RunKey
from publishers.shared.process_identity import run_mark

CHECK_S: Final = 15.0
SPACING_S: Final = 0.1
"""However often claims are repeated, the processes of a GPU are read at most this often."""
PATIENCE_S: Final = 60.0
"""So long a training may take until it uses its GPU; only then it is told that its claim is not proven."""
ENDING_S: Final = 5.0
"""The ranks of a run end within seconds of each other: so long it keeps the GPU of one that has ended."""
RANKS_A_TURN: Final = 64
"""So many claims are settled before the event loop has its turn again."""

_LOGGER = logging.getLogger(__name__)

Grant = Callable[[RunKey, Gpu], None]
Refuse = Callable[[RunKey, int, ClaimRejection], None]
Acknowledge = Callable[[RunKey, int], None]
Withdraw = Callable[[RunKey, str, str], None]
Join = Callable[[RunKey, RunKey], bool]


@dataclass(slots=True, kw_only=True)
class _RankClaim:
    """What one rank claims, since when [s], whose its process is, as far as that was seen, and which GPUs it has."""

    process: tuple[str, int, float]
    references: Sequence[str | int]
    since_s: float
    tenant: Tenant | None = None
    uuids: frozenset[str] = frozenset()
    is_granted: bool = False

    def after(self, former: "_RankClaim | None") -> "_RankClaim":
        """Return this claim with what is known from the former one of the same process, which names other GPUs now."""
        if former is not None and former.process == self.process:
            self.tenant, self.uuids = former.tenant, former.uuids
        return self


@dataclass(slots=True)
class _RunClaims:
    """What the ranks of a run claim, by rank, which refusals it was told, and which GPUs it was last not seen on.

    `marks` are what its processes bear, also those that were joined to it.
    """

    ranks: dict[int, _RankClaim] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)
    marks: set[str] = field(default_factory=set)


class ClaimArbiter:
    """The claims of all runs of this node.

    Args:
        gpus: the GPUs of this node.
        runs: the runs, by their keys; they are added and removed by the owner.
        processes: the processes of this machine.
        trusts_bus: whether a claim is believed where the driver's list cannot be seen.
        authenticates_users: whether the broker asks for passwords, so that the user in a topic is who speaks.
        clock: the node's clock.
        grant: gives a GPU to a run, which may have it already.
        withdraw: takes a GPU from a run, and says why.
        refuse: is called once for each reason for which a rank of a run does not get its GPUs.
        acknowledge: is called with each process that is heard for the first time.
        join: makes the only rank of a run one of the run whose GPU it shares, where both are of one launch; returns
            whether it is so.

    Attributes:
        claims: which run owns which GPU.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        runs: Mapping[RunKey, TrainingRun],
        *,
        processes: ProcessTable,
        trusts_bus: bool,
        authenticates_users: bool,
        clock: Clock,
        grant: Grant,
        withdraw: Withdraw,
        refuse: Refuse,
        acknowledge: Acknowledge,
        join: Join,
    ) -> None:
        self.claims = GpuClaims()
        self._gpus = {gpu.uuid: gpu for gpu in gpus}
        self._runs = runs
        self._processes = processes
        self._trusts_bus = trusts_bus
        self._authenticates_users = authenticates_users
        self._clock = clock
        self._on_grant, self._on_withdrawal, self._on_refusal, self._on_process = grant, withdraw, refuse, acknowledge
        self._join = join
        self._boards: dict[str, BoardProcesses | None] = {}
        """The processes of each GPU when they were last read; a GPU that was never read has no entry."""
        self._claims: dict[RunKey, _RunClaims] = {}
        self._wanted = {uuid: asyncio.Event() for uuid in self._gpus}
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Read the processes of the GPUs that are claimed, and settle the claims, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for uuid in self._gpus:
                tasks.create_task(self._watch(uuid), name=f"claims[{uuid}]")
            await asyncio.Event().wait()  # GPUs may be added

    def add_gpu(self, gpu: Gpu) -> None:
        """Take in a GPU that answers only now, and consider again the claims that were not granted."""
        self._gpus[gpu.uuid], self._wanted[gpu.uuid] = gpu, asyncio.Event()
        if self._tasks is not None:
            self._tasks.create_task(self._watch(gpu.uuid), name=f"claims[{gpu.uuid}]")
        for key, of_run in self._claims.items():
            for number in [number for number, claim in of_run.ranks.items() if not claim.is_granted]:
                self.on_status(key, number)

    def on_status(self, key: RunKey, number: int, *, own: RunKey | None = None) -> None:
        """Consider the claim of a rank that has published its status; each heartbeat tries a refused one again.

        Args:
            key: its run.
            number: the rank.
            own: the run whose mark its process bears, where it was joined to this one.
        """
        run = self._runs[key]
        status = run.ranks.members[number].status
        process, references = process_of(status), tuple(status.gpus)
        of_run = self._claims.setdefault(key, _RunClaims())
        of_run.marks.add(run_mark(own or key))
        claim = of_run.ranks.get(number)
        if claim is None or claim.process != process:
            self._on_process(key, number)
        if claim is not None and claim.process != process:
            of_run.told.clear()
        if claim is None or claim.process != process or claim.references != references:
            new = _RankClaim(process=process, references=references, since_s=self._now_s())
            claim = of_run.ranks[number] = new.after(claim)
        if claim.is_granted:
            return
        if not run.rejections.get(number):
            run.unproven.add(number)
        if isinstance(gpus := self._named(references), ClaimRejection):
            self._refuse(key, number, claim, gpus)
            return
        for uuid in {gpu.uuid for gpu in gpus} if gpus and not _are_all_indices(references) else self._gpus:
            self._wanted[uuid].set()

    def release(self, key: RunKey) -> set[str]:
        """Free the GPUs of a run that has ended and return them; whoever waits for one is considered soon."""
        self._claims.pop(key, None)
        freed = self.claims.release(key)
        for uuid in freed:
            self._wanted[uuid].set()
        return freed

    async def _watch(self, uuid: str) -> None:
        wanted = self._wanted[uuid]
        while True:
            try:
                async with asyncio.timeout(CHECK_S):
                    await wanted.wait()
            except TimeoutError:
                if not self._claims:
                    continue
            wanted.clear()
            self._boards[uuid] = await self._read(self._gpus[uuid])
            await self._settle_all(uuid)
            await asyncio.sleep(SPACING_S)

    async def _read(self, gpu: Gpu) -> BoardProcesses | None:
        """Return the processes of a GPU; None where that cannot be seen."""
        try:
            pids = await gpu.read_processes()
        except (GpuError, OSError) as error:
            _LOGGER.debug("%s: its processes cannot be read: %s", gpu.uuid, error)
            return None
        if pids is None:
            return None
        found = await self._processes.read(pids)
        return BoardProcesses(
            lineages={pid: lineage for pid, lineage in found.items() if lineage},
            hidden=[pid for pid, lineage in found.items() if not lineage],
            sees_all=self._processes.sees_all,
        )

    async def _settle_all(self, uuid: str) -> None:
        """Settle the claims that may be on a GPU, the oldest run first."""
        n_settled = 0
        # What a former controller has left comes first: what is joined is a part of it again.
        for key in sorted(self._claims, key=lambda each: not self._runs[each].ranks.is_resumed):
            # Whoever may take any name on the bus proves nothing by the name of an account.
            uid = await self._processes.uid_of(key.user) if self._authenticates_users else None
            of_run = self._claims.get(key)
            if of_run is None:  # it has ended meanwhile
                continue
            verdicts = self._judge(key, of_run, uid)
            for number, claim in list(of_run.ranks.items()):
                n_settled += 1
                if n_settled % RANKS_A_TURN == 0:
                    await asyncio.sleep(0)
                    if self._claims.get(key) is not of_run:
                        break
                    verdicts = self._judge(key, of_run, uid)  # other boards may have been read meanwhile
                if self._concerns(claim, uuid, key):
                    self._settle(key, number, claim, verdicts)
            else:
                self._withdraw_lost(key, of_run, verdicts, read=uuid)

    def _judge(self, key: RunKey, of_run: _RunClaims, uid: int | None) -> dict[str, Verdict]:
        """Return on which GPUs a run computes; from now on its processes are of the tenants of which they are seen."""
        # One whose last will has gone out may live on, behind a network that is away.
        members = {n: each for n, each in self._runs[key].ranks.members.items() if each.ended != "finished"}
        named = {
            number: NamedProcess(rank.status.pid, rank.status.pid_namespace, of_run.ranks[number].tenant)
            for number, rank in members.items()
            if number in of_run.ranks
        }
        claimant = Claimant(marks=of_run.marks, processes=frozenset(named.values()), uid=uid)
        verdicts, known = judge(claimant, self._boards)
        for number, process in named.items():
            of_run.ranks[number].tenant = process.tenant or known.get(process)
        return verdicts

    def _withdraw_lost(self, key: RunKey, of_run: _RunClaims, verdicts: Mapping[str, Verdict], *, read: str) -> None:
        """Take from a run the GPUs that no rank of it has any more; `read` is the one whose processes were read now.

        Where the driver just lists nobody of the run, it is asked once more: a list may be empty for a moment.
        """
        run = self._runs[key]
        if run.ended or run.ranks.ending:
            return
        kept: set[str] = set()
        for number, claim in of_run.ranks.items():
            rank = run.ranks.members[number]
            is_ending = rank.ended and self._now_s() - rank.ended_s < ENDING_S
            kept |= {uuid for uuid in claim.uuids if not rank.ended or is_ending or verdicts[uuid].code == "proven"}
        lost = self.claims.owned.get(key, set()) - kept
        of_run.left &= lost
        for uuid in lost:
            self._wanted[uuid].set()
            if verdicts[uuid].code == "absent" and not (uuid == read and uuid in of_run.left):
                if uuid == read:
                    of_run.left.add(uuid)
                continue
            self.claims.give_up(key, uuid)
            self._on_withdrawal(key, uuid, f"this run does not have it any more: {verdicts[uuid].detail}")

    def _concerns(self, claim: _RankClaim, uuid: str, key: RunKey) -> bool:
        if not claim.references or _are_all_indices(claim.references) or uuid in self.claims.owned.get(key, ()):
            return True
        gpus = self._named(claim.references)
        return not isinstance(gpus, ClaimRejection) and any(gpu.uuid == uuid for gpu in gpus)

    def _settle(self, key: RunKey, number: int, claim: _RankClaim, verdicts: Mapping[str, Verdict]) -> None:
        """Grant a rank's claim, refuse it, or let it wait; nothing where it has ended meanwhile."""
        run = self._runs[key]
        rank = run.ranks.members.get(number)
        if run.ended or rank is None or rank.ended:
            return
        found = self._found(key, claim.references, verdicts)
        if isinstance(found, ClaimRejection):
            may_come = found.code == "claim_unproven" or (found.code == "no_gpu" and not _unseen(verdicts))
            if may_come and not claim.is_granted and self._now_s() - claim.since_s < PATIENCE_S:
                run.unproven.add(number)
            else:
                self._refuse(key, number, claim, found)
        elif found is not None:  # else not every GPU of it was read yet
            self._assign(key, number, claim, *found, why_unseen=_unseen(verdicts))

    def _assign(
        self, key: RunKey, number: int, claim: _RankClaim, gpus: list[Gpu], standing: Standing, *, why_unseen: str
    ) -> None:
        """Give a rank its GPUs, unless they are another run's; without a standing, they are measured only."""
        run = self._runs[key]
        refusal = None
        if standing is Standing.TRUSTED and run.ignores_limits:
            detail = "its rate does not change with the power limit, and the driver does not prove that it is its GPU"
            refusal = ClaimRejection(code="claim_unrelated", detail=detail)
        refusal = refusal or self._take(key, gpus, standing)
        if refusal is None:
            for gpu in gpus:
                self._on_grant(key, gpu)
            if standing is Standing.OBSERVED:
                detail = f"{why_unseen}; energy is measured, and no limit set, unless the operator sets gpu.trust_bus"
                refusal = ClaimRejection(code="claim_unproven", detail=detail)
            claim.uuids = frozenset(gpu.uuid for gpu in gpus)
        elif refusal.owner is not None and self._try_join(key, refusal.owner, standing):
            return
        if refusal is not None:
            self._refuse(key, number, claim, refusal)
            return
        claim.is_granted = True
        run.unproven.discard(number)
        run.rejections.pop(number, None)

    def _try_join(self, key: RunKey, owner: RunKey, standing: Standing) -> bool:
        """Join a run without a GPU to the one that has its GPU, where its claim on that is as sure as the owner's."""
        if self.claims.owned.get(key) or standing != self.claims.standing(owner) or not self._join(key, owner):
            return False
        del self._claims[key]
        return True

    def _found(
        self, key: RunKey, references: Sequence[str | int], verdicts: Mapping[str, Verdict]
    ) -> "tuple[list[Gpu], Standing] | ClaimRejection | None":
        """Return the GPUs that a rank gets and how sure that is; None while some of them were not read yet."""
        named, seen = self._named(references), self._seen(key, verdicts)
        if isinstance(named, ClaimRejection):
            return named
        if named and all(gpu.uuid in verdicts for gpu in named):
            result = self._judged(named, verdicts)
            is_elsewhere = isinstance(result, ClaimRejection) and _are_all_indices(references) and seen
            return result if not is_elsewhere else self._judged(seen, verdicts)
        if named or len(verdicts) < len(self._gpus):
            return None
        if seen:
            return self._judged(seen, verdicts)
        for code, refusal in {"shared": "shared", "ambiguous": "claim_unproven"}.items():
            if (verdict := next((each for each in verdicts.values() if each.code == code), None)) is not None:
                return ClaimRejection(code=refusal, detail=verdict.detail)
        why = _unseen(verdicts) or "its process computes on none of this node"
        return ClaimRejection(code="no_gpu", detail=f"the training process names no GPU, and {why}: pass gpus=[…]")

    def _seen(self, key: RunKey, verdicts: Mapping[str, Verdict]) -> list[Gpu]:
        """Return the GPUs on which a run computes alone, with those of its own that cannot be seen for now."""
        alone = {uuid for uuid, verdict in verdicts.items() if verdict.code == "proven"}
        owned = self.claims.owned.get(key, set()) if alone else set()
        own = {uuid for uuid, verdict in verdicts.items() if verdict.code == "unseen" and uuid in owned}
        return [gpu for uuid, gpu in self._gpus.items() if uuid in alone | own]

    def _judged(
        self, gpus: list[Gpu], verdicts: Mapping[str, Verdict]
    ) -> "tuple[list[Gpu], Standing] | ClaimRejection":
        """Return what GPUs a claim gets: all that it names, or none."""
        codes = {verdicts[gpu.uuid].code for gpu in gpus}
        refusals = {"shared": "shared", "absent": "claim_unproven", "ambiguous": "claim_unproven"}
        if not self._trusts_bus:
            refusals["doubtful"] = "claim_unproven"
        for code, refusal in refusals.items():
            if code in codes:
                gpu = next(gpu for gpu in gpus if verdicts[gpu.uuid].code == code)
                return ClaimRejection(code=refusal, detail=f"{gpu.uuid}: {verdicts[gpu.uuid].detail}")
        if codes & {"unseen", "doubtful"}:
            return gpus, Standing.TRUSTED if self._trusts_bus else Standing.OBSERVED
        return gpus, Standing.PROVEN

    def _take(self, key: RunKey, gpus: Sequence[Gpu], standing: Standing) -> ClaimRejection | None:
        """Take GPUs for a run, also from one whose claim is less sure, or whose processes are all gone."""
        taken = self.claims.claim(key, gpus, standing)
        while isinstance(taken, ClaimRejection) and taken.owner is not None:
            # An owner whose processes are all gone waits only to be resumed, and ends where another run needs its GPUs.
            if not self._runs[taken.owner].end_if_orphaned():
                return taken
            taken = self.claims.claim(key, gpus, standing)
        if isinstance(taken, ClaimRejection):
            return taken
        for owner, uuid in taken:
            self._on_withdrawal(owner, uuid, "another run has proven that the GPU is its own")
            for claim in self._claims[owner].ranks.values():
                claim.is_granted = False
        return None

    def _refuse(self, key: RunKey, number: int, claim: _RankClaim, rejection: ClaimRejection) -> None:
        run = self._runs[key]
        claim.is_granted = False
        run.unproven.discard(number)
        run.rejections[number] = rejection.code
        self.claims.weaken(key)
        told = self._claims[key].told
        if rejection.code not in told:
            told.add(rejection.code)
            self._on_refusal(key, number, rejection)

    def _named(self, references: Sequence[str | int]) -> "list[Gpu] | ClaimRejection":
        """Return the GPUs that a rank names, or why one of them is none."""
        gpus = []
        for reference in references:
            gpu = resolve(reference, list(self._gpus.values()))
            if isinstance(gpu, ClaimRejection):
                return gpu
            gpus.append(gpu)
        return gpus

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9


def _are_all_indices(references: Sequence[str | int]) -> bool:
    """Return whether GPUs are named by indices alone."""
    return all(is_index(reference) for reference in references)


def _unseen(verdicts: Mapping[str, Verdict]) -> str:
    """Return why it cannot be seen who computes on some GPU; "" where it can on all."""
    return next((verdict.detail for verdict in verdicts.values() if verdict.code == "unseen"), "")
