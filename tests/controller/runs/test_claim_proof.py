"""Whether a run computes on a board: by process ids through namespaces, by marks and tenants, and who else is there."""

from typing import Any

import pytest

from controller.ports import Lineage, ProcessIdentity
from controller.runs.claim_proof import BoardProcesses, Claimant, NamedProcess, Tenant, Verdict
from controller.runs.claim_proof import judge as judge_boards

HOST, CONTAINER, OTHER_CONTAINER = 100, 200, 300
MINE, THEIRS = "gcmine", "gctheirs"


def process(pid: int = 4_711, *parents: ProcessIdentity, **changes: Any) -> Lineage:  # noqa: ANN401 — the record checks
    """Return a process of user 1000 on the host, with its parents."""
    fields: dict[str, Any] = {
        "parent_pid": parents[0].pid if parents else 0,
        "uid": 1_000,
        "name": "python",
        "namespace_pids": (pid,),
        "pid_namespace": HOST,
    }
    return (ProcessIdentity(pid=pid, **fields | changes), *parents)


def claimant(pid: int = 4_711, namespace: int | None = HOST, *, uid: int | None = 1_000) -> Claimant:
    """Return a run of user 1000 with one rank."""
    return Claimant(marks={MINE}, processes=frozenset({NamedProcess(pid, namespace)}), uid=uid)


def judge(run: Claimant, *boards: BoardProcesses | None) -> Verdict:
    """Return what is found on the first of all boards of a node."""
    verdicts, _ = judge_boards(run, {f"GPU-{index}": each for index, each in enumerate(boards)})
    return verdicts["GPU-0"]


def board(*lineages: Lineage, hidden: tuple[int, ...] = (), sees_all: bool = True) -> BoardProcesses:
    """Return a board with some processes."""
    return BoardProcesses(lineages={each[0].pid: each for each in lineages}, hidden=hidden, sees_all=sees_all)


def marked(pid: int, *marks: str, **changes: Any) -> Lineage:  # noqa: ANN401 — the record checks them
    """Return a process that bears marks."""
    return process(pid, marks=frozenset(marks), **changes)


def test_a_process_that_the_driver_lists_is_proven() -> None:
    assert judge(claimant(), board(process())).code == "proven"


def test_an_invented_process_id_is_not_proven_and_the_listed_one_is_named() -> None:
    verdict = judge(claimant(pid=12_345), board(process()))
    assert verdict.code == "absent"
    assert "4711 (python)" in verdict.detail


def test_on_an_idle_board_nothing_is_proven() -> None:
    verdict = judge(claimant(), board())
    assert (verdict.code, "no process" in verdict.detail) == ("absent", True)


def test_a_real_process_that_bears_the_mark_of_another_run_is_not_proven() -> None:
    assert judge(claimant(), board(marked(4_711, THEIRS))).code == "absent"


def test_a_process_in_a_namespace_that_is_not_known_is_proven_by_its_mark() -> None:
    in_container = marked(4_711, MINE, namespace_pids=(4_711, 1), pid_namespace=CONTAINER)
    assert judge(claimant(pid=1, namespace=None), board(in_container)).code == "proven"


def test_a_process_may_publish_several_runs() -> None:
    assert judge(claimant(), board(marked(4_711, MINE, THEIRS))).code == "proven"


def test_a_child_of_the_process_that_publishes_is_of_its_run() -> None:
    (parent,) = marked(50, MINE)
    assert judge(claimant(pid=50), board(process(51, parent))).code == "proven"


def test_a_child_that_publishes_another_run_is_not_of_its_parents() -> None:
    (parent,) = marked(50, MINE)
    child = process(51, parent, marks=frozenset({THEIRS}))
    assert judge(claimant(pid=50), board(child)).code == "absent"


def test_a_claim_on_an_ancestor_without_a_mark_proves_nothing() -> None:
    (init,) = process(1, uid=0)
    assert judge(claimant(pid=1), board(process(4_711, init))).code == "absent"


def test_through_a_pid_namespace_the_innermost_id_counts_with_its_namespace() -> None:
    in_container = process(4_711, namespace_pids=(4_711, 7), pid_namespace=CONTAINER)
    assert judge(claimant(pid=7, namespace=CONTAINER), board(in_container)).code == "proven"
    assert judge(claimant(pid=7, namespace=OTHER_CONTAINER), board(in_container)).code == "absent"
    assert judge(claimant(pid=7, namespace=None), board(in_container)).code == "absent", "every container may have a 7"
    assert judge(claimant(pid=4_711, namespace=None), board(in_container)).code == "absent"


def test_a_process_of_another_local_account_is_not_the_users() -> None:
    assert judge(claimant(uid=1_001), board(process())).code == "absent"
    assert judge(claimant(uid=1_000), board(process())).code == "proven"


def test_a_process_without_a_mark_is_doubtful_where_the_user_has_no_account() -> None:
    assert judge(claimant(uid=None), board(process())).code == "doubtful"
    assert judge(claimant(uid=None), board(process(), process(815, uid=1_001))).code == "shared"
    assert judge(claimant(uid=None), board(marked(4_711, MINE))).code == "proven"
    assert judge(claimant(pid=50, uid=None), board(marked(50, MINE), process())).code == "proven"


@pytest.mark.parametrize("changes", [{"uid": 1_001}, {"container": "0::/docker-b.scope"}])
def test_a_board_with_another_tenant_is_shared(changes: dict[str, Any]) -> None:
    verdict = judge(claimant(), board(process(), process(815, **changes)))
    assert verdict.code == "shared"
    assert "process 815 (python, uid" in verdict.detail


def test_other_processes_of_the_same_tenant_do_not_make_a_board_shared() -> None:
    assert judge(claimant(), board(process(), process(815))).code == "proven"


def test_what_cannot_be_seen_is_neither_proven_nor_refuted() -> None:
    assert judge(claimant(), None).code == "unseen"
    assert judge(claimant(), board(hidden=(815,))).code == "unseen"
    assert judge(claimant(), board(process(), hidden=(815,))).code == "unseen"
    assert judge(claimant(pid=3), board(process(), sees_all=False)).code == "unseen"


def test_in_a_container_of_its_own_a_process_that_is_seen_is_proven() -> None:
    assert judge(claimant(), board(process(), sees_all=False)).code == "proven"


def test_whose_work_the_multi_process_service_does_cannot_be_seen() -> None:
    server = process(815, name="nvidia-cuda-mps", uid=0)
    assert judge(claimant(), board(process(), server)).code == "unseen"
    assert judge(claimant(), board(server)).code == "unseen"


ALICE, BOB = {"uid": 1_001}, {"uid": 1_002}
INSIDE, OUTSIDE = {"container": "0::/docker-a.scope"}, {"container": "0::/docker-b.scope"}


def nested(pid: int, inner: int, **changes: Any) -> Lineage:  # noqa: ANN401 — the record checks them
    """Return a process in a container that bears the mark."""
    fields: dict[str, Any] = {"namespace_pids": (pid, inner), "pid_namespace": CONTAINER} | INSIDE
    return marked(pid, MINE, **fields | changes)


@pytest.mark.parametrize("changes", [BOB, {**OUTSIDE, "namespace_pids": (815, 9), "pid_namespace": OTHER_CONTAINER}])
def test_a_mark_of_another_tenant_draws_no_board_into_a_run(changes: dict[str, Any]) -> None:
    own, foreign = marked(4_711, MINE, **ALICE), marked(815, MINE, **ALICE | changes)
    verdicts, _ = judge_boards(claimant(uid=None), {"GPU-0": board(own), "GPU-1": board(foreign)})
    assert [each.code for each in verdicts.values()] == ["proven", "absent"]
    assert judge(claimant(uid=None), board(own, foreign)).code == "shared"


def test_another_process_with_the_mark_counts_where_it_is_of_the_same_tenant() -> None:
    second, first = board(marked(815, MINE)), board(marked(4_711, MINE))
    assert judge(claimant(), second, first).code == "proven"
    assert judge(claimant(), second).code == "absent", "the named one is nowhere"


def test_a_named_process_must_bear_the_mark_of_the_run_that_names_it() -> None:
    victim = marked(815, THEIRS, **BOB)
    assert judge(claimant(pid=815, uid=None), board(victim)).code == "absent"
    assert judge(claimant(pid=815, uid=1_002), board(victim)).code == "absent"


def test_a_child_of_another_account_is_not_its_parents() -> None:
    (shell,) = marked(50, MINE)
    assert judge(claimant(pid=50), board(process(51, shell, uid=1_002))).code == "absent", "su from a marked shell"
    (root_shell,) = marked(50, MINE, uid=0)
    run = Claimant(marks={MINE}, processes=frozenset({NamedProcess(60, HOST)}))
    assert judge(run, board(process(51, root_shell)), board(marked(60, MINE))).code == "absent"


def test_a_named_stranger_beside_ones_own_process_is_another_tenant() -> None:
    run = Claimant(marks={MINE}, processes=frozenset({NamedProcess(4_711, HOST), NamedProcess(815, HOST)}))
    assert judge(run, board(marked(4_711, MINE, **ALICE), process(815, **BOB))).code == "shared"


def test_the_ranks_of_a_run_may_be_in_containers_of_their_own() -> None:
    ranks = [nested(100, 1), nested(200, 1, pid_namespace=OTHER_CONTAINER, **OUTSIDE)]
    named = frozenset({NamedProcess(1, CONTAINER), NamedProcess(1, OTHER_CONTAINER)})
    for first, second in (ranks, ranks[::-1]):
        assert judge(Claimant(marks={MINE}, processes=named), board(first), board(second)).code == "proven"


@pytest.mark.parametrize(("said", "seen"), [(None, CONTAINER), (CONTAINER, None), (None, None)])
def test_where_ids_cannot_be_compared_all_bearers_must_be_of_one_tenant(said: int | None, seen: int | None) -> None:
    run = claimant(pid=1, namespace=said, uid=None)
    rank, worker = nested(100, 1, pid_namespace=seen), nested(101, 7, pid_namespace=seen)
    assert judge(run, board(worker), board(rank)).code == "proven"
    other = nested(200, 1, pid_namespace=OTHER_CONTAINER if seen else None, **OUTSIDE)
    for boards in ((board(rank), board(other)), (board(other), board(rank))):
        verdict = judge(run, *boards)
        assert verdict.code == "ambiguous"
        assert "process 100 (uid 1000) and process 200 (uid 1000), of different tenants" in verdict.detail
    assert judge(run, board(), board(rank), board(other)).code == "absent"
    if said and seen is None:
        assert judge(run, board(other, process(300)), board(nested(400, 9, **OUTSIDE))).code == "shared"


def test_an_id_that_another_tenant_has_later_is_not_the_named_one() -> None:
    mine, theirs = marked(4_711, MINE, **ALICE), marked(4_711, MINE, **BOB)
    named = NamedProcess(4_711, HOST)
    _, known = judge_boards(claimant(uid=None), {"GPU-0": board(mine)})
    assert known == {named: (1_001, "")}
    tenant: Tenant = known[named]
    later = Claimant(marks={MINE}, processes=frozenset({named._replace(tenant=tenant)}))
    assert judge(later, board(mine)).code == "proven"
    assert judge(later, board(theirs)).code == "absent"
    assert judge(later, board(process(4_711, **BOB))).code == "absent", "nor one without a mark"
