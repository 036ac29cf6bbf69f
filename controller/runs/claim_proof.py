"""Whether a run's training processes compute on a board, as the driver and the operating system show it.

A message on the bus may name any process and any board, and the mark of a run (`process_identity.py`) follows from
public names. What counts is the driver's list of the processes of a board, and what `/proc` says of each of them:

- a rank's process has the id that its status names, in the pid namespace that it names, and bears the mark. Its account
  and container are the run's tenant: other bearers of the mark, and children of bearers, count with that tenant alone;
- where ids cannot be compared, since a namespace is not known, its bearers must be of one tenant: of two, none counts;
- a named process without a mark, or an ancestor with one, is the run's if its account is that of the run's user; that
  is doubtful where the user is no account of this machine, or the broker asks nobody who they are;
- any other process of another user or container is another tenant: a limit would affect both.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, Literal, NamedTuple

from controller.ports import Lineage, ProcessIdentity

MPS_SERVER: Final = "nvidia-cuda-mps"
"""The Multi-Process Service computes for whoever asks it: who that is cannot be seen."""


Tenant = tuple[int, str]
"""Whose a process is, its user and its container: containers often share the user id 0."""


class NamedProcess(NamedTuple):
    """A process as a status names it: its id, the pid namespace that it says, and whose it was when it was first seen.

    Another one that has the id later is not the one that was named, unless it is of the same tenant.
    """

    pid: int
    namespace: int | None = None
    tenant: Tenant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimant:
    """A run as its messages describe it.

    Attributes:
        marks: what its processes bear: its own, and those of the runs that were joined to it.
        processes: those that its ranks name.
        uid: the local account of the run's user; None where there is none, or anybody may take any name on the bus.
    """

    marks: AbstractSet[str]
    processes: frozenset[NamedProcess]
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
    it names a process there, and nothing shows that this is its own; `ambiguous`: processes of two tenants may be its
    own; `unseen`: who computes there cannot be seen.
    """

    code: Literal["proven", "shared", "absent", "doubtful", "ambiguous", "unseen"]
    detail: str


@dataclass(slots=True, kw_only=True)
class _Owners:
    """Whose the processes of a run are.

    Attributes:
        tenants: those whose bearers of the mark count.
        unmarked: named processes without a mark.
        known: whose each named process is, where its id shows that.
        rivals: bearers of several tenants that may be one named process.
    """

    tenants: set[Tenant] = field(default_factory=set)
    unmarked: set[ProcessIdentity] = field(default_factory=set)
    known: dict[NamedProcess, Tenant] = field(default_factory=dict)
    rivals: set[ProcessIdentity] = field(default_factory=set)


def judge(
    claimant: Claimant, boards: Mapping[str, BoardProcesses | None]
) -> tuple[dict[str, Verdict], Mapping[NamedProcess, Tenant]]:
    """Return on which boards a run computes, and whose its named processes are, as far as their ids show it.

    Args:
        claimant: the run.
        boards: all boards by UUID; None: the driver does not list the processes of that one.
    """
    lineages = [lineage for board in boards.values() if board is not None for lineage in board.lineages.values()]
    owners = _identify(claimant, lineages)
    return {uuid: _judge_board(claimant, owners, board) for uuid, board in boards.items()}, owners.known


def _identify(claimant: Claimant, lineages: Collection[Lineage]) -> _Owners:
    """Return whose the processes are that a run names."""
    bearers = _by_id(each for lineage in lineages for each in lineage if claimant.marks & each.marks)
    heads = (lineage[0] for lineage in lineages if _nearest_marked(lineage) is None)
    unmarked = _by_id(each for each in heads if claimant.uid in {None, each.uid})
    owners = _Owners()
    for named in claimant.processes:
        marked = _those_named(named, bearers[named.pid])
        possible = {each for each in bearers[named.pid] if _may_be(each, named)}
        plain = set() if marked or possible else _those_named(named, unmarked[named.pid])
        tenants = {_tenant(each) for each in marked or possible}
        if len(tenants) == 1 or marked:
            owners.tenants |= tenants
        else:
            owners.rivals |= possible
        owners.unmarked |= plain
        owners.known.update((named, _tenant(each)) for each in marked or plain)
    return owners


def _by_id(processes: Iterable[ProcessIdentity]) -> defaultdict[int, set[ProcessIdentity]]:
    """Return processes by their id in their own pid namespace: that is the one that they know."""
    found: defaultdict[int, set[ProcessIdentity]] = defaultdict(set)
    for process in processes:
        found[process.namespace_pids[-1]].add(process)
    return found


def _judge_board(claimant: Claimant, owners: _Owners, board: BoardProcesses | None) -> Verdict:
    if board is None:
        return Verdict("unseen", "the driver does not list the processes of this GPU")
    marked = [lineage for lineage in board.lineages.values() if claimant.marks & _marks(lineage)]
    bearing = [lineage for lineage in marked if _is_of(lineage, owners.tenants)]
    plain = [lineage for lineage in board.lineages.values() if lineage[0] in owners.unmarked]
    sure = bearing + (plain if claimant.uid is not None else [])
    if own := sure or plain:
        return _judge_own(own, board, is_sure=bool(sure))
    if owners.rivals and marked:
        who = " and ".join(f"process {each.pid} (uid {each.uid})" for each in _one_a_tenant(owners.rivals)[:2])
        why = "the status must name the pid namespace, or the run needs a name of its own"
        return Verdict(
            "ambiguous", f"{who}, of different tenants, bear the mark of the run, and may be the named one: {why}"
        )
    if hidden := _hidden(board):
        return Verdict("unseen", f"the owner of process {hidden[0]} on this GPU cannot be determined from here")
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
        return Verdict("unseen", f"the owner of process {hidden[0]} on this GPU cannot be determined from here")
    return Verdict("proven", f"process {pid} computes on it")


def _hidden(board: BoardProcesses) -> list[int]:
    """Return the processes of which it cannot be seen for whom they compute."""
    servers = [lineage[0].pid for lineage in board.lineages.values() if _is_mps_server(lineage[0])]
    return sorted([*board.hidden, *servers])


def _nearest_marked(lineage: Lineage) -> ProcessIdentity | None:
    """Return the nearest one of a process and its ancestors that bears a mark."""
    return next((each for each in lineage if each.marks), None)


def _marks(lineage: Lineage) -> frozenset[str]:
    bearer = _nearest_marked(lineage)
    return bearer.marks if bearer is not None else frozenset()


def _is_of(lineage: Lineage, tenants: AbstractSet[Tenant]) -> bool:
    """Return whether a process, and the bearer of its mark, are of these tenants: a child may have another account."""
    bearer = _nearest_marked(lineage)
    return bearer is not None and {_tenant(bearer), _tenant(lineage[0])} <= tenants


def _those_named(named: NamedProcess, processes: Iterable[ProcessIdentity]) -> set[ProcessIdentity]:
    """Return the processes that have the id that a status names, and are of the tenant that it was before."""
    return {each for each in processes if _is_id_of(each, named) and named.tenant in {None, _tenant(each)}}


def _is_id_of(process: ProcessIdentity, named: NamedProcess) -> bool:
    if named.namespace is not None and process.pid_namespace is not None:
        return named.namespace == process.pid_namespace and named.pid == process.namespace_pids[-1]
    # Every container has a process 1: an id alone is one process only where it is not of a nested namespace.
    return len(process.namespace_pids) == 1 and named.pid == process.pid


def _may_be(process: ProcessIdentity, named: NamedProcess) -> bool:
    """Return whether a process of that id in its own namespace may be the named one, since a namespace is not known."""
    is_comparable = named.namespace is not None and process.pid_namespace is not None
    return not is_comparable and len(process.namespace_pids) > 1 and named.tenant in {None, _tenant(process)}


def _one_a_tenant(processes: Iterable[ProcessIdentity]) -> list[ProcessIdentity]:
    return sorted({_tenant(each): each for each in processes}.values(), key=attrgetter("pid"))


def _tenant(process: ProcessIdentity) -> Tenant:
    return process.uid, process.container


def _is_mps_server(process: ProcessIdentity) -> bool:
    return process.name.startswith(MPS_SERVER)


def _listed(board: BoardProcesses) -> str:
    names = [f"{lineage[0].pid} ({lineage[0].name})" for lineage in board.lineages.values()]
    return f"process {', '.join(names[:4])}" if names else "no process"
