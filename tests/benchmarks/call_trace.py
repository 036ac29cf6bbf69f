"""How many of our own functions and files one event passes through: `python -m tests.benchmarks.call_trace [--list]`.

A whole controller runs on virtual time (fake GPUs, a bus in one process; router, runs, limiters and meters are real).
When its plan has settled, `sys.setprofile` counts the calls of functions below controller/, policies/ and publishers/
for one `iterations` message that changes no limit, and one tick without any message; then, for the policy service on
SQLite, from the message of a run's final energy to its stored trial, and from the request of a run to its answer.
Comprehensions, lambdas, generator expressions and resumed coroutines are not counted.
"""

import argparse
import asyncio
import platform
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType

import async_solipsism

from policies.service.bus.event_spool import EventSpool, SpoolFile
from policies.service.bus.event_writer import EventWriter
from policies.service.bus.subscriber import EventSubscriber
from policies.service.bus.trial_responder import TrialResponder
from policies.service.config import LearningConfig
from policies.service.metrics import Metrics
from policies.service.store.store import open_store
from policies.service.trials.repository import TrialRepository
from publishers.messages.codec import encode
from publishers.messages.topics import RunKey, Topics
from tests.fakes import FakeBus
from tests.policies.service.memory_store import final_energy, trial_request
from tests.scenarios.site import Site, Training, prior_gpu

ROOT = Path(__file__).parents[2]
OURS = tuple(str(ROOT / package) + "/" for package in ("controller", "gridchase", "policies", "publishers"))
SETTLED_S = 6 * 3_600.0
TICK_S = 5.0
N_ITERATIONS = 6


class Trace:
    """The calls of one trip, in their order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self._seen: set[int] = set()
        self._kept: list[FrameType] = []  # so that no identity is used twice

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Count one call of ours."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(OURS) or _is_inline(code) or id(frame) in self._seen:
            return
        self._seen.add(id(frame))
        self._kept.append(frame)
        self.calls.append((code.co_filename.removeprefix(f"{ROOT}/"), code.co_qualname))

    def row(self, trip: str) -> str:
        """Return a row of the table."""
        files = [file for file, _ in self.calls]
        switches = sum(a != b for a, b in pairwise(files))
        return f"| {trip} | {len(files)} | {len(set(files))} | {len(set(self.calls))} | {switches} |"


def _is_inline(code: CodeType) -> bool:
    return code.co_name in {"<listcomp>", "<lambda>", "<genexpr>", "<dictcomp>", "<setcomp>", "<module>"}


class _Workers:
    """Passes the calls of worker threads, which are profiled from their start, to the present trace."""

    trace: Trace | None = None

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Count one call."""
        if self.trace is not None:
            self.trace(frame, event, argument)


_WORKERS = _Workers()


@contextmanager
def traced() -> Iterator[Trace]:
    """Trace the calls of the body."""
    trace = Trace()
    _WORKERS.trace = trace
    sys.setprofile(trace)
    try:
        yield trace
    finally:
        sys.setprofile(None)
        _WORKERS.trace = None


def _hold_back(epoch: int = 0) -> None:
    """Publish nothing yet."""
    del epoch


async def _trips(state_dir: Path) -> dict[str, Trace]:
    site = Site(state_dir, [prior_gpu()], "profiler.n_blocks=3")
    training = Training(site)
    async with site.controlled():
        await training.train(SETTLED_S)
        n_written = len(site.gpus[0].history)
        flush = training.flush
        training.flush = _hold_back  # type: ignore[method-assign]
        await training.train(N_ITERATIONS / 0.45)
        with traced() as message:
            flush()
            for _ in range(20):
                await asyncio.sleep(0)
        with traced() as tick:
            await site.clock.sleep_until(site.clock.now_s() + TICK_S)
            for _ in range(20):
                await asyncio.sleep(0)
        assert len(site.gpus[0].history) == n_written, "a limit was written during the trip"
    return {"one iterations message, no new limit": message, f"one tick of {TICK_S:g} s without a message": tick}


async def _policy_trips(state_dir: Path) -> dict[str, Trace]:
    threading.setprofile(_WORKERS)
    async with open_store(f"sqlite:///{state_dir}/policy.sqlite", timeout_s=60.0) as store:
        trials, metrics, bus, topics = TrialRepository(store, LearningConfig()), Metrics(), FakeBus(), Topics()
        subscriber = EventSubscriber(topics, clock_s=time.time, heartbeat_period_s=60.0)
        subscriber.subscribe(bus)
        spool = EventSpool(SpoolFile(state_dir / "events.sqlite"), trials)
        responder = TrialResponder(
            subscriber.requests, trials=trials, bus=bus, answers=subscriber.answers, metrics=metrics
        )
        writer = EventWriter(
            subscriber.events,
            trials=trials,
            bus=bus,
            topics=topics,
            spool=spool,
            metrics=metrics,
            unknown_run_s=60.0,
        )

        async def request(run: str) -> None:
            reply_to = topics.run(RunKey("alice", "resnet50", run), "trial/answer")
            message = trial_request(run=run, correlation=run, reply_to=reply_to)
            bus.publish(topics.run(RunKey("alice", "resnet50", run), "trial/request"), encode(message), qos=1)
            await responder.answer(await subscriber.requests.get())

        async def end(run: str) -> None:
            energy = final_energy(run=run, reached=True, batch_size=32)
            bus.publish(topics.run(RunKey("alice", "resnet50", run), "energy"), encode(energy), qos=1, retain=True)
            await writer.write(await subscriber.events.get())

        for run in ("r1", "r2"):
            await request(run)
            await end(run)
        with traced() as question:
            await request("r3")
        with traced() as ended:
            await end("r3")
    threading.setprofile(None)
    return {"final energy of an ended run to its stored trial": ended, "request of a run to its batch size": question}


def main() -> None:
    """Print the table, and each call with --list."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print every call in its order")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        loop = async_solipsism.EventLoop()
        trips = loop.run_until_complete(_trips(Path(directory)))
        loop.close()
    with tempfile.TemporaryDirectory() as directory:
        trips |= asyncio.run(_policy_trips(Path(directory)))
    print(f"Python {platform.python_version()}, own functions only\n")
    print("| trip | calls | files | functions | file switches |")
    print("|---|---:|---:|---:|---:|")
    for trip, trace in trips.items():
        print(trace.row(trip))
    for trip, trace in trips.items() if arguments.list else ():
        print(f"\n{trip}")
        for (file, function), n in Counter(trace.calls).items():
            print(f"{n:5} {file}:{function}")


if __name__ == "__main__":
    main()
