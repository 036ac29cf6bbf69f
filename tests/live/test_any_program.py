"""Random training programs that fork and spawn at any point, on brokers that do anything: they end as they would bare.

Each program is drawn from a seed, which a failure tells; it goes through its batches, and compares them itself.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from tests.live.conftest import Mosquitto

pytestmark = pytest.mark.live
ROOT: Final = Path(__file__).parents[2]
N_PROGRAMS: Final = 4
BEHAVIOURS: Final = ("real", "absent", "silent", "garbage", "closing", "cut")
PROGRAM: Final = '''
import copy, multiprocessing, os, pickle, random, sys, threading, time
from gridchase import Publisher, publish_iterations, publisher_of

URL, SEED = sys.argv[1], int(sys.argv[2])


def body(rng, depth):
    """Do a few things that trainings do, in any order."""
    options = {"job": rng.choice(["a", "b"]), "broker": URL, "flush_s": 0.01, "pausable": rng.random() < 0.3}
    loader = publish_iterations(list(range(20)), **options)
    publisher = Publisher(**options)
    for _ in range(rng.randrange(1, 6)):
        match rng.randrange(11):
            case 0:
                assert list(loader) == list(range(20))
            case 1:
                for k in loader:
                    if k == rng.randrange(20):
                        break
            case 2:
                for k in loader:
                    if k == 7:
                        child(rng, depth, rng.choice(["os", "fork", "spawn"]))
            case 3:
                child(rng, depth, rng.choice(["os", "os", "fork", "spawn"]))
            case 4:
                for _ in range(rng.randrange(50)):
                    publisher.iteration()
            case 5:
                assert list(zip(loader, publish_iterations("abc", **options)))[0] == (0, "a")
            case 6:
                assert list(pickle.loads(pickle.dumps(loader))) == list(copy.deepcopy(loader)) == list(range(20))
            case 7:
                publisher.close()
                publisher = Publisher(**options)
            case 8:
                thread = threading.Thread(target=lambda: list(loader))
                thread.start()
                child(rng, depth, "os")
                thread.join()
            case 9:
                str(publisher_of(loader).summary()), publisher.live(), publisher.log_live(), publisher.should_stop
            case 10:
                loader = publish_iterations((k for k in range(20)), **options)
                assert list(loader) == list(range(20))
                loader = publish_iterations(list(range(20)), **options)


def train(seed, depth):
    body(random.Random(seed), depth)


def child(rng, depth, how):
    """Let a child do the same, with what it has inherited."""
    if depth == 2:
        return
    seed = rng.randrange(10**9)
    if how == "os":
        pid = os.fork()
        if pid == 0:
            code = 3
            try:
                train(seed, depth + 1)
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, (how, seed)
        return
    process = multiprocessing.get_context(how).Process(target=train, args=(seed, depth + 1))
    process.start()
    process.join()
    assert process.exitcode == 0, (how, seed)


if __name__ == "__main__":
    body(random.Random(SEED), 0)
    print("done")
'''


@contextmanager
def listener(behaviour: str) -> Iterator[str]:
    """Listen on a free port, and treat each client in one way."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if behaviour == "absent":
            server.close()
            yield f"mqtt://127.0.0.1:{port}"
            return
        held: list[socket.socket] = []

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = server.accept()
                    with suppress(OSError):
                        if behaviour == "garbage":
                            client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9)
                        if behaviour == "cut":  # accepts, and leaves in the middle of a packet
                            client.recv(4096)
                            client.sendall(b"\x20\x02\x00\x00\x90")
                    if behaviour == "silent":
                        held.append(client)
                    else:
                        client.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"mqtt://127.0.0.1:{port}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10.0)
        for client in held:
            client.close()


@contextmanager
def running(script: Path, url: str, seed: int) -> Iterator["subprocess.Popen[str]"]:
    """Run a program; end it with its children, however the test ends, and leave neither a process nor a pipe behind."""
    with subprocess.Popen(
        [sys.executable, str(script), url, str(seed)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(ROOT), "GRIDCHASE_QUIET": "1"},
        start_new_session=True,
    ) as program:
        try:
            yield program
        finally:
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_a_program_that_forks_and_spawns_ends_as_it_would_bare(
    behaviour: str, broker: Mosquitto, tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM, encoding="utf-8")
    first = BEHAVIOURS.index(behaviour) * N_PROGRAMS
    with ExitStack() as stack:
        url = broker.url if behaviour == "real" else stack.enter_context(listener(behaviour))
        seeds = range(first, first + N_PROGRAMS)
        programs = {seed: stack.enter_context(running(script, url, seed)) for seed in seeds}
        deadline_s = time.monotonic() + 100.0
        for seed, program in programs.items():
            stdout, stderr = program.communicate(timeout=max(1.0, deadline_s - time.monotonic()))
            assert (program.returncode, stdout) == (0, "done\n"), (seed, stderr)
            assert "Traceback" not in stderr, (seed, stderr)
