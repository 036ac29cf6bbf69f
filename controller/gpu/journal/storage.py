"""How the journal is stored: on the disk before a GPU is written, so that every limit can be restored after SIGKILL.

The file is replaced whole (write, fsync, rename, fsync of the directory) and never edited.

Restoring needs to read the journal only. A disk that is full, read-only or hangs is a `JournalError`: nothing is
written to a GPU then, and what is in force is given back.

What such a disk does not take (that a restore is under way, what a board has made of a write, that an entry is struck)
must not be lost with the process. So each content has a number, and is first written to a copy in memory (`run_dir`);
the copy is read where it is the newer one, or the file is gone. It never takes the place of the disk: a boot may come
between.
"""

import asyncio
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final

from controller.errors import JournalError
from controller.gpu.journal.entry import JournalEntry, uuid_fault
from controller.gpu.journal.format import DecodedJournal, decode_journal, encode_journal
from controller.gpu.run_dir import run_dir
from publishers.shared.files.atomic_file import replace_file
from publishers.shared.files.disk_thread import DiskThread
from publishers.shared.files.private_dir import make_private_dir, open_private, unsafe_dir_fault

FILE_NAME: Final = "journal.json"
MAX_BYTES: Final = 1 << 20
PROBE_PERIOD_S: Final = 60.0
"""While a limit is held, the journal is proven to be writable this often."""
NOTE_TIMEOUT_S: Final = 0.25
COPY_THREAD: Final = "gridchase journal copy"
_UNWRITABLE: Final = "set node.state_dir to a directory that can be written"
_REPAIR: Final = "compare the limits with `nvidia-smi -q -d POWER`, set them by hand where needed, then remove the file"


class Journal:
    """The journal in a state directory. Its methods are called in the event loop, and use the disk in a thread.

    Attributes:
        entries: the GPUs that we hold, by UUID; replaced at each change, never changed in place.
        damage: what is wrong with the file, a sentence each; such a file is left as it is.
        is_missing: whether there was no file when it was read: never written, deleted or unmounted.
    """

    def __init__(
        self, path: Path, entries: Mapping[str, JournalEntry], damage: tuple[str, ...] = (), *, number: int = 0
    ) -> None:
        self.path = path
        self.entries = entries
        self.damage = damage
        self.is_missing = False
        self._number = number
        self._copy_path = copy_path_of(path.parent)
        self._disk = DiskThread("gridchase journal")
        self._memory = DiskThread(COPY_THREAD, timeout_s=NOTE_TIMEOUT_S)
        self._stored_number = number
        """Of the content on the disk; several GPUs may be storing at once, and the disk may refuse one of them."""
        self._stored_at_s = -math.inf

    @classmethod
    def read(cls, state_dir: Path) -> "Journal":
        """Return the journal of `state_dir` without writing anything; an absent one is empty.

        Raises:
            JournalError: it cannot be read, or nothing in it can be understood.
        """
        path = state_dir / FILE_NAME
        copy = _read_copy(copy_path_of(state_dir))
        try:
            content = _read_private(path)
        except FileNotFoundError:
            journal = cls(path, copy.entries, number=copy.number)
            journal.is_missing = True
            journal._stored_number = 0
            return journal
        except OSError as error:
            raise JournalError(f"{path}: {error.strerror}; no GPU was touched (node.state_dir)") from error
        try:
            decoded = decode_journal(content)
        except ValueError as error:
            raise JournalError(f"{path}: {error}; no GPU was touched: {_REPAIR}") from error
        damage = tuple(f"{path}: {fault}: {_REPAIR}" for fault in decoded.faults)
        is_copy_newer = copy.number > decoded.number > 0 and not damage
        journal = cls(
            path,
            copy.entries if is_copy_newer else decoded.entries,
            damage,
            number=max(copy.number, decoded.number),
        )
        if is_copy_newer:
            journal._stored_number = decoded.number
        return journal

    @classmethod
    async def load(cls, state_dir: Path) -> "Journal":
        """Return the journal of `state_dir` like `read`; a disk that hangs does not delay for long.

        Raises:
            JournalError: it cannot be read, or nothing in it can be understood.
        """
        try:
            return await DiskThread("gridchase journal").run(lambda: cls.read(state_dir))
        except OSError as error:
            raise JournalError(
                f"{state_dir / FILE_NAME}: {error.strerror}; no GPU was touched (node.state_dir)"
            ) from error

    @property
    def copy_path(self) -> Path | None:
        """Return where the copy is; None where this user has no place for one."""
        return self._copy_path

    @property
    def _is_stored(self) -> bool:
        return self._stored_number == self._number

    async def fault(self) -> str:
        """Return why no GPU may be written, after storing what is in the journal as a proof; "" if all is well."""
        if self.damage:
            return "\n".join(self.damage)
        try:
            await self._store()
        except JournalError as error:
            return f"{error}; {_UNWRITABLE}"
        return ""

    async def probe(self) -> None:
        """Prove now and then, while limits are held, that the journal can be written.

        Raises:
            JournalError: the disk refuses, or does not answer.
        """
        if not self._is_stored or asyncio.get_running_loop().time() >= self._stored_at_s + PROBE_PERIOD_S:
            await self._store()

    async def flush(self) -> None:
        """Store what the disk has not taken yet.

        Raises:
            JournalError: the disk refuses, or does not answer.
        """
        if not self._is_stored:
            await self._store()

    async def record(self, gpu_uuid: str, entry: JournalEntry) -> None:
        """Store the entry of a GPU, durably, before the GPU is written.

        Raises:
            JournalError: the disk refuses, or does not answer, or the entry could not be read again; the GPU must not
                be written then.
        """
        if fault := entry.fault() or uuid_fault(gpu_uuid):
            raise JournalError(f"{self.path}: the entry of {gpu_uuid} is not stored: {fault}")
        former = self.entries.get(gpu_uuid)
        self._set(gpu_uuid, entry)
        try:
            await self._store()
        except JournalError:
            self._set(gpu_uuid, former)
            self._number += 1
            await self._write_copy(encode_journal(self.entries, self._number))
            raise

    async def confirm(self, gpu_uuid: str, entry: JournalEntry) -> None:
        """Store what is known of a GPU after it was written; it is known whether or not the disk takes it.

        Raises:
            JournalError: the disk refuses, or does not answer.
        """
        self._set(gpu_uuid, entry)
        await self._store()

    async def note(self, gpu_uuid: str, entry: JournalEntry) -> None:
        """Store what is about to be restored or could not be, if the disk takes it at once: no restore waits for it."""
        self._set(gpu_uuid, entry)
        with suppress(JournalError, TimeoutError):
            async with asyncio.timeout(NOTE_TIMEOUT_S):
                await self._store()

    async def forget(self, gpu_uuid: str) -> None:
        """Strike the entry of a GPU: its limit is restored, or another program has set it.

        Raises:
            JournalError: the disk refuses, or does not answer; the entry stays there until something is stored.
        """
        if gpu_uuid in self.entries:
            self._set(gpu_uuid, None)
            await self._store()

    def remove_stale_copy(self) -> None:
        """Remove the copy where the journal on the disk is empty and not older; call it under the lock of the node."""
        is_empty = not (self.entries or self.damage or self.is_missing)
        if self._copy_path is not None and is_empty and self._is_stored:
            self._copy_path.unlink(missing_ok=True)

    def _set(self, gpu_uuid: str, entry: JournalEntry | None) -> None:
        others = {uuid: other for uuid, other in self.entries.items() if uuid != gpu_uuid}
        self.entries = others if entry is None else others | {gpu_uuid: entry}

    async def _store(self) -> None:
        self._number += 1
        number = self._number
        if self.damage:
            raise JournalError(f"{self.path}: is damaged, and left as it is")
        is_empty, content = not self.entries, encode_journal(self.entries, number)
        await self._write_copy(content)
        try:
            await self._disk.run(lambda: self._replace(content))
        except OSError as error:
            raise JournalError(f"{self.path}: {error.strerror}") from error
        self._stored_number, self._stored_at_s = number, asyncio.get_running_loop().time()
        if is_empty and self._is_stored:
            await self._write_copy(None)

    def _replace(self, content: bytes) -> None:
        make_private_dir(self.path.parent)
        replace_file(self.path, content)

    async def _write_copy(self, content: bytes | None) -> None:
        """Write the copy, or remove it (None); where that fails the disk has to do."""
        path = self._copy_path
        if path is not None:
            with suppress(OSError):
                await self._memory.run(lambda: _replace_copy(path, content))


def copy_path_of(state_dir: Path) -> Path | None:
    """Return where the copy of the journal of a state directory is; None where this user has no such place."""
    folder = run_dir()
    if folder is None:
        return None
    name = blake2b(os.fsencode(os.path.realpath(state_dir)), digest_size=8).hexdigest()
    return folder / f"journal-{name}.json"


def copies_elsewhere(state_dir: Path) -> dict[Path, Mapping[str, JournalEntry]]:
    """Return what controllers with other state directories, running or killed, have in the copies of their journals."""
    own = copy_path_of(state_dir)
    others = [path for path in own.parent.glob("journal-*.json") if path != own] if own is not None else []
    return {path: _read_copy(path).entries for path in sorted(others)}


def _replace_copy(path: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink(missing_ok=True)
        return
    make_private_dir(path.parent)
    replace_file(path, content, is_durable=False)


def _read_copy(path: Path | None) -> DecodedJournal:
    """Return what the copy has; nothing where there is none that can be trusted."""
    nothing = DecodedJournal({}, [])
    try:
        if path is None or unsafe_dir_fault(path.parent):
            return nothing
        decoded = decode_journal(_read_private(path))
    except (OSError, ValueError):
        return nothing
    return nothing if decoded.faults else decoded


def _read_private(path: Path) -> bytes:
    fd = open_private(path, os.O_RDONLY)
    with open(fd, "rb") as file:  # noqa: PTH123 — a descriptor, not a path
        return file.read(MAX_BYTES)
