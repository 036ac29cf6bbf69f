"""The page beside `gridchase up`, as real processes: neither its end nor a taken port costs anything else."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.live.conftest import free_port, wait_until

pytestmark = pytest.mark.live
TIMEOUT_S = 30.0


class Up:
    """`gridchase up` with a page on a port of the test's own."""

    def __init__(self, folder: Path, port: int) -> None:
        self.url, self._log = f"http://127.0.0.1:{port}", folder / "up.log"
        (folder / "web.toml").write_text(f'[web]\nport = {port}\nstate_dir = "{folder}/web"\n')
        keys = (f"bus.url=mqtt://127.0.0.1:{free_port()}", "http.port=-1", f"node.state_dir={folder}/state")
        settings = [word for key in keys for word in ("--set", key)]
        page = ("--web-config", str(folder / "web.toml"))
        verb = (sys.executable, "-m", "controller", "up", "--simulate", "--no-policy", *page, *settings)
        with self._log.open("wb") as log:
            self.child = subprocess.Popen(verb, stdout=log, stderr=log)

    def has_said(self, text: str) -> bool:
        """Return whether it, or its page, has said something."""
        return text in self._log.read_text(encoding="utf-8")

    def page_pids(self) -> list[int]:
        """Return the process ids of its page."""
        children = Path(f"/proc/{self.child.pid}/task/{self.child.pid}/children").read_text(encoding="ascii")
        return [
            pid
            for pid in map(int, children.split())
            if b"web" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        ]

    def stop(self) -> int:
        """Stop it, and return its exit code."""
        self.child.send_signal(signal.SIGTERM)
        return self.child.wait(timeout=TIMEOUT_S)


@contextmanager
def running(folder: Path, port: int) -> Iterator[Up]:
    """Run it until its controller is on the bus; kill what a failed test has left."""
    up = Up(folder, port)
    try:
        wait_until(lambda: up.has_said("connected to the broker"), TIMEOUT_S)
        yield up
    finally:
        up.child.kill()
        up.child.wait(timeout=TIMEOUT_S)


def test_up_serves_the_page_and_ends_it(tmp_path: Path) -> None:
    with running(tmp_path, free_port()) as up:
        wait_until(lambda: up.has_said(f"the page: {up.url}"), TIMEOUT_S)
        with closing(urlopen(up.url, timeout=TIMEOUT_S)) as answer:  # noqa: S310 — our own server
            assert answer.status == 200
        (page,) = up.page_pids()
        assert up.stop() == 0
        assert not Path(f"/proc/{page}").exists()
        assert not up.has_said("Traceback")
    assert (tmp_path / "web" / "history.sqlite").exists()


def test_a_page_that_is_killed_ends_nothing_else(tmp_path: Path) -> None:
    with running(tmp_path, free_port()) as up:
        wait_until(lambda: up.has_said("the page: "), TIMEOUT_S)
        (page,) = up.page_pids()
        os.kill(page, signal.SIGKILL)
        wait_until(lambda: up.has_said("the page has ended with status -9; the controller continues"), TIMEOUT_S)
        assert up.stop() == 0


def test_a_taken_port_is_told_and_costs_the_page_alone(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder, running(tmp_path, holder.getsockname()[1]) as up:
        wait_until(lambda: up.has_said("the site's page and history"), TIMEOUT_S)
        assert up.stop() == 0
        assert not up.has_said("Traceback")


def test_a_page_outlives_no_up_that_was_killed(tmp_path: Path) -> None:
    with running(tmp_path, free_port()) as up:
        wait_until(lambda: up.has_said("the page: "), TIMEOUT_S)
        (page,) = up.page_pids()
        up.child.kill()
        up.child.wait(timeout=TIMEOUT_S)
        wait_until(lambda: not Path(f"/proc/{page}").exists(), TIMEOUT_S)
