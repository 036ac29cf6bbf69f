"""Training processes that publish to a real mosquitto: what arrives, and what is said when they end or are killed."""

import itertools
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gridchase import Publisher
from publishers.messages.codec import decode
from publishers.messages.topics import RunKey, Topics
from publishers.messages.training import Iterations, Metric
from publishers.training.iterations.published_loader import PublishedSized
from tests.fakes import USER
from tests.live.conftest import Mosquitto, wait_until
from tests.live.subscriber import listening

pytestmark = pytest.mark.live
ENDLESS = """
import sys, time
from gridchase import publish_iterations
def batches():
    while True:
        time.sleep(0.001)
        yield None
for _ in publish_iterations(batches(), job="toy", run="r1", broker=sys.argv[1], flush_s=0.02):
    pass
"""
SHORT = """
import sys
from gridchase import publish_iterations
for epoch in range(3):
    for _ in publish_iterations(range(1000), job="toy", run="r1", broker=sys.argv[1]):
        pass
"""
IN_A_FUNCTION = """
import sys
from gridchase import Publisher
def main():
    publisher = Publisher(job="toy", run="r1", broker=sys.argv[1], flush_s=5.0)
    for epoch in publisher.epochs(3):
        for _ in range(1000):
            publisher.iteration()
    publisher.metric(0.9, reached=True)
main()
"""
FAILING = SHORT + "\nraise SystemError('the training is broken')\n"
FORKING = """
import os, sys, time
from gridchase import publish_iterations, publisher_of
batches = publish_iterations(range(10**9), job="toy", run="r1", broker=sys.argv[1], flush_s=0.02)
for k, _ in enumerate(batches):
    time.sleep(0.001)
    if k == 300 and os.fork() == 0:
        assert publisher_of(batches).closed
        own = publish_iterations(range(3), job="toy", run="child", broker=sys.argv[1], flush_s=0.02)
        assert list(own) == [0, 1, 2]
        publisher_of(own).close()
        time.sleep(60)
        os._exit(0)
"""


@contextmanager
def training(script: str, url: str) -> Iterator[subprocess.Popen[str]]:
    """Run a training script in a process of its own."""
    child = subprocess.Popen([sys.executable, "-c", script, url], stderr=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.communicate(timeout=10.0)


def assert_complete(messages: list[Iterations], n_iterations: int) -> None:
    """Check that every iteration arrived once, in order, in messages without a gap."""
    assert [message.seq for message in messages] == list(range(len(messages)))
    numbers = [message.first + k for message in messages for k in range(len(message.ends_ns()))]
    assert numbers == list(range(n_iterations))
    assert {message.dropped for message in messages} == {0}
    for before, after in itertools.pairwise(messages):
        assert after.begin_ns >= before.ends_ns()[-1]


def assert_only_unmeasured(stderr: str) -> None:
    """Check that nothing was printed but the summary of a run that no controller has heard."""
    (line,) = stderr.splitlines()
    assert line.startswith("gridchase: toy run r1: not measured: it was too short to be heard by a controller")


def test_every_iteration_arrives_once_and_the_end_is_published_at_exit(broker: Mosquitto) -> None:
    with listening(broker.port) as subscriber, training(SHORT, broker.url) as child:
        _, stderr = child.communicate(timeout=60.0)
        wait_until(lambda: subscriber.statuses() and subscriber.statuses()[-1].state == "finished")
        assert child.returncode == 0
        assert_only_unmeasured(stderr)
        assert [status.state for status in subscriber.statuses()] == ["running", "finished"]
        assert subscriber.statuses()[-1].pid == child.pid
        assert_complete(subscriber.iterations(), 3_000)
        assert {message.epoch for message in subscriber.iterations()} == {0, 1, 2}


def test_a_publisher_local_to_a_function_publishes_its_end(broker: Mosquitto) -> None:
    with listening(broker.port) as subscriber, training(IN_A_FUNCTION, broker.url) as child:
        _, stderr = child.communicate(timeout=60.0)
        wait_until(lambda: subscriber.statuses() and subscriber.statuses()[-1].state != "running")
        assert child.returncode == 0
        assert_only_unmeasured(stderr)
        assert (subscriber.statuses()[-1].state, subscriber.statuses()[-1].reached) == ("finished", True)
        assert_complete(subscriber.iterations(), 3 * 999)  # the first call of an epoch begins its first iteration


def test_the_status_is_retained(broker: Mosquitto) -> None:
    with training(SHORT, broker.url) as child:
        child.communicate(timeout=60.0)
    with listening(broker.port) as late:
        wait_until(late.statuses)
        assert [(status.state, status.reached) for status in late.statuses()] == [("finished", None)]
        assert late.seen[0][2], "it came as a retained message"
        assert late.iterations() == []


def test_a_failing_training_is_lost_and_prints_only_its_own_error(broker: Mosquitto) -> None:
    with listening(broker.port) as subscriber, training(FAILING, broker.url) as child:
        _, stderr = child.communicate(timeout=60.0)
        wait_until(lambda: subscriber.statuses() and subscriber.statuses()[-1].state == "lost")
        assert child.returncode == 1
        assert stderr.splitlines()[-1] == "SystemError: the training is broken"
        assert "gridchase" not in stderr
        assert subscriber.statuses()[-1].reached is None


def test_the_last_will_of_a_killed_training_is_lost(broker: Mosquitto) -> None:
    with listening(broker.port) as subscriber, training(ENDLESS, broker.url) as child:
        wait_until(lambda: subscriber.n_iterations() > 50, timeout_s=30.0)
        child.kill()
        wait_until(lambda: subscriber.statuses()[-1].state == "lost")
        assert subscriber.statuses()[-1].pid == child.pid


def test_sigterm_still_ends_the_training(broker: Mosquitto) -> None:
    with listening(broker.port) as subscriber, training(ENDLESS, broker.url) as child:
        wait_until(lambda: subscriber.n_iterations() > 50, timeout_s=30.0)
        child.terminate()
        child.wait(10.0)
        assert child.returncode == -signal.SIGTERM
        wait_until(lambda: subscriber.statuses()[-1].state == "lost")


def test_a_forked_worker_holds_no_will_back_and_may_publish_itself(broker: Mosquitto) -> None:
    with listening(broker.port) as subscriber, training(FORKING, broker.url) as child:
        wait_until(
            lambda: subscriber.statuses("child") and subscriber.statuses("child")[-1].state == "finished",
            timeout_s=30.0,
        )
        worker_pid = subscriber.statuses("child")[-1].pid
        wait_until(lambda: subscriber.n_iterations() > 400)
        assert worker_pid != child.pid
        assert {status.pid for status in subscriber.statuses()} == {child.pid}
        child.send_signal(signal.SIGKILL)
        try:
            wait_until(lambda: subscriber.statuses()[-1].state == "lost")
        finally:
            os.kill(worker_pid, signal.SIGKILL)


def test_a_metric_arrives(broker: Mosquitto) -> None:
    with listening(broker.port) as subscriber:
        with Publisher(job="toy", run="r1", rank=0, world_size=1, broker=broker.url) as publisher:
            publisher.metric(0.76, reached=True)
        topic = Topics().run(RunKey(USER, "toy", "r1"), "metric")
        wait_until(lambda: any(seen == topic for seen, _, _ in subscriber.seen))
        payload = next(payload for seen, payload, _ in subscriber.seen if seen == topic)
        assert decode(payload, Metric) == Metric(run="r1", epoch=0, value=0.76, reached=True)


def test_a_process_with_more_than_1024_open_files_publishes(broker: Mosquitto) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4_096)), hard))
    with listening(broker.port) as subscriber, ExitStack() as files:
        for _ in range(1_100):
            files.enter_context(Path("/dev/null").open())
        with Publisher(job="toy", run="r1", rank=0, world_size=1, broker=broker.url) as publisher:
            list(PublishedSized(range(100), publisher))
        wait_until(lambda: subscriber.n_iterations() == 100)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
