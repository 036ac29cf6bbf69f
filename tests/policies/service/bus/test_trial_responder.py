"""Answers: the trial from the database, else the default and why, always in time and by one process."""

import asyncio
from functools import partial

import pytest

from policies.service.bus.events import DefaultAnswered, RunEvent
from policies.service.bus.subscriber import EventSubscriber
from policies.service.bus.trial_responder import FOLLOW_S, TIMEOUT_S, TrialResponder
from policies.service.errors import JobMismatchError, RequestError
from policies.service.metrics import Metrics
from policies.service.records import Result
from policies.service.store.queries import add_claim
from publishers.messages.codec import decode, encode
from publishers.messages.topics import RunKey
from publishers.messages.training import TrialAnswer, TrialRequest
from tests.fakes import USER, FakeBus
from tests.policies.service.memory_store import LEASE_S, NOW_S, TOPICS, MemoryTrials, trial_request
from tests.policies.service.repositories import job_key, run_key

JOB = "resnet50"
REPLY_TO = TOPICS.run(RunKey(USER, JOB, "r1"), "trial/answer")


class Bench:
    """One process that answers; it hears what all of them answer."""

    def __init__(self, memory: MemoryTrials | None = None, bus: FakeBus | None = None) -> None:
        self.memory = memory or MemoryTrials()
        self.bus = bus or FakeBus()
        self.subscriber = EventSubscriber(TOPICS, clock_s=lambda: NOW_S, heartbeat_period_s=60.0, grace_s=30.0)
        self.subscriber.subscribe(self.bus)
        self.responder = TrialResponder(
            self.subscriber.requests,
            trials=self.memory.trials,
            bus=self.bus,
            answers=self.subscriber.answers,
            metrics=Metrics(),
        )

    async def ask(self, request: TrialRequest | None = None) -> list[TrialAnswer]:
        self.say(request or trial_request())
        await self.responder.answer(await self.subscriber.requests.get())
        return self.heard()

    def say(self, request: TrialRequest) -> None:
        self.bus.publish(TOPICS.run(RunKey(USER, JOB, "r1"), "trial/request"), encode(request), qos=1)

    def say_of(self, run: str) -> None:
        request = trial_request(run=run, correlation=f"{run}/{len(self.bus.sent)}", reply_to=self.reply_to(run))
        self.bus.publish(TOPICS.run(RunKey(USER, JOB, run), "trial/request"), encode(request), qos=1)

    def is_answered(self, run: str) -> bool:
        return bool(self.bus.payloads(self.reply_to(run)))

    def reply_to(self, run: str) -> str:
        return TOPICS.run(RunKey(USER, JOB, run), "trial/answer")

    def heard(self) -> list[TrialAnswer]:
        return [decode(payload, TrialAnswer) for payload in self.bus.payloads(REPLY_TO)]

    def kept(self) -> list[RunEvent]:
        return self.subscriber.events.drain()


async def test_a_run_gets_its_trial() -> None:
    bench = Bench()
    await bench.memory.open()
    (answer,) = await bench.ask()
    assert (answer.run, answer.correlation, answer.batch_size) == ("r1", "c1", 64)
    assert (answer.reason, answer.detail, answer.recurrence, answer.lease_s) == ("thompson", "chosen", 0, LEASE_S)
    sent = bench.bus.sent[-1]
    assert (sent.qos, sent.retain) == (1, False)


async def test_a_run_is_told_what_it_may_time() -> None:
    bench = Bench()
    (answer,) = await bench.ask()
    assert answer.untimed == [32, 64, 128]


async def test_of_several_processes_one_answers_a_question() -> None:
    memory, bus = MemoryTrials(), FakeBus()
    benches = [Bench(memory, bus) for _ in range(4)]
    benches[0].say(trial_request())
    for bench in benches:
        await bench.responder.answer(await bench.subscriber.requests.get())
    assert len(benches[0].heard()) == 1
    assert memory.database.n_writes == 1  # claim and trial in one transaction


async def test_a_repeated_question_gets_the_same_answer() -> None:
    bench = Bench()
    await bench.memory.open()
    await bench.ask()
    await asyncio.sleep(1)
    first, second = await bench.ask(trial_request(correlation="c2"))
    assert (first.batch_size, second.batch_size, second.correlation) == (64, 64, "c2")
    assert len(await bench.memory.jobs.trials(job_key(JOB))) == 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [(JobMismatchError("other candidates"), "job_mismatch"), (RequestError(["a", "b"]), "invalid_request")],
)
async def test_a_question_that_cannot_be_answered_gets_the_default_and_why(error: Exception, reason: str) -> None:
    bench = Bench()
    bench.memory.database.error = error
    (answer,) = await bench.ask()
    assert (answer.batch_size, answer.reason, answer.detail, answer.lease_s) == (32, reason, str(error), None)
    assert bench.kept() == []


async def test_without_the_database_the_default_is_answered_at_once_and_stored_later() -> None:
    bench = Bench()
    bench.memory.database.is_away = True
    (answer,) = await bench.ask()
    assert (answer.batch_size, answer.reason, answer.lease_s) == (32, "store_unavailable", None)
    assert asyncio.get_running_loop().time() == 0
    assert bench.kept() == [
        DefaultAnswered(
            user=USER,
            job=JOB,
            run="r1",
            at_s=NOW_S,
            batch_sizes=(32, 64, 128),
            default_batch_size=32,
            reason="store_unavailable",
            detail="memory: the database is away; check that it runs, its address, its access rules and its space",
        )
    ]


async def test_a_default_that_is_no_candidate_is_answered_and_not_recorded() -> None:
    bench = Bench()
    bench.memory.database.is_away = True
    (answer,) = await bench.ask(trial_request(default_batch_size=1_000))
    assert (answer.batch_size, bench.kept()) == (1_000, [])


async def test_a_database_that_hangs_is_not_waited_for_longer_than_a_run_waits() -> None:
    bench = Bench()
    bench.memory.database.delay_s = 3_600.0
    (answer,) = await bench.ask()
    assert (answer.batch_size, answer.reason) == (32, "store_unavailable")
    assert asyncio.get_running_loop().time() == TIMEOUT_S
    assert len(bench.kept()) == 1


async def test_the_time_in_the_mailbox_counts() -> None:
    bench = Bench()
    bench.memory.database.delay_s = 1.0
    bench.say(trial_request())
    await asyncio.sleep(TIMEOUT_S - 0.5)
    await bench.responder.answer(await bench.subscriber.requests.get())
    assert [answer.reason for answer in bench.heard()] == ["store_unavailable"]


async def test_a_long_sentence_is_cut() -> None:
    bench = Bench()
    bench.memory.database.error = JobMismatchError("x" * 5_000)
    (answer,) = await bench.ask()
    assert answer.detail == "x" * 1_024


async def test_a_bug_with_one_job_leaves_nobody_without_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.memory.database.error = ZeroDivisionError("a bug")
    (answer,) = await bench.ask()
    assert (answer.batch_size, answer.reason) == (32, "failed")
    assert [record.levelname for record in caplog.records] == ["ERROR"]


async def test_one_slow_transaction_does_not_hold_the_others() -> None:
    bench = Bench()
    bench.memory.database.delay_s = 1.0
    async with asyncio.TaskGroup() as tasks:
        workers = [tasks.create_task(bench.responder.run()) for _ in range(4)]
        for number in range(4):
            bench.say_of(f"run-{number}")
        await asyncio.sleep(2.1)
        assert all(bench.is_answered(f"run-{number}") for number in range(4))
        for worker in workers:
            worker.cancel()


async def test_after_a_default_without_the_database_no_process_answers_otherwise() -> None:
    bus, memory, away = FakeBus(), MemoryTrials(), MemoryTrials()
    await memory.open()
    away.database.is_away, memory.database.delay_s = True, 2.0
    connected, disconnected = Bench(memory, bus), Bench(away, bus)
    connected.say(trial_request())
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(connected.responder.answer(await connected.subscriber.requests.get()))
        await asyncio.sleep(1.5)  # it is about to get its trial
        await disconnected.responder.answer(await disconnected.subscriber.requests.get())
    assert [answer.batch_size for answer in connected.heard()] == [32]
    (event,) = connected.kept()
    assert (await memory.trial()).batch_size == 64
    await event.apply(memory.trials)
    assert (await memory.trial()).batch_size == 32


async def test_a_process_without_the_database_says_what_another_one_has_said() -> None:
    bus, memory, away = FakeBus(), MemoryTrials(), MemoryTrials()
    await memory.open()
    away.database.is_away = True
    connected, disconnected = Bench(memory, bus), Bench(away, bus)
    connected.say(trial_request())
    for bench in (connected, disconnected):
        await bench.responder.answer(await bench.subscriber.requests.get())
    assert [answer.batch_size for answer in connected.heard()] == [64]
    await asyncio.sleep(1)
    connected.say(trial_request(correlation="c2"))
    await disconnected.responder.answer(await disconnected.subscriber.requests.get())
    assert [answer.batch_size for answer in connected.heard()] == [64, 64]
    assert connected.kept() == disconnected.kept() == []


async def test_a_run_that_asks_again_is_told_what_it_was_told_without_the_database() -> None:
    bench = Bench()
    bench.memory.database.is_away = True
    await bench.ask()
    bench.memory.database.is_away = False
    await asyncio.sleep(1)
    *_, second = await bench.ask(trial_request(correlation="c2"))
    assert (second.batch_size, second.reason, second.lease_s) == (32, "store_unavailable", LEASE_S)
    assert (await bench.memory.trial()).batch_size == 32


async def test_while_the_database_hangs_every_question_is_answered_in_time() -> None:
    bench = Bench()
    bench.memory.database.delay_s = 3_600.0
    n_requests = 50
    async with asyncio.TaskGroup() as tasks:
        workers = [tasks.create_task(bench.responder.run()) for _ in range(2)]
        workers.append(tasks.create_task(bench.responder.run_overdue()))
        for number in range(n_requests):
            bench.say_of(f"run-{number}")
        for _ in range(6):
            await asyncio.sleep(1)
            for number in range(n_requests):  # as long as there is no answer, it is repeated
                if not bench.is_answered(f"run-{number}"):
                    bench.say_of(f"run-{number}")
        assert all(bench.is_answered(f"run-{number}") for number in range(n_requests))
        for worker in workers:
            worker.cancel()


async def test_a_process_that_claims_a_question_and_dies_leaves_no_run_without_an_answer() -> None:
    bench = Bench()
    await bench.memory.open()
    for number in range(5):
        bench.say(trial_request(correlation=f"c{number}"))
        correlation = f"c{number}"  # somebody is always faster, and dies
        await bench.memory.store.write(partial(add_claim, correlation=correlation, now_s=NOW_S))
        await bench.responder.answer(await bench.subscriber.requests.get())
        await asyncio.sleep(1)
    (answer,) = bench.heard()
    assert (answer.correlation, answer.batch_size, answer.reason) == ("c3", 64, "thompson")


async def test_a_run_that_has_given_up_and_asks_anew_is_not_overdue() -> None:
    bench = Bench()
    await bench.memory.open()
    bench.say(trial_request(correlation="c1"))
    await bench.subscriber.requests.get()
    await asyncio.sleep(60)
    (answer,) = await bench.ask(trial_request(correlation="c2"))
    assert answer.reason == "thompson"


async def test_a_question_that_was_repeated_before_its_answer_came_is_settled_by_it() -> None:
    bench = Bench()
    bench.say(trial_request(correlation="c1"))
    first = await bench.subscriber.requests.get()
    bench.say(trial_request(correlation="c2"))
    second = await bench.subscriber.requests.get()
    for pending in (first, second):
        await bench.responder.answer(pending)
    assert [answer.correlation for answer in bench.heard()] == ["c1"]
    assert bench.memory.database.n_begun == 1


async def test_a_slower_process_claims_nothing_until_the_faster_one_dies() -> None:
    memory, bus = MemoryTrials(), FakeBus()
    memory.database.delay_s = 0.01
    fast, slow = Bench(memory, bus), Bench(memory, bus)

    async def answered(run: str, *benches: Bench) -> None:
        fast.say_of(run)
        requests = [await bench.subscriber.requests.get() for bench in (fast, slow)]
        async with asyncio.TaskGroup() as tasks:
            for bench, pending in zip((fast, slow), requests, strict=True):
                if bench in benches:
                    tasks.create_task(bench.responder.answer(pending))
        assert fast.is_answered(run)

    await answered("r1", fast, slow)
    assert memory.database.n_writes == 1 + 1
    await answered("r2", fast, slow)
    assert memory.database.n_writes == 2 + 1
    await answered("r3", slow)
    await answered("r4", slow)
    assert asyncio.get_running_loop().time() == pytest.approx(0.01 + FOLLOW_S + (FOLLOW_S + 0.01) + 0.01)


async def test_a_run_that_ended_long_ago_is_told_so_and_it_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    await bench.memory.open()
    done = Result(outcome="reached", epochs=1)
    await bench.memory.trials.report(run_key("r1", JOB), done, now_s=NOW_S - 86_400.0)
    for correlation in ("c1", "c2"):
        await bench.ask(trial_request(correlation=correlation))
    told = {(answer.batch_size, answer.reason, answer.lease_s, answer.recurrence) for answer in bench.heard()}
    assert told == {(64, "run_has_ended", None, None)}
    (record,) = caplog.records
    assert record.getMessage() == (
        "alice/resnet50/r1: run r1 ended (reached) 86400 s ago: it gets the same batch size, and nothing is learned "
        "from it; give each recurrence a run id of its own"
    )
