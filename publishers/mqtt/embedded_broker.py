"""A broker that needs no set-up: mosquitto as a child process where it is installed, else amqtt inside this process.

It requires no password, so it listens on the loopback by default. It runs as long as its context; the child also ends
when this process is killed. In production, run mosquitto as a service, with TLS, passwords and access rules.

amqtt (0.12) is good for trying gridchase out on one machine, and that is logged: unlike mosquitto here it bounds
neither memory nor queues, never ends a connection that has fallen silent, delivers at QoS 1 what was published at
QoS 0 where the subscription asks for 1, and keeps nothing for a client that is away. Our clients bear all of this.
"""

import asyncio
import errno
import gc
import ipaddress
import logging
import os
import pwd
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal

from publishers.errors import BrokerError
from publishers.mqtt.client import probe_broker

__all__ = ["BrokerError", "EmbeddedBroker", "embedded_broker", "find_mosquitto"]

START_TIMEOUT_S: Final = 5.0
STOP_TIMEOUT_S: Final = 2.0
_POLL_S: Final = 0.01
_N_ATTEMPTS: Final = 3
_SEARCH_PATH: Final = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin")
_CONF: Final = """
listener {port} {host}
allow_anonymous true
persistence false
max_connections 900
memory_limit 268435456
max_packet_size 262144
max_queued_bytes 67108864
max_inflight_bytes 16777216
max_queued_messages 50000
max_inflight_messages 1000
persistent_client_expiration 1d
set_tcp_nodelay true
sys_interval 0
log_dest stderr
log_type error
log_type warning
"""
"""The limits are those of deploy/mosquitto/one-machine.conf, which gives the reasons."""
_LAUNCHER: Final = """
import ctypes, os, signal, sys
parent, user, program, *arguments = sys.argv[1:]
linux = ctypes.CDLL(None) if sys.platform == "linux" else None
if user:
    import pwd
    account = pwd.getpwnam(user)
    try:
        os.setgroups([])
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
    except PermissionError:
        pass  # root of a container that may not change its user: little is lost
if linux is not None:
    linux.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != int(parent):
        sys.exit("the parent is gone")
os.execv(program, [program, *arguments])
"""
"""Becomes the broker, after it has asked the kernel to end it with its parent.

Changing the user forgets that request, so it comes after; and mosquitto, which would change the user itself, must find
that done. A process of its own does it, because between fork and exec of a process with threads no Python may run.
"""
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedBroker:
    """A running broker."""

    kind: Literal["mosquitto", "amqtt"]
    version: str
    host: str
    port: int
    ended: Callable[[], Awaitable[str]]

    @property
    def url(self) -> str:
        """Return where a client on this machine finds it."""
        local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 — read, not bound
        return f"mqtt://[{local}]:{self.port}" if ":" in local else f"mqtt://{local}:{self.port}"

    async def wait(self) -> None:
        """Wait until the broker ends by itself, which it should not, and log why; it is not restarted."""
        _LOGGER.error("the embedded broker has stopped: %s", await self.ended())


@asynccontextmanager
async def embedded_broker(
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    prefer: Literal["auto", "mosquitto", "amqtt"] = "auto",
    allow_remote: bool = False,
) -> AsyncIterator[EmbeddedBroker]:
    """Run a broker at `host` and `port` (0: a free one) as long as the context lasts.

    Raises:
        BrokerError: the port is taken, the host is no address of this machine or not the loopback (and `allow_remote`
            does not say that this is meant), or the preferred broker is not installed.
    """
    address = _check_host(host, allow_remote=allow_remote)
    mosquitto = find_mosquitto()
    if prefer == "mosquitto" and mosquitto is None:
        raise BrokerError("mosquitto is not installed: apt-get install mosquitto")
    if mosquitto is not None and prefer != "amqtt":
        running = _mosquitto(mosquitto, address, port)
    else:
        running = _amqtt(address, port)
    async with running as broker:
        yield broker


def _check_host(host: str, *, allow_remote: bool) -> str:
    """Return the address to listen at."""
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError as error:
        raise BrokerError(f"host {host!r}: must be an IP address of this machine, such as 127.0.0.1") from error
    if not (address.is_loopback or allow_remote):
        raise BrokerError(
            f"host {host}: this broker requires no password, so it listens on the loopback (127.0.0.1) only; for"
            " other machines run mosquitto with deploy/mosquitto/site.conf, or say allow_remote in a closed network"
        )
    return str(address)


async def _choose_port(host: str, port: int) -> int:
    """Return the port, or a free one where it is 0."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            reason = error.strerror
        else:
            return int(listener.getsockname()[1])
    if not taken:
        raise BrokerError(f"cannot listen at {host}:{port}: {reason}; choose another host or port")
    url = f"mqtt://[{host}]:{port}" if ":" in host else f"mqtt://{host}:{port}"
    if await probe_broker(url, timeout_s=1.0) is None:
        raise BrokerError(f"a broker already runs at {host}:{port}: use it ({url}), or choose another port")
    raise BrokerError(f"port {port} of {host} is taken by another program: choose another port, or 0 for a free one")


@asynccontextmanager
async def _mosquitto(program: str, host: str, port: int) -> AsyncIterator[EmbeddedBroker]:
    version = await _read_version(program)
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gridchase-broker-")))
        chosen = port
        for _ in range(1 if port else _N_ATTEMPTS):  # a free port may be taken before mosquitto has it
            chosen = await _choose_port(host, port)
            child = await _launch(program, directory, host, chosen)
            stack.push_async_callback(_stop, child)
            if await _accepts_connections(child, host, chosen):
                break
        else:
            raise BrokerError(f"mosquitto {version} did not start at {host}:{chosen}: {_read_last_lines(directory)}")

        async def ended() -> str:
            return f"mosquitto ended with status {await child.wait()}: {_read_last_lines(directory)}"

        yield EmbeddedBroker(kind="mosquitto", version=version, host=host, port=chosen, ended=ended)


@asynccontextmanager
async def _amqtt(host: str, port: int) -> AsyncIterator[EmbeddedBroker]:
    try:
        from amqtt.broker import Broker  # noqa: PLC0415 — an extra, and a tenth of a second; most have mosquitto
        from amqtt.errors import BrokerError as StartError  # noqa: PLC0415 — the same
        from amqtt.session import Session  # noqa: PLC0415 — the same
    except ImportError as error:
        raise BrokerError(
            "there is no broker: apt-get install mosquitto, or pip install 'amqtt>=0.11.4,<0.13'"
        ) from error
    for name in ("amqtt", "transitions"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # it logs every packet, and a traceback for a lost client

    class RetainedOnce(Broker):  # type: ignore[misc]
        """amqtt sends every new client the retained messages of all subscriptions, even of others'."""

        async def _publish_retained_messages_for_subscription(
            self, subscription: tuple[str, int], session: Session
        ) -> None:
            subscribers = self._subscriptions.get(subscription[0], [])
            if any(subscriber.client_id == session.client_id for subscriber, _ in subscribers):
                await super()._publish_retained_messages_for_subscription(subscription, session)

    _LOGGER.warning("the broker is amqtt, good for trying gridchase out; for anything else: apt-get install mosquitto")
    chosen = await _choose_port(host, port)
    broker = RetainedOnce(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"{host}:{chosen}", "max_connections": 900}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }
    )
    with _amqtt_errors_ignored():
        try:
            await broker.start()
        except StartError as error:
            raise BrokerError(f"amqtt did not start at {host}:{chosen}: {error}") from error
        try:
            version = metadata.version("amqtt")
            yield EmbeddedBroker(kind="amqtt", version=version, host=host, port=chosen, ended=_runs_for_ever)
        finally:
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await broker.shutdown()
            except TimeoutError:
                _LOGGER.warning("amqtt did not stop within %g s", STOP_TIMEOUT_S)
            await _cancel_amqtt_tasks()


@contextmanager
def _amqtt_errors_ignored() -> Iterator[None]:
    """Log at DEBUG what amqtt's own tasks raise when a client vanishes or the broker stops: nothing awaits them."""
    loop = asyncio.get_running_loop()
    previous = loop.get_exception_handler()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        task = context.get("task") or context.get("future")
        if isinstance(task, asyncio.Task) and _is_of_amqtt(task):
            _LOGGER.debug("amqtt: %s: %r", context.get("message"), context.get("exception"))
        elif previous is not None:
            previous(loop, context)
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)
    try:
        yield
    finally:
        gc.collect()  # a task that was not awaited is reported when it is collected: now, not without the handler
        loop.set_exception_handler(previous)


async def _cancel_amqtt_tasks() -> None:
    """End what its shutdown has left running, so that the end of the loop finds nothing to report."""
    tasks = {task for task in asyncio.all_tasks() if _is_of_amqtt(task)}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=STOP_TIMEOUT_S)


def _is_of_amqtt(task: "asyncio.Task[Any]") -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and "amqtt" in Path(code.co_filename).parts


async def _runs_for_ever() -> str:
    """Wait for ever: amqtt ends with this process, not before."""
    never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    return await never


def find_mosquitto() -> str | None:
    """Return where mosquitto is, which Debian keeps outside the PATH of ordinary users; None where it is not."""
    return shutil.which("mosquitto", path=os.pathsep.join([os.environ.get("PATH", os.defpath), *_SEARCH_PATH]))


async def _read_version(program: str) -> str:
    """Return the version of a mosquitto, from the first line of its help."""
    child = await asyncio.create_subprocess_exec(program, "-h", stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(START_TIMEOUT_S):
        output, _ = await child.communicate()
    found = re.search(rb"version (\S+)", output)
    return found[1].decode() if found else "unknown"


async def _launch(program: str, directory: Path, host: str, port: int) -> asyncio.subprocess.Process:
    """Start mosquitto as a child that ends with us, without privileges where we have some."""
    conf, user = directory / "mosquitto.conf", _unprivileged_user()
    # The launcher has changed the user by then; without this line mosquitto would insist on trying it again.
    conf.write_text(_CONF.format(host=host, port=port) + ("user root\n" if user else ""))
    if user:
        shutil.chown(directory, user)
        shutil.chown(conf, user)
    with (directory / "mosquitto.log").open("wb") as log:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), user, program, "-c", str(conf)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C in the terminal is for us: the broker must outlive our last messages
        )


def _unprivileged_user() -> str:
    """Return the user that mosquitto should run as; "" unless we are root."""
    if os.geteuid() != 0:
        return ""
    for name in ("mosquitto", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    return ""


async def _accepts_connections(child: asyncio.subprocess.Process, host: str, port: int) -> bool:
    """Wait until the child accepts connections; return False where it ends, or does not in time."""
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while child.returncode is None:
                try:
                    _, writer = await asyncio.open_connection(host, port)
                except OSError:
                    await asyncio.sleep(_POLL_S)
                else:
                    writer.close()
                    return True
    except TimeoutError:
        return False
    return False


async def _stop(child: asyncio.subprocess.Process) -> None:
    """End the child: by SIGTERM, and by SIGKILL where that does not help."""
    if child.returncode is not None:
        return
    child.terminate()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await child.wait()
    except TimeoutError:
        child.kill()
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await child.wait()


def _read_last_lines(directory: Path) -> str:
    """Return the last lines of mosquitto's log."""
    lines = (directory / "mosquitto.log").read_text(errors="replace").splitlines()
    return " | ".join(lines[-3:]) or "its log is empty"
