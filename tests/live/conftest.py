"""Real brokers for the live tests: Debian's mosquitto as a child process, plain, or with TLS and a password.

`eventually` (in async tests) and `wait_until` (in others) wait for a condition under a deadline.
"""

import asyncio
import fcntl
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.live.nvml_stub.fixtures import nvml_in_process, nvml_library, nvml_machine

__all__ = ["nvml_in_process", "nvml_library", "nvml_machine"]
TIMEOUT_S = 10.0
_POLL_S = 0.01
_SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
_PLAIN = """
listener {port} 127.0.0.1
allow_anonymous true
persistence false
max_inflight_messages 1000
max_queued_messages 100000
set_tcp_nodelay true
log_dest stderr
"""
_SECURE = """
listener {port} 127.0.0.1
cafile {directory}/ca.crt
certfile {directory}/server.crt
keyfile {directory}/server.key
allow_anonymous false
password_file {directory}/passwords
persistence false
set_tcp_nodelay true
log_dest stderr
"""


async def eventually(condition: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
    """Wait until a condition holds; fail where it does not in time."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 — the condition is about the world outside, which sets no event
            await asyncio.sleep(_POLL_S)


def wait_until(condition: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
    """Wait until a condition holds; fail where it does not in time."""
    pause, deadline_s = threading.Event(), time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the condition did not hold within {timeout_s:g} s")
        pause.wait(_POLL_S)


def free_port() -> int:
    """Return a TCP port of the loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that one worker of xdist makes for all of them, whichever comes first."""
    own = factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / name
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{name}-"))  # it may fail in the middle
            make(partial)
            partial.rename(folder)
    return folder


class Mosquitto:
    """A mosquitto that can be killed and started again on the same port; its log is `directory/broker.log`."""

    def __init__(self, directory: Path, conf: str, *, port: int | None = None, scheme: str = "mqtt") -> None:
        self.port = port or free_port()
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self._directory = directory
        # As root mosquitto would drop its privileges and then could not read a test's private directory.
        user = "user root\n" if os.geteuid() == 0 else ""
        self._conf = directory / "broker.conf"
        self._conf.write_text(user + conf.format(port=self.port, directory=directory))
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it accepts connections."""
        with (self._directory / "broker.log").open("ab") as log:
            self._child = subprocess.Popen(
                [_executable("mosquitto"), "-c", str(self._conf)], stdout=log, stderr=subprocess.STDOUT
            )
        wait_until(self._accepts)

    def kill(self) -> None:
        """End it by SIGKILL, as a crash would."""
        if self._child is not None:
            self._child.kill()
            self._child.wait(TIMEOUT_S)
            self._child = None

    def stop(self) -> None:
        """End it by SIGTERM, as an operator would."""
        if self._child is not None:
            self._child.terminate()
            self._child.wait(TIMEOUT_S)
            self._child = None

    @property
    def exit_code(self) -> int | None:
        """Return how it has ended by itself; None: it runs."""
        return self._child.poll() if self._child else None

    @property
    def rss_mib(self) -> float:
        """Return its resident memory [MiB]."""
        assert self._child is not None
        status = Path(f"/proc/{self._child.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1_024

    @property
    def log(self) -> str:
        """Return what it has logged."""
        return (self._directory / "broker.log").read_text()

    def _accepts(self) -> bool:
        if self._child is None or self._child.poll() is not None:
            pytest.fail(f"mosquitto ended at its start:\n{self.log}")
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1.0).close()
        except OSError:
            return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureMosquitto:
    """A mosquitto that asks for TLS and a password, and what a client needs to get in."""

    broker: Mosquitto
    ca_file: str
    username: str
    password: str

    @property
    def url(self) -> str:
        """Return where it listens."""
        return self.broker.url

    @property
    def port(self) -> int:
        """Return its port."""
        return self.broker.port


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    """Start a mosquitto that lets everybody in."""
    directory = tmp_path / "broker"
    directory.mkdir()
    mosquitto = Mosquitto(directory, _PLAIN)
    mosquitto.start()
    yield mosquitto
    mosquitto.stop()


@pytest.fixture
def secure_broker(tmp_path: Path) -> Iterator[SecureMosquitto]:
    """Start a mosquitto with TLS and a password."""
    directory = tmp_path / "secure-broker"
    directory.mkdir()
    make_certificates(directory)
    add_user(directory / "passwords", "node", "correct horse")
    mosquitto = Mosquitto(directory, _SECURE, scheme="mqtts")
    mosquitto.start()
    yield SecureMosquitto(
        broker=mosquitto, ca_file=str(directory / "ca.crt"), username="node", password="correct horse"
    )
    mosquitto.stop()


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give this process and its children a folder for what is temporary that nobody else uses."""
    with tempfile.TemporaryDirectory(prefix="gridchase-test-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # a broker in it runs without privileges
        monkeypatch.setenv("TMPDIR", name)
        monkeypatch.setattr(tempfile, "tempdir", None)  # it is found out anew
        yield folder


def add_user(file: Path, username: str, password: str) -> None:
    """Add a user to a password file of mosquitto, and make the file where there is none."""
    file.touch(0o600)
    _call("mosquitto_passwd", "-b", str(file), username, password)


def make_certificates(directory: Path) -> None:
    """Make a certificate authority, and a server certificate for 127.0.0.1 and localhost."""
    (directory / "san").write_text(
        "subjectAltName=IP:127.0.0.1,DNS:localhost\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid,issuer\n"
    )
    ca, ca_key = str(directory / "ca.crt"), str(directory / "ca.key")
    request, key = str(directory / "server.csr"), str(directory / "server.key")
    new = ("req", "-newkey", "rsa:2048", "-nodes")
    authority = ("-x509", "-days", "2", "-subj", "/CN=test CA", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
    _call("openssl", *new, *authority, "-keyout", ca_key, "-out", ca)
    _call("openssl", *new, "-subj", "/CN=127.0.0.1", "-keyout", key, "-out", request)
    sign = ("x509", "-req", "-days", "2", "-CAcreateserial", "-extfile", str(directory / "san"))
    _call("openssl", *sign, "-in", request, "-CA", ca, "-CAkey", ca_key, "-out", str(directory / "server.crt"))


def _call(program: str, *arguments: str) -> None:
    subprocess.run([_executable(program), *arguments], check=True, capture_output=True, timeout=TIMEOUT_S * 3)


def _executable(program: str) -> str:
    path = shutil.which(program, path=_SEARCH_PATH)
    if path is None:
        package = "openssl" if program == "openssl" else "mosquitto"
        pytest.skip(f"{program} is not installed: apt-get install {package}")
    return path
