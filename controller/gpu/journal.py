"""The journal of prior power limits, and the one way to restore them.

The journal of prior limits: written before a GPU is, so that every limit can be given back even after SIGKILL.

For each GPU that we hold it keeps the limit it had before us, and the limits that we may have left on it: the one in
force and the one about to be written, because a kill can come between the two. A limit is ours to give back only while
it is one of these. The file is replaced whole (write, fsync, rename, fsync of the directory) and never edited.

Giving limits back: the one way in which a power limit of ours ends, by whatever road we come to it.

The actuator takes it at the end of a hold and when the controller stops, the daemon at start for what a killed
controller left behind, and `gridchase restore` by hand.
"""

import asyncio
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from controller.errors import GpuError, JournalError
from controller.ports import Gpu, LiveLimit

FILE_NAME = "journal.json"
VERSION = 1


class JournalEntry(Struct, frozen=True, kw_only=True):
    """A GPU that we hold: what it had before us, and what we may have left on it [W]."""

    prior_power_limit_w: float
    written_power_limits_w: tuple[float, ...]
    written_at_s: float


class _Head(Struct, frozen=True, kw_only=True):
    version: int


class _File(_Head, frozen=True, kw_only=True):
    gpus: dict[str, JournalEntry]


class Journal:
    """The journal in a state directory. Safe to call from the threads of several GPUs."""

    def __init__(self, path: Path, entries: dict[str, JournalEntry]) -> None:
        self.path = path
        self._entries = entries
        self._lock = threading.Lock()

    @classmethod
    def open(cls, state_dir: Path) -> "Journal":
        """Return the journal of `state_dir`, which is made where it is missing, after proving that it can be written.

        Raises:
            JournalError: the journal cannot be read or understood, or the directory cannot be written.
        """
        path = state_dir / FILE_NAME
        try:
            state_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise JournalError(
                f"{state_dir}: {error.strerror}; set node.state_dir to a directory that can be written"
            ) from error
        journal = cls.read(state_dir)
        try:
            journal._replace(journal.entries)
        except OSError as error:
            raise JournalError(
                f"{path}: {error.strerror}; set node.state_dir to a directory that can be written"
            ) from error
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
            version = msgspec.json.decode(content, type=_Head).version
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

    @property
    def entries(self) -> dict[str, JournalEntry]:
        """Return the GPUs that we hold, by UUID."""
        return dict(self._entries)

    def record(self, gpu_uuid: str, entry: JournalEntry) -> None:
        """Put a GPU on record, durably, before it is written to.

        Raises:
            JournalError: the disk refuses; the GPU must not be written then.
        """
        with self._lock:
            self._store({**self._entries, gpu_uuid: entry})

    def forget(self, gpu_uuid: str) -> None:
        """Strike a GPU off the record: it has its limit back, or somebody else owns it now.

        Raises:
            JournalError: the disk refuses; the entry then stays.
        """
        with self._lock:
            if gpu_uuid in self._entries:
                self._store({uuid: entry for uuid, entry in self._entries.items() if uuid != gpu_uuid})

    def _store(self, entries: dict[str, JournalEntry]) -> None:
        try:
            self._replace(entries)
        except OSError as error:
            raise JournalError(f"{self.path}: {error.strerror}") from error
        self._entries = entries

    def _replace(self, entries: dict[str, JournalEntry]) -> None:
        temporary = self.path.with_suffix(".new")
        with temporary.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(_File(version=VERSION, gpus=entries)), indent=2))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


TOLERANCE_W = 0.5
"""Limits closer than this are the same: drivers round to the next milliwatt, boards to the next half watt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult:
    """What became of a limit that was to be given back, with the limits after it where they could be read."""

    code: Literal["restored", "untouched", "failed"]
    detail: str
    live: LiveLimit | None = None


def is_same_limit(one_w: float, other_w: float) -> bool:
    """Return whether two power limits [W] are the same one."""
    return abs(one_w - other_w) <= TOLERANCE_W


async def restore_prior_limit(gpu: Gpu, journal: Journal) -> RestoreResult | None:
    """Give a GPU its prior limit back, if the live limit still is one that we wrote; None where we hold nothing.

    Where it is not, somebody else owns the limit now, and it stays. Where the GPU fails, the journal keeps its entry.
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
        return RestoreResult(code="failed", detail=f"could not be given back: {error}; then run `gridchase restore`")
    return RestoreResult(code="restored", detail=f"given back: {live.requested_power_limit_w:g} W", live=live)


def is_our_limit(live: LiveLimit, entry: JournalEntry) -> bool:
    """Return whether the live limit is the prior one or one that we wrote."""
    ours_w = (*entry.written_power_limits_w, entry.prior_power_limit_w)
    return any(is_same_limit(live.requested_power_limit_w, limit_w) for limit_w in ours_w)


async def _write_prior(gpu: Gpu, entry: JournalEntry, live: LiveLimit) -> LiveLimit:
    """Write the prior limit, unless it is there already; clamped to what the GPU accepts today: drivers change that."""
    limits = await gpu.read_range()
    prior_power_limit_w = min(max(entry.prior_power_limit_w, limits.min_power_limit_w), limits.max_power_limit_w)
    if is_same_limit(live.requested_power_limit_w, prior_power_limit_w):
        return live
    await gpu.set_power_limit(prior_power_limit_w)
    return await gpu.read_limit()
