"""The journal of prior power limits, and the only function that restores them.

The journal is written before a GPU is, so that every limit can be restored even after SIGKILL. For each GPU that we
hold it keeps its prior limit, and the limits that we may have left on it: the one in force and the one about
to be written, because a kill can come between the two. A limit is ours to restore only while it is one of these. The
file is replaced whole (write, fsync, rename, fsync of the directory) and never edited.

`restore_prior_limit` is called by the limiter at the end of a hold and when the controller stops, by the controller at
start for what a killed one left behind, and by `gridchase restore`.
"""

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from controller.errors import GpuError, JournalError
from controller.ports import Gpu, LiveLimit
from publishers.shared.atomic_file import replace_file

FILE_NAME: Final = "journal.json"
VERSION: Final = 1
READBACK_TOLERANCE_W: Final = 0.5
"""A limit that reads back within this of what was written is the same: drivers round to milliwatts, boards to 0.5 W."""
_UNWRITABLE: Final = "set node.state_dir to a directory that can be written"


class JournalEntry(Struct, frozen=True, kw_only=True):
    """A GPU that we hold: its prior limit, and the limits that we may have left on it [W]."""

    prior_power_limit_w: float
    written_power_limits_w: tuple[float, ...]
    written_at_s: float


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

    def forget(self, gpu_uuid: str) -> None:
        """Remove the entry of a GPU: its limit is restored, or another program has set it.

        Raises:
            JournalError: the disk refuses; the entry then stays.
        """
        with self._lock:
            if gpu_uuid in self.entries:
                self._store({uuid: entry for uuid, entry in self.entries.items() if uuid != gpu_uuid})

    def _store(self, entries: Mapping[str, JournalEntry]) -> None:
        try:
            self._replace(entries)
        except OSError as error:
            raise JournalError(f"{self.path}: {error.strerror}") from error
        self.entries = entries

    def _replace(self, entries: Mapping[str, JournalEntry]) -> None:
        content = msgspec.json.encode(_File(version=VERSION, gpus=dict(entries)))
        replace_file(self.path, msgspec.json.format(content, indent=2))


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult:
    """The outcome of a restore, with the live limits after it where they could be read."""

    code: Literal["restored", "untouched", "failed"]
    detail: str
    live: LiveLimit | None = None


async def restore_prior_limit(gpu: Gpu, journal: Journal) -> RestoreResult | None:
    """Restore the prior limit of a GPU if the live one still is one that we wrote; None where we hold nothing.

    Otherwise another program has set it, and it stays. If the GPU fails, the journal keeps its entry.
    """
    entry = journal.entries.get(gpu.uuid)
    if entry is None:
        return None
    try:
        live = await gpu.read_limit()
        if not is_our_limit(live, entry):
            await asyncio.to_thread(journal.forget, gpu.uuid)
            detail = f"left at {live.requested_power_limit_w:g} W: another writer has set it since"
            return RestoreResult(code="untouched", detail=detail, live=live)
        live = await _write_prior(gpu, entry, live)
        await asyncio.to_thread(journal.forget, gpu.uuid)
    except (GpuError, JournalError) as error:
        return RestoreResult(
            code="failed", detail=f"could not be restored: {error}; fix that, then run `gridchase restore`"
        )
    return RestoreResult(code="restored", detail=f"prior limit {live.requested_power_limit_w:g} W restored", live=live)


def is_our_limit(live: LiveLimit, entry: JournalEntry) -> bool:
    """Return whether the live limit is the prior one or one that we wrote."""
    ours_w = (*entry.written_power_limits_w, entry.prior_power_limit_w)
    return any(is_same_limit(live.requested_power_limit_w, limit_w) for limit_w in ours_w)


def is_same_limit(one_w: float, other_w: float) -> bool:
    """Return whether two power limits [W] differ only by the rounding of drivers and boards."""
    return abs(one_w - other_w) <= READBACK_TOLERANCE_W


async def _write_prior(gpu: Gpu, entry: JournalEntry, live: LiveLimit) -> LiveLimit:
    """Write the prior limit, clamped to what the GPU accepts today, unless it is in force already; return what is."""
    limits = await gpu.read_range()
    prior_power_limit_w = min(max(entry.prior_power_limit_w, limits.min_power_limit_w), limits.max_power_limit_w)
    if is_same_limit(live.requested_power_limit_w, prior_power_limit_w):
        return live
    await gpu.set_power_limit(prior_power_limit_w)
    return await gpu.read_limit()
