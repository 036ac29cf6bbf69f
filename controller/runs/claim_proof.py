"""Whether a run's training processes compute on a board, as the driver and the operating system show it.

A message on the bus may name any process and any board. What counts is the driver's list of the processes of a board,
and what `/proc` says of each of them:

- a process that bears marks (`process_identity.py`), or has an ancestor that does, is of those runs alone;
- one without is of the run if the run names its process id, in the same pid namespace, and its account is that of the
  run's user; that is doubtful where the user is no account of this machine, or the broker asks nobody who they are;
- any other process of another user or container is another tenant: a limit would affect both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from controller.ports import Lineage, ProcessIdentity

MPS_SERVER: Final = "nvidia-cuda-mps"
"""The Multi-Process Service computes for whoever asks it: who that is cannot be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimant:
    """A run as its messages describe it.

    Attributes:
        mark: what its processes bear.
        processes: the process ids that its ranks name, each with the pid namespace, or None where they do not say.
        uid: the local account of the run's user; None where there is none, or anybody may take any name on the bus.
    """

    mark: str
    processes: frozenset[tuple[int, int | None]]
    uid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardProcesses:
    """The processes of a board.

    Attributes:
        lineages: those that can be seen, by their ids.
        hidden: the ids of those that cannot.
        sees_all: whether there can be no others.
    """

    lineages: Mapping[int, Lineage]
    hidden: Sequence[int] = ()
    sees_all: bool = True


class Verdict(NamedTuple):
    """Whether a run computes on a board, and a sentence about it.

    `proven`: it does, and nobody else; `shared`: so does another tenant; `absent`: it does not, or not yet; `doubtful`:
    it names a process there, and nothing shows that this is its own; `unseen`: who computes there cannot be seen.
    """

    code: Literal["proven", "shared", "absent", "doubtful", "unseen"]
    detail: str


def judge(claimant: Claimant, board: BoardProcesses | None) -> Verdict:
    """Return whether a run computes on a board; None: the driver does not list the board's processes."""
    if board is None:
        return Verdict("unseen", "the driver does not list the processes of this GPU")
    marked = [lineage for lineage in board.lineages.values() if claimant.mark in _marks(lineage)]
    named = [lineage for lineage in board.lineages.values() if not _marks(lineage) and _is_named(claimant, lineage[0])]
    if own := marked + named:
        return _judge_own(own, board, is_sure=bool(marked) or claimant.uid is not None)
    if hidden := _hidden(board):
        return Verdict("unseen", f"whose process {hidden[0]} on this GPU is cannot be seen from here")
    if not board.sees_all:
        return Verdict("unseen", "from this pid namespace the processes of other containers cannot be seen")
    return Verdict("absent", f"the driver lists {_listed(board)} on this GPU, and none of them is of this run")


def _judge_own(own: Sequence[Lineage], board: BoardProcesses, *, is_sure: bool) -> Verdict:
    """Return whether a run computes alone on a board, on which some processes are its own, or may be."""
    tenants = {_tenant(lineage[0]) for lineage in own}
    others = [lineage[0] for lineage in board.lineages.values() if _tenant(lineage[0]) not in tenants]
    strangers = [each for each in others if not _is_mps_server(each)]
    if strangers:
        who = f"process {strangers[0].pid} ({strangers[0].name}, uid {strangers[0].uid})"
        return Verdict("shared", f"{who} of another tenant computes on this GPU, too: a limit would affect both")
    pid = own[0][0].pid
    if not is_sure:
        why = "bears no mark of the run, and that its user is who they say, and has this account, is not known"
        return Verdict("doubtful", f"process {pid} {why}")
    if hidden := _hidden(board):
        return Verdict("unseen", f"whose process {hidden[0]} on this GPU is cannot be seen from here")
    return Verdict("proven", f"process {pid} computes on it")


def _hidden(board: BoardProcesses) -> list[int]:
    """Return the processes of which it cannot be seen for whom they compute."""
    servers = [lineage[0].pid for lineage in board.lineages.values() if _is_mps_server(lineage[0])]
    return sorted([*board.hidden, *servers])


def _marks(lineage: Lineage) -> frozenset[str]:
    """Return the marks of the nearest marked one of a process and its ancestors."""
    return next((each.marks for each in lineage if each.marks), frozenset())


def _is_named(claimant: Claimant, process: ProcessIdentity) -> bool:
    """Return whether a process without a mark is one that the run names."""
    if claimant.uid not in {None, process.uid}:
        return False
    return any(_is_id_of(process, pid, namespace) for pid, namespace in claimant.processes)


def _is_id_of(process: ProcessIdentity, pid: int, namespace: int | None) -> bool:
    if namespace is not None and process.pid_namespace is not None:
        return namespace == process.pid_namespace and pid == process.namespace_pids[-1]
    # Every container has a process 1: an id alone is one process only where it is not of a nested namespace.
    return len(process.namespace_pids) == 1 and pid == process.pid


def _tenant(process: ProcessIdentity) -> tuple[int, str]:
    """Return whose a process is: containers often share the user id 0."""
    return process.uid, process.container


def _is_mps_server(process: ProcessIdentity) -> bool:
    return process.name.startswith(MPS_SERVER)


def _listed(board: BoardProcesses) -> str:
    names = [f"{lineage[0].pid} ({lineage[0].name})" for lineage in board.lineages.values()]
    return f"process {', '.join(names[:4])}" if names else "no process"
