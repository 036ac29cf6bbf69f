"""Trainings in child processes, and children of trainings: what a real broker hears of each, and of its end."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from publishers.messages.codec import decode
from publishers.messages.topics import Topics
from publishers.messages.training import Iterations, RankStatus
from tests.live.conftest import Mosquitto, wait_until
from tests.live.subscriber import Subscriber, listening

pytestmark = pytest.mark.live
N: Final = 20
SCRIPT: Final = """
import concurrent.futures, multiprocessing, os, sys, time
from gridchase import Publisher, publish_iterations

URL, HOW, METHOD = sys.argv[1:]

def wrapped():
    return publish_iterations(list(range(20)), job="toy", broker=URL, flush_s=0.02)

def train(loader):
    for _ in loader:
        time.sleep(0.002)

def own(_=None):
    train(wrapped())

def fail():
    own()
    raise ValueError("the training is broken")

def count(publisher):
    publisher.begin()
    for _ in range(20):
        publisher.iteration()

def main():
    context = multiprocessing.get_context(METHOD)
    if HOW == "process":
        children = [context.Process(target=own) for _ in range(2)]
    elif HOW == "inherited":
        loader = wrapped()
        children = [context.Process(target=train, args=(loader,)) for _ in range(2)]
    elif HOW == "counting":
        publisher = Publisher(job="toy", broker=URL, flush_s=0.02)
        children = [context.Process(target=count, args=(publisher,)) for _ in range(2)]
    elif HOW == "failing":
        children = [context.Process(target=fail) for _ in range(2)]
    elif HOW == "pool":
        with context.Pool(2) as pool:
            pool.map(own, range(2), chunksize=1)
            pool.close()
            pool.join()
        return
    elif HOW == "executor":
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as executor:
            list(executor.map(own, range(2)))
        return
    elif HOW == "os.fork":
        loader = wrapped()
        children = [os.fork() for _ in range(2)]
        if 0 in children:
            if children[0]:
                train(loader)
            sys.exit(0)
        for child in children:
            os.waitpid(child, 0)
        return
    for child in children:
        child.start()
    for child in children:
        child.join()

if __name__ == "__main__":
    main()
"""
BESIDE: Final = """
import multiprocessing, os, sys, time
from gridchase import publish_iterations

loader = publish_iterations(list(range(300)), job="toy", run="r1", broker=sys.argv[1], flush_s=0.02)
for k in loader:
    time.sleep(0.005)
    if k in (50, 100):
        if k == 50 and os.fork() == 0:
            sys.exit(0)  # with the hooks of the interpreter
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(0.01,))
        child.start()
        child.join()
"""


def runs(subscriber: Subscriber) -> dict[tuple[str, int], tuple[list[str], int]]:
    """Return the states, each once in a row, and the iterations of each run and rank."""
    found: dict[tuple[str, int], tuple[list[str], int]] = {}
    for name, payload, _ in list(subscriber.seen):
        topic = Topics().parse(name)
        if topic is None or topic.run is None or topic.rank is None:
            continue
        states, n = found.setdefault((topic.run.run, topic.rank), ([], 0))
        if topic.leaf == "status":
            state = decode(payload, RankStatus).state
            if states[-1:] != [state]:
                states.append(state)
        else:
            found[topic.run.run, topic.rank] = states, n + len(decode(payload, Iterations).ends_ns())
    return found


@pytest.mark.parametrize(
    ("how", "method"),
    [
        *(("process", method) for method in ("fork", "spawn", "forkserver")),
        *(("pool", method) for method in ("fork", "spawn")),
        *(("executor", method) for method in ("fork", "forkserver")),
        ("inherited", "fork"),
        ("counting", "fork"),
    ],
)
def test_each_child_that_trains_is_a_run_that_says_its_end(
    how: str, method: str, broker: Mosquitto, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with listening(broker.port) as subscriber:
        subprocess.run([sys.executable, str(script), broker.url, how, method], check=True, timeout=60)
        wait_until(lambda: all(states[-1] != "running" for states, _ in runs(subscriber).values()))
        trained = {run: record for run, record in runs(subscriber).items() if record[1]}
        if how in {"pool", "executor"}:  # one of the workers may have got both
            assert sum(n for _, n in trained.values()) == 2 * N
        else:
            assert [n for _, n in trained.values()] == [N, N]
        assert {state for states, _ in runs(subscriber).values() for state in states} == {"running", "finished"}


def test_a_child_that_was_only_forked_publishes_what_it_trains(broker: Mosquitto) -> None:
    with listening(broker.port) as subscriber:
        subprocess.run([sys.executable, "-c", SCRIPT, broker.url, "os.fork", "fork"], check=True, timeout=60)
        wait_until(lambda: all(states[-1] == "finished" for states, _ in runs(subscriber).values()))
        assert [n for _, n in runs(subscriber).values() if n] == [N]


def test_a_child_that_an_exception_ends_is_lost(broker: Mosquitto) -> None:
    with listening(broker.port) as subscriber:
        outcome = subprocess.run(
            [sys.executable, "-c", SCRIPT, broker.url, "failing", "fork"],
            check=True, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        wait_until(lambda: [states for states, _ in runs(subscriber).values()] == [["running", "lost"]] * 2)
    assert outcome.stderr.count("ValueError: the training is broken") == 2


def test_children_that_do_not_train_neither_publish_nor_end_the_run_of_their_parent(broker: Mosquitto) -> None:
    with listening(broker.port) as subscriber:
        subprocess.run([sys.executable, "-c", BESIDE, broker.url], check=True, timeout=60)
        wait_until(lambda: runs(subscriber)["r1", 0][0][-1] != "running")
        assert runs(subscriber) == {("r1", 0): (["running", "finished"], 300)}
