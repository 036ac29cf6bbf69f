"""A data loader forks while the publisher's thread is at work: what that thread imports, the child could never import.

Each module has a lock while it is imported. A child that is forked in that moment inherits the lock, and not the thread
that would release it.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.conftest import Mosquitto

pytestmark = pytest.mark.live
ANOTHER_THREAD_IMPORTS = """
import sys, threading, time

class Watch:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is not threading.main_thread():
            print(name)

sys.meta_path.insert(0, Watch())
from gridchase import Publisher
with Publisher(job="j", broker=sys.argv[1], flush_s=0.01, emissions_file=sys.argv[2]) as publisher:
    for _ in range(100):
        publisher.iteration()
        time.sleep(0.01)
    publisher.metric(1.0)
    publisher.should_stop
"""
FORKS_AT_ONCE = """
import os, signal, sys, time
from gridchase import publish_iterations

children = []
for _ in publish_iterations(range(100), job="j", broker=sys.argv[1]):
    child = os.fork()
    if not child:
        signal.alarm(20)
        import email.parser, encodings.idna, http.client, ssl, tempfile, urllib.request
        os._exit(0)
    children.append(child)
    time.sleep(0.001)
print({os.waitpid(child, 0)[1] for child in children})
"""


def run(script: str, *arguments: str) -> str:
    """Run a script of its own; return what it prints."""
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.mark.parametrize("url", ["mqtt://localhost:{port}", "mqtts://localhost:{port}", "mqtt://no.such.host.invalid"])
def test_the_publishers_thread_imports_nothing(url: str, broker: Mosquitto, tmp_path: Path) -> None:
    assert run(ANOTHER_THREAD_IMPORTS, url.format(port=broker.port), str(tmp_path)) == ""


def test_children_that_are_forked_at_once_can_import_what_the_publisher_uses(broker: Mosquitto) -> None:
    assert run(FORKS_AT_ONCE, broker.url) == "{0}\n"
