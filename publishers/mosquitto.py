"""mosquitto as a child process: found, started without privileges, and sure to end with its parent."""

import asyncio
import os
import pwd
import re
import shutil
import sys
from pathlib import Path
from typing import Final

START_TIMEOUT_S: Final = 5.0
STOP_TIMEOUT_S: Final = 2.0
_POLL_S: Final = 0.01
_SEARCH_PATH: Final = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin")
_CONF: Final = """
listener {port} {host}
allow_anonymous true
persistence false
max_inflight_messages 1000
max_queued_messages 100000
message_size_limit 1048576
set_tcp_nodelay true
sys_interval 0
log_dest stderr
log_type error
log_type warning
"""
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


def find_mosquitto() -> str | None:
    """Return where mosquitto is, which Debian keeps outside the PATH of ordinary users; None where it is not."""
    return shutil.which("mosquitto", path=os.pathsep.join([os.environ.get("PATH", os.defpath), *_SEARCH_PATH]))


async def read_version(program: str) -> str:
    """Return the version of a mosquitto, from the first line of its help."""
    child = await asyncio.create_subprocess_exec(program, "-h", stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(START_TIMEOUT_S):
        output, _ = await child.communicate()
    found = re.search(rb"version (\S+)", output)
    return found[1].decode() if found else "unknown"


async def launch(program: str, directory: Path, host: str, port: int) -> asyncio.subprocess.Process:
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
    """Return whom mosquitto should run as, or nothing where we are no root ourselves."""
    if os.geteuid() != 0:
        return ""
    for name in ("mosquitto", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    return ""


async def accepts(child: asyncio.subprocess.Process, host: str, port: int) -> bool:
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


async def stop(child: asyncio.subprocess.Process) -> None:
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


def read_last_words(directory: Path) -> str:
    """Return the last lines of mosquitto's log."""
    lines = (directory / "mosquitto.log").read_text(errors="replace").splitlines()
    return " | ".join(lines[-3:]) or "it said nothing"
