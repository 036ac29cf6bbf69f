"""What waits for a run to be retired: the newest status of each rank, and the iterations that belong to it."""

from controller.runs.successor_buffer import MAX_BUFFERED, SuccessorBuffer
from publishers.messages.topics import RunKey
from tests.controller.messages import iterations, rank_status

RUN = RunKey("alice", "resnet50", "run-1")


def test_statuses_come_before_the_iterations_and_are_taken_once() -> None:
    runs = SuccessorBuffer()
    first, newest, message = rank_status(pid=1), rank_status(pid=1, reached=True), iterations(0, [1, 2])
    runs.keep_status(RUN, 0, first)
    runs.keep_iterations(RUN, 0, message)
    runs.keep_status(RUN, 0, newest)
    assert runs.pop(RUN) == [(0, newest), (0, message)]
    assert runs.pop(RUN) == []


def test_iterations_before_a_status_are_of_the_ended_run() -> None:
    runs = SuccessorBuffer()
    status = rank_status()
    runs.keep_iterations(RUN, 0, iterations(0, [1, 2]))
    runs.keep_status(RUN, 0, status)
    runs.keep_iterations(RUN, 1, iterations(0, [1, 2]))
    assert runs.pop(RUN) == [(0, status)]


def test_a_successor_that_has_ended_leaves_nothing() -> None:
    runs = SuccessorBuffer()
    other = rank_status(pid=2)
    for rank in (0, 1):
        runs.keep_status(RUN, rank, rank_status(pid=1))
        runs.keep_iterations(RUN, rank, iterations(0, [1, 2]))
    runs.keep_status(RUN, 0, rank_status(pid=1, state="finished"))
    runs.keep_status(RUN, 1, other)
    runs.keep_status(RUN, 1, rank_status(pid=1, state="lost"))
    assert runs.pop(RUN) == [(1, other)]


def test_the_buffer_is_bounded() -> None:
    runs = SuccessorBuffer()
    for number in range(2 * MAX_BUFFERED):
        runs.keep_status(RUN, number, rank_status())
        runs.keep_iterations(RUN, 0, iterations(number, [number + 1], seq=number))
    kept = runs.pop(RUN)
    assert len(kept) == 2 * MAX_BUFFERED
    assert kept[-1] == (0, iterations(2 * MAX_BUFFERED - 1, [2 * MAX_BUFFERED], seq=2 * MAX_BUFFERED - 1))
