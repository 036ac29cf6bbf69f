"""Who this process is: its login name, its pid namespace, and the mark by which `/proc` shows which run it belongs to.

A process id in a message proves nothing: anybody may write any number. The name of a thread can only be set by the
thread's own process, everybody who sees the process can read it, and it crosses pid namespaces: a process whose
publishing thread bears the mark of a run says itself that it belongs to that run.
"""

import contextlib
import getpass
import os
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Final

from publishers.messages.topics import RunKey, is_label

PREFIX: Final = "gc"
LENGTH: Final = 15
"""What the kernel keeps of a thread's name."""
_OWN_NAME: Final = Path("/proc/thread-self/comm")
_PID_NAMESPACE: Final = Path("/proc/self/ns/pid")


def read_login_name() -> str:
    """Return the login name, or the numeric user id where the system has no name for it, as in many containers."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError, ImportError):
        name = ""
    return name if is_label(name) else str(os.getuid())


def read_pid_namespace() -> int | None:
    """Return the number of the pid namespace in which this process has its id; None where it cannot be read."""
    try:
        return _PID_NAMESPACE.stat().st_ino
    except OSError:
        return None


def run_mark(run: RunKey) -> str:
    """Return the mark of a run: 78 bits of a digest of its names."""
    import hashlib  # noqa: PLC0415 — loads OpenSSL; where a run publishes, its MQTT client has done so

    digest = hashlib.sha256("\0".join(run).encode()).digest()
    return (PREFIX + urlsafe_b64encode(digest).decode())[:LENGTH]


def is_mark(thread_name: str) -> bool:
    """Return whether a thread's name may be a mark."""
    return len(thread_name) == LENGTH and thread_name.startswith(PREFIX)


def mark_this_thread(mark: str) -> None:
    """Give the calling thread a mark for a name; where the system does not let us, it has none."""
    with contextlib.suppress(OSError):
        _OWN_NAME.write_text(mark, encoding="ascii")
