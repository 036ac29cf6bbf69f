"""Whether a run's training processes compute on a board, as the driver and the operating system show it.

A message on the bus may name any process and any board. What counts is the driver's list of the processes of a board,
and what `/proc` says of each of them:

- a process that bears marks (`process_identity.py`), or has an ancestor that does, is of those runs alone;
- one without is of the run if the run names its process id, in the same pid namespace, and it is not of another user;
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
        uid: the local account that has the name of the run's user; None where there is none.
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

    `proven`: it does, and nobody else; `shared`: so does another tenant; `absent`: it does not, or not yet; `unseen`:
    that cannot be seen.
    """

    code: Literal["proven", "shared", "absent", "unseen"]
    detail: str


def judge(claimant: Claimant, board: BoardProcesses | None) -> Verdict:
    """Return whether a run computes on a board; None: the driver does not list the board's processes."""
    if board is None:
        return Verdict("unseen", "the driver does not list the processes of this GPU")
    own = [lineage for lineage in board.lineages.values() if _is_own(claimant, lineage)]
    mps = [lineage[0].pid for lineage in board.lineages.values() if _is_mps_server(lineage[0])]
    hidden = sorted([*board.hidden, *mps])
    if own:
        tenants = {_tenant(lineage[0]) for lineage in own}
        others = [lineage[0] for lineage in board.lineages.values() if _tenant(lineage[0]) not in tenants]
        strangers = [each for each in others if not _is_mps_server(each)]
        if strangers:
            who = f"process {strangers[0].pid} ({strangers[0].name}, uid {strangers[0].uid})"
            return Verdict("shared", f"{who} of another tenant computes on this GPU, too: a limit would affect both")
        if not hidden:
            return Verdict("proven", f"process {own[0][0].pid} computes on it")
    if hidden:
        return Verdict("unseen", f"whose process {hidden[0]} on this GPU is cannot be seen from here")
    if not board.sees_all:
        return Verdict("unseen", "from this pid namespace the processes of other containers cannot be seen")
    return Verdict("absent", f"the driver lists {_listed(board)} on this GPU, and none of them is of this run")


def _is_own(claimant: Claimant, lineage: Lineage) -> bool:
    """Return whether a process is of a run: the nearest marked one of it and its ancestors decides."""
    marked = next((each for each in lineage if each.marks), None)
    if marked is not None:
        return claimant.mark in marked.marks
    return any(_is_named(lineage[0], pid, namespace, claimant.uid) for pid, namespace in claimant.processes)


def _is_named(process: ProcessIdentity, pid: int, namespace: int | None, uid: int | None) -> bool:
    """Return whether a process without a mark is the one that a rank names."""
    if uid not in {None, process.uid}:
        return False
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
