"""Answers: the trial where the desk says one, else the default and why, always in time and by one process."""

import asyncio

import pytest

from policies.service.answers import TIMEOUT_S, Answers, Question
from policies.service.errors import JobMismatchError, RequestError
from policies.service.mailbox import Mailbox
from policies.service.metrics import Metrics
from policies.service.news import Answered, Story
from publishers.wire import TrialAnswer, TrialRequest, decode
from tests.fakes import FakeBus
from tests.policies.service.memory_desk import LEASE_S, NOW_S, TOPICS, MemoryDesk, trial_request

JOB = "resnet50"
REPLY_TO = TOPICS.run(JOB, "r1", "trial/answer")


class Bench:
    """One process that answers."""

    def __init__(self, desk: MemoryDesk | None = None) -> None:
        self.desk = desk or MemoryDesk()
        self.bus = FakeBus()
        self.kept: list[Story] = []
        self.questions: Mailbox[Question] = Mailbox(100)
        self.answers = Answers(self.questions, desk=self.desk, bus=self.bus, keep=self.kept.append, metrics=Metrics())

    async def ask(self, request: TrialRequest | None = None, *, job: str = JOB) -> list[TrialAnswer]:
        loop_s = asyncio.get_running_loop().time()
        question = Question(job=job, request=request or trial_request(), at_s=NOW_S, loop_s=loop_s)
        await self.answers.answer(question)
        return self.heard()

    def heard(self) -> list[TrialAnswer]:
        return [decode(payload, TrialAnswer) for payload in self.bus.payloads(REPLY_TO)]


async def test_a_run_is_told_its_trial() -> None:
    bench = Bench()
    (answer,) = await bench.ask()
    assert (answer.run, answer.correlation, answer.batch_size) == ("r1", "c1", 64)
    assert (answer.reason, answer.detail, answer.recurrence, answer.lease_s) == ("thompson", "chosen", 0, LEASE_S)
    (sent,) = bench.bus.sent
    assert (sent.qos, sent.retain) == (1, False)


async def test_of_several_processes_one_answers_a_question() -> None:
    desk = MemoryDesk()
    benches = [Bench(desk) for _ in range(4)]
    answers = [await bench.ask() for bench in benches]
    assert sum(map(len, answers)) == 1
    assert desk.calls.count("ask") == 1


async def test_a_repeated_question_gets_the_same_answer() -> None:
    bench = Bench()
    await bench.ask()
    first, second = await bench.ask(trial_request(correlation="c2"))
    assert (first.batch_size, second.batch_size, second.correlation) == (64, 64, "c2")
    assert len(bench.desk.trials) == 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [(JobMismatchError("other candidates"), "job_mismatch"), (RequestError(["a", "b"]), "invalid_request")],
)
async def test_a_question_that_cannot_be_answered_gets_the_default_and_why(error: Exception, reason: str) -> None:
    bench = Bench()
    bench.desk.error = error
    (answer,) = await bench.ask()
    assert (answer.batch_size, answer.reason, answer.detail, answer.lease_s) == (32, reason, str(error), None)
    assert bench.kept == []


async def test_without_the_database_the_default_is_answered_at_once_and_the_run_taken_in_later() -> None:
    bench = Bench()
    bench.desk.is_away = True
    (answer,) = await bench.ask()
    assert (answer.batch_size, answer.reason, answer.lease_s) == (32, "store_unavailable", None)
    assert asyncio.get_running_loop().time() == 0
    assert bench.kept == [
        Answered(
            job=JOB,
            run="r1",
            at_s=NOW_S,
            batch_sizes=(32, 64, 128),
            default_batch_size=32,
            reason="store_unavailable",
            detail="the database does not answer",
        )
    ]


async def test_a_default_that_is_no_candidate_is_answered_and_not_taken_in() -> None:
    bench = Bench()
    bench.desk.is_away = True
    (answer,) = await bench.ask(trial_request(default_batch_size=1_000))
    assert (answer.batch_size, bench.kept) == (1_000, [])


async def test_a_database_that_hangs_is_not_waited_for_longer_than_a_run_waits() -> None:
    bench = Bench()
    bench.desk.delay_s = 3_600.0
    (answer,) = await bench.ask()
    assert (answer.batch_size, answer.reason) == (32, "store_unavailable")
    assert asyncio.get_running_loop().time() == TIMEOUT_S
    assert len(bench.kept) == 1


async def test_the_time_in_the_mailbox_counts() -> None:
    bench = Bench()
    bench.desk.delay_s = 1.0
    question = Question(job=JOB, request=trial_request(), at_s=NOW_S, loop_s=asyncio.get_running_loop().time())
    await asyncio.sleep(TIMEOUT_S - 0.5)
    await bench.answers.answer(question)
    assert [answer.reason for answer in bench.heard()] == ["store_unavailable"]


async def test_a_long_sentence_is_cut() -> None:
    bench = Bench()
    bench.desk.error = JobMismatchError("x" * 5_000)
    (answer,) = await bench.ask()
    assert answer.detail == "x" * 1_024


async def test_a_bug_with_one_job_leaves_nobody_without_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.desk.error = ZeroDivisionError("a bug")
    (answer,) = await bench.ask()
    assert (answer.batch_size, answer.reason) == (32, "failed")
    assert [record.levelname for record in caplog.records] == ["ERROR"]


async def test_one_slow_transaction_does_not_hold_the_others() -> None:
    bench = Bench()
    bench.desk.delay_s = 1.0
    async with asyncio.TaskGroup() as tasks:
        workers = [tasks.create_task(bench.answers.run()) for _ in range(4)]
        for number in range(4):
            request = trial_request(correlation=f"c{number}")
            loop_s = asyncio.get_running_loop().time()
            bench.questions.put(number, Question(job=JOB, request=request, at_s=NOW_S, loop_s=loop_s))
        await asyncio.sleep(2.1)
        assert len(bench.heard()) == 4
        for worker in workers:
            worker.cancel()
