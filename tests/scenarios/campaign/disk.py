"""The disk of the state directories, in virtual time: it can be full, read-only or hung, and loses no time on fsync.

Files are written by threads of the product; here their calls run in the event loop, so that a schedule is the same
each time. While the disk hangs, a call waits, and is carried out when the disk answers, unless its process has ended.
"""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import errno
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import async_solipsism
import pytest

from controller.gpu import node_lock
from controller.gpu.journal.storage import COPY_THREAD
from publishers.shared.files.disk_thread import DaemonExecutor
from publishers.shared.files.file_writer import FileWriter
from publishers.shared.worker_thread import WorkerThreads

Mode = Literal["works", "full", "read_only", "hung"]
T = TypeVar("T")
PROCESS: Final = contextvars.ContextVar[object]("PROCESS", default=None)
"""Whose call it is: calls of a process that has ended are dropped."""
_MKDIR, _UNLINK = os.mkdir, os.unlink
_WRITE_FLAGS: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


@dataclass(slots=True, kw_only=True)
class _Call:
    process: object
    work: Callable[[], Any]
    future: asyncio.Future[Any]


class FaultyDisk:
    """The disk under a folder.

    Args:
        folder: what lies outside of it is never disturbed.

    Attributes:
        mode: how it is.
        violations: what must never happen, and did.
    """

    def __init__(self, folder: Path) -> None:
        self.mode: Mode = "works"
        self.violations: list[str] = []
        self._folder = os.fspath(folder)
        self._waiting: list[_Call] = []
        self._left: list[Callable[[], object]] = []

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Take the place of the system's calls while the body runs."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", self._fsync)
            patch.setattr(io, "open", self._checked(io.open))
            patch.setattr(os, "open", self._checked_flags(os.open))
            for name in ("replace", "rename", "unlink", "mkdir"):
                patch.setattr(os, name, self._checked_change(getattr(os, name)))
            patch.setattr(FileWriter, "put", lambda writer, changes: self._put(writer, changes))  # noqa: PLW0108 — bound to the writer
            patch.setattr(node_lock, "call_in_time", self._call_in_time)
            patch.setattr(WorkerThreads, "run", lambda _, call: self.run(call))
            yield

    def set_mode(self, mode: Mode) -> None:
        """Let the disk work or fail from now on; what waited while it hung is carried out as soon as it does not."""
        self.mode = mode
        if mode != "hung":
            waiting, self._waiting = self._waiting, []
            for call in waiting:
                _settle(call)

    def drop(self, process: object) -> None:
        """Forget the calls of a process that has ended."""
        self._waiting = [call for call in self._waiting if call.process is not process]
        left, self._left = self._left, []
        with self.working():  # threads that are left behind hold descriptors, and so locks, until their process ends
            for work in left:
                with contextlib.suppress(OSError):  # nobody waits for it
                    work()

    async def run(self, work: Callable[[], T]) -> T:
        """Do work of a thread: now, or once the disk answers, even if nobody waits for it any more."""
        if self.mode != "hung":
            return work()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Call(process=PROCESS.get(), work=work, future=future))
        return await future

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Work while the body runs: the campaign's own look at the files."""
        mode, self.mode = self.mode, "works"
        try:
            yield
        finally:
            self.mode = mode

    def _put(self, writer: FileWriter, changes: dict[Path, Any]) -> None:
        """Write state files in the event loop; while the disk hangs, they wait in the writer as in its thread."""
        writer._waiting |= changes
        if self.mode == "hung":
            writer._is_idle.set()  # `close` would wait for the disk in real time
        else:
            writer._work()

    def _call_in_time(self, call: Callable[[], T], *, timeout_s: float) -> T:
        """Do work of a thread whose caller waits without an event loop: no time passes here."""
        if self.mode == "hung":
            self._left.append(call)
            raise OSError(errno.ETIMEDOUT, f"the disk does not answer in {timeout_s:g} s")
        return call()

    def _is_mine(self, path: object) -> bool:
        return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self._folder)

    def _fail(self, path: object) -> None:
        if self.mode == "read_only":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), os.fspath(path))  # type: ignore[call-overload]
        if self.mode == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))  # type: ignore[call-overload]

    def _fsync(self, _file: int) -> None:
        if self.mode == "hung":
            self.violations.append("the event loop waits for a disk that hangs")

    def _checked(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def opened(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 — as `open`
            if self._is_mine(file) and not set(mode).isdisjoint("wax+"):
                self._fail(file)
            return real(file, mode, *arguments, **options)

        return opened

    def _checked_flags(self, real: Callable[..., int]) -> Callable[..., int]:
        def opened(path: Any, flags: int, *arguments: Any, **options: Any) -> int:  # noqa: ANN401 — as `os.open`
            if self._is_mine(path) and flags & _WRITE_FLAGS and not (self.mode == "full" and Path(path).exists()):
                self._fail(path)
            return real(path, flags, *arguments, **options)

        return opened

    def _checked_change(self, real: Callable[..., None]) -> Callable[..., None]:
        def change(path: Any, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 — as the system's
            is_harmless = (real is _MKDIR and Path(path).exists()) or (real is _UNLINK and self.mode == "full")
            if self._is_mine(path) and not is_harmless:
                self._fail(path)
            real(path, *arguments, **options)

        return change


class CampaignLoop(async_solipsism.EventLoop):  # type: ignore[misc]
    """The loop of virtual time, whose threads are the disk's."""

    def __init__(self, disk: FaultyDisk) -> None:
        super().__init__()
        self._disk = disk

    async def run_in_executor(
        self, executor: concurrent.futures.Executor | None, func: Callable[..., T], *arguments: object
    ) -> T:
        if isinstance(executor, DaemonExecutor) and executor.name == COPY_THREAD:  # in memory, where no disk hangs
            with self._disk.working():
                return func(*arguments)
        return await self._disk.run(lambda: func(*arguments))


def _settle(call: _Call) -> None:
    try:
        result = call.work()
    except Exception as error:  # noqa: BLE001 — it belongs to the caller
        if not call.future.done():
            call.future.set_exception(error)
    else:
        if not call.future.done():
            call.future.set_result(result)
