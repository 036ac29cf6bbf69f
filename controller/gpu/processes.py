"""The processes of this machine as `/proc` shows them: whose they are, their namespaces, parents, and marks.

NVML lists process ids as the host counts them. What a training process says of itself is compared with what is read
here, never the other way round.
"""

import logging
import os
import pwd
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from controller.ports import Lineage, ProcessIdentity
from publishers.shared.files.disk_thread import DiskThread
from publishers.shared.process_identity import is_mark
from publishers.shared.recent_dict import RecentDict

READ_TIMEOUT_S: Final = 2.0
MAX_ANCESTORS: Final = 32
MAX_THREADS: Final = 4_096
"""Of one process: a training process has some hundreds."""
MAX_USERS: Final = 1_024
MAX_UID_DIGITS: Final = 10
INITIAL_NAMESPACE: Final = 0xEFFFFFFC
"""The kernel's own number of the first pid namespace (PROC_PID_INIT_INO)."""

_LOGGER = logging.getLogger(__name__)


class ProcFileSystem:
    """The processes that `/proc` shows; obeys `controller.ports.ProcessTable`.

    Args:
        root: where it is mounted.
    """

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = root
        # Accounts may be asked of a directory service, which may hang: the processes do not wait for it.
        self._thread = DiskThread("processes", timeout_s=READ_TIMEOUT_S)
        self._accounts = DiskThread("accounts", timeout_s=READ_TIMEOUT_S)
        self._uids: RecentDict[str, int | None] = RecentDict(MAX_USERS)

    @property
    def sees_all(self) -> bool:
        """Return whether this process is in the first pid namespace, so that every process has an id here."""
        return self._namespace(self._root / "self") == INITIAL_NAMESPACE

    async def read(self, pids: Iterable[int]) -> Mapping[int, Lineage | None]:
        """Return each process with its ancestors; None: it cannot be seen. One that has ended is left out."""
        wanted = sorted(pids)
        try:
            return await self._thread.run(partial(self._read, wanted))
        except OSError as error:
            _LOGGER.warning("the processes of this machine cannot be read: %s", error)
            return dict.fromkeys(wanted)

    async def uid_of(self, user: str) -> int | None:
        """Return the id of the local account of a name; None where there is none, or the system does not answer."""
        if user not in self._uids:
            try:
                self._uids[user] = await self._accounts.run(partial(_uid_of, user))
            except OSError:
                return None
        return self._uids[user]

    async def marked(self) -> frozenset[int]:
        """Return the ids of the processes that bear a mark, as far as they can be seen.

        Raises:
            OSError: they cannot be read.
        """
        return await self._thread.run(self._marked)

    def _read(self, pids: list[int]) -> dict[int, Lineage | None]:
        known: dict[int, ProcessIdentity | None] = {}
        found = {pid: self._lineage(pid, known) for pid in pids}
        return {pid: lineage for pid, lineage in found.items() if lineage is not None or self._may_live(pid)}

    def _marked(self) -> frozenset[int]:
        pids = [int(entry.name) for entry in self._root.iterdir() if entry.name.isdecimal()]
        return frozenset(pid for pid in pids if self._marks(self._root / str(pid)))

    def _lineage(self, pid: int, known: dict[int, ProcessIdentity | None]) -> Lineage | None:
        """Return a process and its ancestors, nearest first, as far as they can be seen."""
        lineage: list[ProcessIdentity] = []
        while pid > 0 and len(lineage) < MAX_ANCESTORS:
            if pid not in known:
                known[pid] = self._identity(pid)
            identity = known[pid]
            if identity is None:
                break
            lineage.append(identity)
            pid = identity.parent_pid
        return tuple(lineage) or None

    def _identity(self, pid: int) -> ProcessIdentity | None:
        folder = self._root / str(pid)
        try:
            lines = (folder / "status").read_text(encoding="utf-8", errors="replace").splitlines()
            fields = dict(line.split(":", 1) for line in lines if ":" in line)
            ids = tuple(int(each) for each in fields.get("NSpid", str(pid)).split())
            return ProcessIdentity(
                pid=pid,
                parent_pid=int(fields["PPid"]),
                uid=int(fields["Uid"].split()[0]),
                name=fields["Name"].strip(),
                namespace_pids=ids,
                # Without CAP_SYS_PTRACE others' namespaces cannot be read; who has one id alone is in ours.
                pid_namespace=self._namespace(folder)
                or (None if len(ids) > 1 else self._namespace(self._root / "self")),
                container=_read_text(folder / "cgroup") if len(ids) > 1 else "",
                marks=self._marks(folder),
            )
        except (OSError, KeyError, ValueError, IndexError):
            return None

    def _marks(self, folder: Path) -> frozenset[str]:
        try:
            threads = list(islice((folder / "task").iterdir(), MAX_THREADS))
        except OSError:
            return frozenset()
        return frozenset(name for name in map(_read_name, threads) if is_mark(name))

    def _namespace(self, folder: Path) -> int | None:
        """Return the number of a process's pid namespace; None where this process may not know it."""
        try:
            return (folder / "ns" / "pid").stat().st_ino
        except OSError:
            return None

    def _may_live(self, pid: int) -> bool:
        """Return whether a process that `/proc` does not show may be there: hidden, or in another namespace."""
        if not self.sees_all:
            return True
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except (OSError, OverflowError):
            return True
        return True


def _uid_of(user: str) -> int | None:
    try:
        return pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError, OSError):  # no such account, or a name that cannot be one
        # A user without a name goes by its number.
        return int(user) if user.isascii() and user.isdigit() and len(user) <= MAX_UID_DIGITS else None


def _read_name(thread: Path) -> str:
    return _read_text(thread / "comm").rstrip("\n")


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has ended meanwhile
        return ""
