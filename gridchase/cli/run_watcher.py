"""Says at the end of `gridchase run` that nothing below it began a run, why that may be, and what to write instead.

Nothing is said of a command that has failed, or that a signal has ended: what it says itself is what to read then.

The command has taken the place of `gridchase run` by then. So a process is left behind that waits for its end; it is no
child of the command's, which may wait for all it has. What has happened below, processes note in a file; one that does
not reach it, as in a container with folders of its own, says so to a socket, and then nothing is known.
"""

import os
import select
import socket
import struct
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from publishers.shared.printable import printable_line
from publishers.shared.stderr_handler import speaks_for_node
from publishers.training.coerce import DISABLED, QUIET, is_switched_on
from publishers.training.frameworks.bootstrap.sitecustomize import (
    FAILED,
    FRAMEWORK,
    MARKS_FILE,
    PYTHON,
    RUN,
    socket_of,
)
from publishers.training.run.interactive_shell import stat_fields

_STDERR: Final = 2
"""A file of ours in the place of a closed stream would be replaced, or written to."""
_WRITE_TIMEOUT_S: Final = 1.0
_PIDFD_GET_INFO: Final = 0xC040_FF0B
_PIDFD_INFO_EXIT: Final = 1 << 3
_PIDFD_INFO: Final = struct.Struct("=QQ11Ii")
"""Linux 6.15's `struct pidfd_info`: the mask of what is asked for and known first, the wait status last."""
_REPLACED: Final = "or the environment of what trains was replaced (a container, `env -i`, another PYTHONPATH)"
_REASONS: Final = {
    FRAMEWORK: f"no PyTorch optimizer made a step and no `fit()` or `train()` ran, {_REPLACED}",
    PYTHON: f"no framework that it knows was imported (PyTorch, Lightning, Transformers, Keras), {_REPLACED}",
    "": "no Python ran with the PYTHONPATH that it sets (append to that: PYTHONPATH=src:$PYTHONPATH; a container or "
    "`env -i` drops it)",
}
"""Why no run began, by the farthest that any process came."""


def watched(environ: Mapping[str, str], job: str) -> dict[str, str]:
    """Leave a process behind that speaks once this process has ended; return the environment to go on with.

    Nothing is left behind, and nothing said, where the user wants no line, where another rank of the node speaks, below
    another `gridchase run`, where a process cannot be waited for (no Linux), and as the first process of a container,
    whose child it would become.
    """
    is_silent = any(is_switched_on(variable, environ) for variable in (DISABLED, QUIET))
    is_possible = hasattr(os, "pidfd_open") and os.getpid() != 1
    if is_silent or not is_possible or not speaks_for_node(environ) or MARKS_FILE in environ:
        return dict(environ)
    marks = None
    try:
        while (fd := os.open(os.devnull, os.O_RDWR)) <= _STDERR:  # until the command starts, which has it closed
            pass
        os.close(fd)
        pidfd = os.pidfd_open(os.getpid())
        fd, marks = tempfile.mkstemp(prefix="gridchase-run-")
        os.close(fd)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unreached:
            unreached.bind(socket_of(marks))
            _leave(_Watch(pidfd, os.getpid(), Path(marks), unreached), job)
        os.close(pidfd)
    except OSError:  # as many files, or processes, as there may be
        if marks is not None:
            Path(marks).unlink(missing_ok=True)
        return dict(environ)
    return {**environ, MARKS_FILE: marks}


def forget(environ: Mapping[str, str]) -> None:
    """Let nothing be said: the command was never started."""
    if marks := environ.get(MARKS_FILE):
        Path(marks).unlink(missing_ok=True)


class _Watch(NamedTuple):
    """What the process that is left behind looks at.

    Attributes:
        pidfd, pid: the command.
        marks: where processes note how far they have come.
        unreached: where those say so that do not reach it.
    """

    pidfd: int
    pid: int
    marks: Path
    unreached: socket.socket


def _leave(watch: _Watch, job: str) -> None:
    """Start the process that waits, which belongs to nobody."""
    child = os.fork()
    if child:
        with suppress(ChildProcessError):  # where somebody ignores SIGCHLD
            os.waitpid(child, 0)
        return
    with suppress(BaseException):
        os.setsid()
        if not os.fork():
            _wait_and_tell(watch, job)
    os._exit(0)


def _wait_and_tell(watch: _Watch, job: str) -> None:
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):  # who reads the command's output waits for its end alone
        os.dup2(nothing, fd)
    select.select([watch.pidfd], [], [])
    has_failed = bool(wait_status(watch.pidfd, watch.pid))
    said = watch.marks.read_text()
    watch.marks.unlink()
    is_unknown = has_failed or FAILED in said or bool(select.select([watch.unreached], [], [], 0)[0])
    if RUN not in said and not is_unknown and select.select([], [2], [], _WRITE_TIMEOUT_S)[1]:
        os.write(2, f"gridchase run: {why_nothing(said, job)}\n".encode())


def wait_status(pidfd: int, pid: int) -> int | None:
    """Return how a process has ended that is no child of ours, as `os.wait` has it; None where that is not known.

    It is while nobody has waited for it, and afterwards from Linux 6.15 on.
    """
    import fcntl  # noqa: PLC0415 — not on Windows

    with suppress(OSError):
        fields = stat_fields(Path("/proc") / str(pid))
        if fields and fields[0] == "Z":
            return int(fields[-1])
        info = bytearray(_PIDFD_INFO.pack(_PIDFD_INFO_EXIT, *[0] * 13))
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
        mask, *_, status = _PIDFD_INFO.unpack(info)
        return int(status) if mask & _PIDFD_INFO_EXIT else None
    return None


def why_nothing(said: str, job: str) -> str:
    """Return that nothing was published, why that may be, and what to write instead, by what processes have noted."""
    farthest = next((mark for mark in (FRAMEWORK, PYTHON) if mark in said), "")
    instead = f'publish_iterations(loader, job="{printable_line(job, max_characters=64)}")'
    return (
        f"nothing was published, as no process of this machine was seen to begin a run: {_REASONS[farthest]}; "
        f"what works everywhere is {instead} around the data loader"
    )
