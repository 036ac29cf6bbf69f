"""The ranks of a run: who speaks for which, who has ended, and when all are there."""

import msgspec
import pytest

from controller.accounting.ranks import GATHER_S, LOST_GRACE_S, Ranks
from tests.controller.messages import iterations, ns, rank_status

LEASE_S = 60.0


def ranks() -> Ranks:
    """Return the ranks of a run with a lease of a minute."""
    return Ranks(name="resnet50/run-1", lease_s=LEASE_S)


def test_a_run_without_ranks_has_not_ended() -> None:
    assert ranks().expire(1e9) is None


def test_a_rank_that_keeps_its_heartbeat_keeps_the_run() -> None:
    run = ranks()
    for now_s in range(0, 600, 10):
        assert run.on_status(0, rank_status(), now_s=float(now_s))
        assert run.expire(float(now_s)) is None


@pytest.mark.parametrize("state", ["finished", "lost"])
def test_a_rank_that_publishes_its_end_ends_the_run(state: str) -> None:
    run = ranks()
    run.on_status(0, rank_status(), now_s=0)
    assert not run.on_status(0, rank_status(state=state), now_s=10)
    assert run.ending
    assert run.expire(10 + (LOST_GRACE_S if state == "lost" else 0)) == state


def test_a_process_that_is_back_after_a_last_will_continues() -> None:
    run = ranks()
    run.on_status(0, rank_status(), now_s=0)
    log = run.members[0].log
    run.on_status(0, rank_status(state="lost"), now_s=10)
    assert run.expire(10 + LOST_GRACE_S - 1) is None
    assert run.on_status(0, rank_status(), now_s=10 + LOST_GRACE_S - 1)
    assert not run.ending
    assert run.members[0].log is log


def test_a_heartbeat_rarer_than_the_lease_does_not_make_a_process_another_one() -> None:
    run = ranks()
    run.on_status(0, rank_status(), now_s=0)
    log = run.members[0].log
    run.on_status(0, rank_status(), now_s=3 * LEASE_S)
    assert run.members[0].log is log


def test_a_rank_that_has_ended_does_not_delay_the_others() -> None:
    run = ranks()
    for rank in (0, 1):
        run.on_status(rank, rank_status(world_size=2, pid=rank), now_s=0)
    run.on_status(1, rank_status(state="finished", pid=1), now_s=1)
    assert run.logs == [run.members[0].log]
    assert run.expire(1) is None


def test_silence_for_the_lease_ends_the_run_and_not_before(caplog: pytest.LogCaptureFixture) -> None:
    run = ranks()
    run.on_status(0, rank_status(), now_s=0)
    assert run.expire(LEASE_S) is None
    assert run.expire(LEASE_S + 1) == "silent"
    assert "rank 0 silent for 61 s" in caplog.text


def test_a_run_ends_with_its_last_rank_and_in_the_worst_way_of_any() -> None:
    run = ranks()
    for rank in (0, 1, 2):
        run.on_status(rank, rank_status(world_size=3, pid=rank), now_s=0)
    run.on_status(0, rank_status(state="finished", pid=0), now_s=1)
    assert run.expire(1) is None
    run.on_status(1, rank_status(state="lost", pid=1), now_s=2)
    assert run.expire(2) is None
    run.on_status(2, rank_status(state="finished", pid=2), now_s=3)
    assert run.expire(3) is None
    assert run.expire(2 + LOST_GRACE_S) == "lost"


def test_an_end_of_a_rank_that_never_began_is_nothing() -> None:
    run = ranks()
    assert not run.on_status(0, rank_status(state="finished"), now_s=0)
    assert run.members == {}


def test_two_processes_that_claim_one_rank_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    run = ranks()
    run.on_status(0, rank_status(pid=1), now_s=0)
    for now_s in (1, 11, 21):
        assert run.on_status(0, rank_status(pid=1), now_s=now_s)
        assert not run.on_status(0, rank_status(pid=2), now_s=now_s)
    assert run.rivals_s
    assert run.members[0].status.pid == 1
    assert caplog.text.count("two processes claim rank 0") == 1


@pytest.mark.parametrize("state", ["finished", "lost"])
def test_a_conflict_ends_with_the_second_process(state: str) -> None:
    run = ranks()
    run.on_status(0, rank_status(pid=1), now_s=0)
    run.on_status(0, rank_status(pid=2), now_s=1)
    run.on_status(0, rank_status(pid=2, state=state), now_s=2)
    assert not run.rivals_s
    assert run.expire(2) is None, "the first one goes on"


def test_a_conflict_ends_when_the_second_process_is_silent() -> None:
    run = ranks()
    for now_s in range(0, 200, 10):
        run.on_status(0, rank_status(pid=1), now_s=now_s)
        if now_s == 10:
            run.on_status(0, rank_status(pid=2), now_s=now_s)
        run.expire(now_s)
        assert bool(run.rivals_s) == (10 <= now_s <= 70)


def test_a_conflict_ends_with_the_first_process_and_the_second_takes_its_place() -> None:
    run = ranks()
    run.on_status(0, rank_status(pid=1), now_s=0)
    run.on_status(0, rank_status(pid=2), now_s=1)
    run.on_status(0, rank_status(pid=1, state="lost"), now_s=2)
    assert run.on_status(0, rank_status(pid=2), now_s=3)
    assert (bool(run.rivals_s), run.members[0].status.pid) == (False, 2)


@pytest.mark.parametrize("change", [{"pid": 2}, {"started_at_s": 1.0}, {"boot_id": "other"}])
def test_a_process_is_identified_by_boot_pid_and_start(change: dict[str, object]) -> None:
    run = ranks()
    run.on_status(0, rank_status(), now_s=0)
    assert not run.on_status(0, rank_status(**change), now_s=1)
    assert run.rivals_s


def test_all_ranks_have_gathered_when_the_world_is_complete_and_iterates() -> None:
    run = ranks()
    run.on_status(0, rank_status(world_size=2, pid=0), now_s=0)
    run.on_status(1, rank_status(world_size=2, pid=1), now_s=0)
    assert not run.have_gathered(0)
    run.members[0].log.append(iterations(0, [1]), now_ns=ns(1))
    assert not run.have_gathered(1)
    run.members[1].log.append(iterations(0, [1]), now_ns=ns(1))
    assert run.have_gathered(1)


def test_ranks_on_other_nodes_are_waited_for_only_for_a_while() -> None:
    run = ranks()
    run.on_status(0, rank_status(world_size=2), now_s=0)
    run.members[0].log.append(iterations(0, [1]), now_ns=ns(1))
    assert not run.have_gathered(GATHER_S - 0.1)
    assert run.have_gathered(GATHER_S)


def test_known_is_what_every_rank_has_reported() -> None:
    run = ranks()
    assert run.known_ns() is None
    for rank in (0, 1):
        run.on_status(rank, rank_status(world_size=2, pid=rank), now_s=0)
    run.members[0].log.append(iterations(1, [2, 3]), now_ns=ns(9))
    assert run.known_ns() is None
    run.members[1].log.append(iterations(2, [5, 9]), now_ns=ns(9))
    assert run.known_ns() == (ns(2), ns(3))
    assert run.slowest is run.members[0].log


def test_what_may_be_a_late_mark_is_waited_for_until_the_run_has_ended() -> None:
    run = ranks()
    run.on_status(0, rank_status(), now_s=0)
    ends_s = [1.0 + 0.1 * n for n in range(20)]
    message = msgspec.structs.replace(iterations(0.9, [*ends_s, ends_s[-1] + 0.15]), counted_by="optimizer")
    run.members[0].log.append(message, now_ns=ns(9))
    assert run.known_ns() == (ns(0.9), ns(ends_s[-1]))
    run.on_status(0, rank_status(state="finished"), now_s=1)
    assert run.known_ns() == (ns(0.9), ns(ends_s[-1] + 0.15))


@pytest.mark.parametrize(("n_others", "running_s"), [(20, 20.0), (40, 40.0)], ids=["abreast", "on its own"])
def test_what_a_rank_waits_while_another_pauses_is_not_its_running_time(n_others: int, running_s: float) -> None:
    run = ranks()
    for rank in (0, 1):
        run.on_status(rank, rank_status(world_size=2, pid=rank), now_s=0)
    ends_s = [float(n) for n in range(1, 21)]
    waited_s = [end_s + 20 * (end_s > 10) for end_s in ends_s]  # within a step
    requests_s = [0.1, *(end_s + 0.1 for end_s in waited_s[:-1])]
    run.members[0].log.append(iterations(0, waited_s, requests_s=requests_s), now_ns=ns(100))
    run.members[1].log.append(iterations(0, [float(n) for n in range(1, n_others + 1)]), now_ns=ns(100))
    assert run.slowest.running_s == pytest.approx(40.0)
    assert run.running_s == pytest.approx(running_s)


def test_the_status_is_that_of_the_lowest_rank() -> None:
    run = ranks()
    run.on_status(3, rank_status(batch_size=64), now_s=0)
    run.on_status(1, rank_status(batch_size=32), now_s=0)
    assert run.status.batch_size == 32


@pytest.mark.parametrize("is_same", [True, False])
def test_a_checkpoint_is_resumed_by_its_own_process_and_gone_on_with_by_another(is_same: bool) -> None:
    first = ranks()
    first.on_status(0, rank_status(), now_s=0)
    assert first.members[0].log.append(iterations(0, [1, 2], epoch=3), now_ns=ns(2))
    run = Ranks(name="resnet50/run-1", lease_s=LEASE_S, checkpoints=first.checkpoints())
    assert run.on_status(0, rank_status(pid=rank_status().pid + (not is_same)), now_s=100)
    assert (run.is_resumed, run.is_restarted) == (True, not is_same)
    log = run.members[0].log
    assert log.append(iterations(100, [101], seq=is_same, first=2 * is_same, epoch=3), now_ns=ns(101))
    assert (log.n_iterations, log.running_s, log.n_epochs) == (3, 3, 4)
    again = Ranks(name="resnet50/run-1", lease_s=LEASE_S, checkpoints=run.checkpoints())
    assert again.on_status(0, run.members[0].status, now_s=200)
    assert (again.members[0].log.n_iterations, again.is_restarted) == (3, False)


@pytest.mark.parametrize(("end", "n_iterations"), [("lost", 3), (None, 3), ("finished", 1)])
def test_another_process_goes_on_with_what_was_broken_off(end: str | None, n_iterations: int) -> None:
    run = ranks()
    for rank in (0, 1):
        run.on_status(rank, rank_status(pid=rank, world_size=2), now_s=0)
        assert run.members[rank].log.append(iterations(0, [1, 2]), now_ns=ns(2))
    if end is not None:
        run.on_status(0, rank_status(pid=0, world_size=2, state=end), now_s=3)
    assert run.on_status(0, rank_status(pid=9, world_size=2), now_s=LEASE_S + 1)
    log = run.members[0].log
    if end != "finished":
        assert run.checkpoints()[0].totals.seq == -1, "the other process numbers its messages from 0"
    assert log.append(iterations(100, [101]), now_ns=ns(101))
    assert log.n_iterations == n_iterations


def test_the_checkpoint_of_a_rank_that_is_yet_to_come_is_kept() -> None:
    first = ranks()
    for rank in (0, 1):
        first.on_status(rank, rank_status(pid=rank, world_size=2), now_s=0)
        assert first.members[rank].log.append(iterations(0, [1, 2]), now_ns=ns(2))
    second = Ranks(name="resnet50/run-1", lease_s=LEASE_S, checkpoints=first.checkpoints())
    assert second.checkpoints() == {}
    second.on_status(0, rank_status(pid=0, world_size=2), now_s=10)
    assert second.checkpoints() == first.checkpoints()


def test_a_run_is_succeeded_where_all_of_its_processes_have_finished() -> None:
    run = ranks()
    for rank in (0, 1):
        run.on_status(rank, rank_status(pid=rank, world_size=2), now_s=0)

    def is_succeeded(number: int, **changes: object) -> bool:
        return run.is_succeeded_by(number, rank_status(**({"pid": 9} | changes)))

    run.on_status(0, rank_status(pid=0, world_size=2, state="finished"), now_s=1)
    assert not is_succeeded(0), "the other one goes on"
    run.on_status(1, rank_status(pid=1, world_size=2, state="finished"), now_s=1)
    assert is_succeeded(0)
    assert not is_succeeded(0, pid=0), "it is back"
    assert not is_succeeded(0, state="finished")
    assert not is_succeeded(2), "it takes no place"


def test_a_run_that_was_lost_has_no_successor_but_is_gone_on_with() -> None:
    run = ranks()
    run.on_status(0, rank_status(), now_s=0)
    run.on_status(0, rank_status(state="lost"), now_s=1)
    assert not run.is_succeeded_by(0, rank_status(pid=9))
    assert run.on_status(0, rank_status(pid=9), now_s=2)
    assert run.ending is None


def pool(n: int) -> Ranks:
    """Return ranks that were runs of their own, each with ten iterations of a second."""
    whole = ranks()
    for number in range(n):
        run = whole if not number else ranks()
        run.on_status(0, rank_status(pid=number, total_iterations=100), now_s=0)
        run.members[0].log.append(iterations(0, [float(k) for k in range(1, 11)]), now_ns=ns(10))
        if number:
            assert whole.adopt(run.members[0], now_s=0) == number
    return whole


def test_the_iterations_of_a_pool_are_those_of_all() -> None:
    run = pool(3)
    (log,) = run.logs
    assert run.slowest is log
    assert (log.n_iterations, log.total_iterations(None)) == (30.0, 300.0)
    assert run.running_s == pytest.approx(10.0)
    assert run.known_ns() == (0, ns(10))
    activity = log.activity(ns(2), ns(4))
    assert (activity.n_iterations, activity.is_continuous, activity.gaps_s) == (6.0, True, 0.0)
    assert run.have_gathered(10)
    assert not run.is_multi_node


def test_the_time_in_which_one_of_a_pool_ends_or_begins_is_of_no_one_rate() -> None:
    run = pool(2)
    run.members[1].log.append(iterations(10, [11.0, 12.0], seq=1, first=10), now_ns=ns(12))
    run.on_status(0, rank_status(pid=0, state="finished"), now_s=12)
    (log,) = run.logs
    assert log.end_ns == ns(12)
    assert not log.activity(ns(9), ns(11)).is_continuous
    alone = log.activity(ns(10), ns(12))
    assert (alone.n_iterations, alone.is_continuous) == (2.0, True)
    assert log.n_iterations == 22.0


def test_the_size_of_a_pool_changes_where_its_curve_is_closed() -> None:
    run = pool(2)
    assert (run.is_resized, run.status.world_size) == (True, 1)
    run.resize()
    assert (run.is_resized, run.status.world_size) == (False, 2)
    run.on_status(1, rank_status(pid=1, state="finished"), now_s=12)
    assert (run.is_resized, run.status.world_size) == (True, 2)
    run.on_status(0, rank_status(pid=0, state="finished"), now_s=13)
    assert (run.is_resized, run.status.world_size, run.last) == (False, 2, 0)
