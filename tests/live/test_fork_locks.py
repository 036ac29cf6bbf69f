"""A training forks while threads of ours write, log and connect: no child inherits a lock that one of them holds.

Each program forks again and again, at the worst moment; a child that waits for ever is killed, and counted. How long a
fork is held back is bounded, but not here, where a busy machine may stop a thread for any time.
"""

import os
import subprocess
import sys
from typing import Final

import pytest

pytestmark = pytest.mark.live
N_FORKS: Final = 20
BEGIN: Final = """
import os, signal, sys, threading
from publishers.shared import fork_guard, stderr_handler
from publishers.training.coerce import LOGGER

fork_guard.MAX_WAIT_S = 30.0
stderr_handler.MAX_LINES = 10**9
HOW, N_FORKS = sys.argv[1], int(sys.argv[2])
"""
WRITES: Final = """
class Tee:
    def __init__(self, stream):
        self.write, self.flush = stream.write, stream.flush

if HOW == "logging":
    import logging
    logging.basicConfig()
elif HOW == "stream":
    sys.stderr = Tee(sys.stderr)

def write():
    n = 0
    while True:
        LOGGER.warning("line %d", n)
        n += 1

threading.Thread(target=write, daemon=True).start()

def begin():
    return 0

def child():
    sys.stdout.flush()
    sys.stderr.flush()
"""
INSIDE: Final = """
import contextlib, logging, socket, ssl, types
from publishers.messages.codec import Outgoing
from publishers.mqtt.broker_address import BrokerAddress
from publishers.mqtt.broker_limits import fetch_limits
from publishers.training.paho_client import PahoConnection
from publishers.training.reporting.tracking import LiveLog

inside = threading.Event()

def locks(*_, **__):  # what may hold locks of its own for a while
    inside.set()
    threading.Event().wait(0.01)
    inside.clear()
    raise OSError("there is no such host")

broker = BrokerAddress(url="mqtt://no.such.host.invalid")
will = Outgoing(topic="t", payload=b"", qos=1, retain=True)
if HOW == "connection":
    socket.getaddrinfo = locks
    connection = PahoConnection(broker, will)
    def act():
        connection.retry_now()
        connection.work()
elif HOW == "TLS":
    ssl.create_default_context = locks
    broker = BrokerAddress(url="mqtts://no.such.host.invalid")
    def act():
        PahoConnection(broker, will)
elif HOW == "limits":
    socket.getaddrinfo = locks
    def act():
        fetch_limits(broker, identifier="c")
elif HOW == "handler":
    handler = logging.Handler()
    handler.emit = locks
    LOGGER.addHandler(handler)
    def act():
        LOGGER.warning("no connection")
elif HOW == "MLflow":
    run = types.SimpleNamespace(info=types.SimpleNamespace(run_id="r"))
    entities = types.SimpleNamespace(Metric=lambda *values: values)
    client = types.SimpleNamespace(log_batch=locks)
    sys.modules["mlflow"] = types.SimpleNamespace(
        active_run=lambda: run, entities=entities, MlflowClient=lambda: client
    )
    log = LiveLog()
    def act():
        log.log({"power_w": 100.0}, step=1)
        threading.Event().wait(0.001)

def act_again():
    while True:
        with contextlib.suppress(OSError):
            act()

threading.Thread(target=act_again, daemon=True).start()

def begin():
    assert inside.wait(30.0)

def child():
    assert not inside.is_set()
"""
END: Final = """
n_wrong = 0
for _ in range(N_FORKS):
    begin()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            signal.alarm(2)
            child()
            code = 0
        finally:
            os._exit(code)
    n_wrong += os.waitpid(pid, 0)[1] != 0
print(n_wrong, flush=True)
os._exit(0)
"""
STOPS: Final = """
from gridchase import Publisher

publisher = Publisher(job="j", rank=0, world_size=1, early_stop=True, broker="mqtt://no.such.host.invalid")

def begin():
    publisher._worker._woken._cond.acquire()  # as its thread does whenever it begins to wait

def child():
    publisher.metric(1.0, reached=True)
    publisher.log_live()
    publisher.close()
    assert publisher.should_stop
"""


def run(script: str, how: str, n_forks: int = N_FORKS) -> str:
    """Run a program with buffered streams, as most are; return what it prints: how many children went wrong."""
    command = [sys.executable, "-c", BEGIN + script + END, how, str(n_forks)]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environ).stdout


@pytest.mark.parametrize("how", ["stderr", "logging", "stream"])
def test_no_child_waits_for_a_stream_that_a_thread_of_ours_writes_to(how: str) -> None:
    assert run(WRITES, how) == "0\n"


@pytest.mark.parametrize("how", ["connection", "TLS", "limits", "handler", "MLflow"])
def test_no_child_is_forked_while_a_thread_of_ours_may_hold_a_foreign_lock(how: str) -> None:
    assert run(INSIDE, how) == "0\n"


def test_a_child_takes_no_lock_of_the_publishers_thread() -> None:
    assert run(STOPS, "", n_forks=1) == "0\n"
