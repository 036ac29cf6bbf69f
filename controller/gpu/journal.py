"""The journal of prior power limits.

The journal is written before a GPU is, so that every limit can be restored even after SIGKILL. For each GPU that we
hold it keeps its prior limit, and the limits that we may have left on it: the one in force and the one about
to be written, because a kill can come between the two. Whose a live limit is, is judged by these (`read_back`). The
file is replaced whole (write, fsync, rename, fsync of the directory) and never edited.
"""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from controller.errors import JournalError
from publishers.shared.atomic_file import replace_file

FILE_NAME: Final = "journal.json"
VERSION: Final = 1
MAX_WRITTEN: Final = 8
READBACK_TOLERANCE_W: Final = 0.5
"""A limit that reads back within this of what was written is the same: drivers round to milliwatts, boards to 0.5 W."""
_UNWRITABLE: Final = "set node.state_dir to a directory that can be written"


class JournalEntry(Struct, frozen=True, kw_only=True):
    """A GPU that we hold: its prior limit, and the limits that we may have left on it [W].

    Attributes:
        prior_power_limit_w: what is to be restored.
        written_power_limits_w: what is ours on the GPU, the newest last.
        written_at_s: when it was written last [Unix s].
        is_confirmed: whether the last write has been seen back; until then the board may have made anything of it.
    """

    prior_power_limit_w: float
    written_power_limits_w: tuple[float, ...]
    written_at_s: float
    is_confirmed: bool = True

    @property
    def newest_power_limit_w(self) -> float:
        """Return what was asked for last [W]."""
        return self.written_power_limits_w[-1] if self.written_power_limits_w else self.prior_power_limit_w


class _Header(Struct, frozen=True, kw_only=True):
    version: int


class _File(_Header, frozen=True, kw_only=True):
    gpus: dict[str, JournalEntry]


class Journal:
    """The journal in a state directory. Safe to call from the threads of several GPUs.

    Attributes:
        entries: the GPUs that we hold, by UUID; replaced at each change, never changed in place.
    """

    def __init__(self, path: Path, entries: Mapping[str, JournalEntry]) -> None:
        self.path = path
        self.entries = entries
        self._lock = threading.Lock()

    @classmethod
    def open(cls, state_dir: Path) -> "Journal":
        """Return the journal of `state_dir`, created where missing, after proving that it can be written.

        Raises:
            JournalError: the journal cannot be read or understood, or the directory cannot be written.
        """
        try:
            state_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise JournalError(f"{state_dir}: {error.strerror}; {_UNWRITABLE}") from error
        journal = cls.read(state_dir)
        try:
            journal._replace(journal.entries)
        except OSError as error:
            raise JournalError(f"{journal.path}: {error.strerror}; {_UNWRITABLE}") from error
        return journal

    @classmethod
    def read(cls, state_dir: Path) -> "Journal":
        """Return the journal of `state_dir` without writing anything; an absent one is empty.

        Raises:
            JournalError: it cannot be read or understood.
        """
        path = state_dir / FILE_NAME
        try:
            content = path.read_bytes()
            version = msgspec.json.decode(content, type=_Header).version
            entries = msgspec.json.decode(content, type=_File).gpus if version == VERSION else {}
        except FileNotFoundError:
            return cls(path, {})
        except OSError as error:
            raise JournalError(f"{path}: {error.strerror}; no GPU was touched") from error
        except msgspec.DecodeError as error:
            raise JournalError(
                f"{path}: {error}; no GPU was touched: compare its limits with `nvidia-smi -q -d POWER`, "
                "set them by hand where needed, then remove the file"
            ) from error
        if version != VERSION:
            raise JournalError(f"{path}: version {version}: this gridchase reads version {VERSION}; no GPU was touched")
        return cls(path, entries)

    def record(self, gpu_uuid: str, entry: JournalEntry) -> None:
        """Store the entry of a GPU, durably, before the GPU is written.

        Raises:
            JournalError: the disk refuses; the GPU must not be written then.
        """
        with self._lock:
            self._store({**self.entries, gpu_uuid: entry})

    def confirm(self, gpu_uuid: str, entry: JournalEntry) -> None:
        """Store what is known of a GPU after it was written; it is known whether or not the disk takes it.

        Raises:
            JournalError: the disk refuses.
        """
        with self._lock:
            self.entries = {**self.entries, gpu_uuid: entry}
            self._store(self.entries)

    def forget(self, gpu_uuid: str) -> None:
        """Remove the entry of a GPU: its limit is restored, or another program has set it.

        Raises:
            JournalError: the disk refuses; the entry stays there until something is stored.
        """
        with self._lock:
            if gpu_uuid in self.entries:
                self.entries = {uuid: entry for uuid, entry in self.entries.items() if uuid != gpu_uuid}
                self._store(self.entries)

    def _store(self, entries: Mapping[str, JournalEntry]) -> None:
        try:
            self._replace(entries)
        except OSError as error:
            raise JournalError(f"{self.path}: {error.strerror}") from error
        self.entries = entries

    def _replace(self, entries: Mapping[str, JournalEntry]) -> None:
        content = msgspec.json.encode(_File(version=VERSION, gpus=dict(entries)))
        replace_file(self.path, msgspec.json.format(content, indent=2))


def entry_before_write(
    former: JournalEntry | None,
    *,
    prior_power_limit_w: float,
    live_power_limit_w: float,
    asked_power_limit_w: float,
    now_s: float,
) -> JournalEntry:
    """Return the entry to be on disk before a write: a kill may come before the write or after it.

    Until a write is seen back, the ones before it may still be on their way: they are kept, too.
    """
    entry = JournalEntry(
        prior_power_limit_w=prior_power_limit_w,
        written_power_limits_w=former.written_power_limits_w if former and not former.is_confirmed else (),
        written_at_s=now_s,
        is_confirmed=False,
    )
    return with_written(with_written(entry, live_power_limit_w), asked_power_limit_w)


def with_written(entry: JournalEntry, power_limit_w: float) -> JournalEntry:
    """Return the entry with one more limit that we may have left; the newest is the last [W]."""
    others_w = (limit_w for limit_w in entry.written_power_limits_w if not is_same_limit(limit_w, power_limit_w))
    written_w = (*dict.fromkeys(others_w), power_limit_w)
    return msgspec.structs.replace(entry, written_power_limits_w=written_w[-MAX_WRITTEN:])


def confirmed_entry(entry: JournalEntry, live_power_limit_w: float) -> JournalEntry:
    """Return the entry once a write is seen back: the live limit is all that we have left."""
    return msgspec.structs.replace(entry, written_power_limits_w=(live_power_limit_w,), is_confirmed=True)


def is_same_limit(one_w: float, other_w: float) -> bool:
    """Return whether two power limits [W] differ only by the rounding of drivers and boards."""
    return abs(one_w - other_w) <= READBACK_TOLERANCE_W
