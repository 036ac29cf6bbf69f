"""Signal histories on disk, so that a controller that restarts knows the last 60 days of the grid.

One file for each source, replaced whole: a crash at any time leaves the old content or the new one. Nothing here raises
or delays the controller: a full, read-only or hanging disk is a fault that is logged once.
"""

import asyncio
import hashlib
import logging
import math
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct

from policies.vocabulary.signal import Signal, SignalKind
from publishers.shared.files.file_writer import FileWriter
from publishers.shared.log_once import FaultLog
from publishers.shared.worker_thread import WorkerThreads

VERSION: Final = 1
LOAD_TIMEOUT_S: Final = 10.0
_FLOATS: Final = np.dtype("<f8")

_LOGGER = logging.getLogger(__name__)


class _Version(Struct, frozen=True, kw_only=True):
    version: int


class _File(_Version, frozen=True, kw_only=True):
    sha256: bytes
    series: bytes


class _Series(Struct, frozen=True, kw_only=True):
    """A signal; the arrays are little-endian float64, and one byte for each flag."""

    kind: SignalKind
    zone: str
    unit: str
    source: str
    ends_s: float
    issued_at_s: float
    starts_s: bytes
    values: bytes
    estimated: bytes


class HistoryStore:
    """The histories in one directory that only its owner may read: some licences forbid passing data on.

    The file system is used by daemon threads: a disk that hangs does not keep the process alive.

    Args:
        folder: the directory; made with the first file.
        keep_s: values that ended longer ago are dropped [s].
        is_read_only: write nothing, as beside a running controller.
    """

    def __init__(self, folder: Path, *, keep_s: float = 60 * 86_400.0, is_read_only: bool = False) -> None:
        self._folder = folder
        self._keep_s = keep_s
        self._is_read_only = is_read_only
        self._writer = FileWriter(folder, what="signal histories")
        self._reader = WorkerThreads("gridchase signal histories")
        self._load_fault = FaultLog(_LOGGER, recovered="signal history is readable again")
        self._loading: Path | None = None
        self._timed_out: Path | None = None

    def path_of(self, key: str) -> Path:
        """Return the file of a source."""
        return self._folder / f"{re.sub('[^A-Za-z0-9._-]+', '-', key)}.history"

    async def load(self, key: str, *, since_s: float) -> Signal | None:
        """Return the values of a source that hold after `since_s`; None if there are none, or none can be read.

        The first may start before `since_s`: no value is cut in two.
        """
        path = self.path_of(key)
        if self._is_hanging():
            return None
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                stored = await self._reader.run(lambda: self._load(path))
        except TimeoutError:
            self._timed_out = path
            self._load_fault.report(f"{path}: the disk does not answer; the signal history is not loaded")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            self._load_fault.report(f"{path}: {why}; the signal history is not loaded")
        else:
            self._load_fault.clear()
            recent = None if stored is None else _since(stored, since_s)
            return recent if recent is not None and len(recent) else None
        return None

    def save(self, key: str, series: Signal, *, now_s: float) -> None:
        """Write all that is known of a source, soon; values on disk that `series` lacks stay.

        A series of another kind, zone or unit starts a new file. A constant, which has no end, is not saved.
        """
        if not self._is_read_only and len(series) and math.isfinite(series.ends_s):
            path = self.path_of(key)
            self._writer.put({path: lambda: self._content(path, series, since_s=now_s - self._keep_s)})

    def close(self) -> None:
        """Finish the writes that are under way, within a bounded time."""
        self._writer.close()
        self._reader.shutdown()

    def _is_hanging(self) -> bool:
        """Return whether a read that timed out has not returned yet: then no other one is worth waiting for."""
        return self._timed_out is not None and self._timed_out == self._loading

    def _load(self, path: Path) -> Signal | None:
        self._loading = path
        try:
            return self._read(path)
        finally:
            self._loading = None

    def _content(self, path: Path, series: Signal, *, since_s: float) -> bytes:
        """Return the new content of a file; it is merged with the old one, which may have been unreadable at start."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(PermissionError):  # another user's directory
            self._folder.chmod(0o700)
        stored = self._read(path)
        if stored is not None and is_same_series(stored, series):
            series = stored.revised(series)
        return _encode(_since(series, since_s))

    def _read(self, path: Path) -> Signal | None:
        """Return the content of a file, or None if there is none; a damaged file is moved aside.

        Raises:
            OSError: the file cannot be read.
            ValueError: a later version wrote it; or it is damaged, and nothing may be written.
        """
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            version = msgspec.msgpack.decode(content, type=_Version).version
            if version == VERSION:
                return _decode(content)
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            if self._is_read_only:
                raise ValueError(f"is damaged: {error}") from error
            aside = path.with_suffix(".corrupt")
            path.replace(aside)
            _LOGGER.warning("%s: %s: moved to %s; starting a new signal history", path, error, aside.name)
            return None
        raise ValueError(f"version {version}: this gridchase reads version {VERSION}")


def is_same_series(one: Signal, other: Signal) -> bool:
    """Return whether two signals belong to one series; a zone may change its currency."""
    return (one.kind, one.zone, one.unit) == (other.kind, other.zone, other.unit)


def _since(signal: Signal, since_s: float) -> Signal:
    """Return the values that hold after a time, without cutting the first one."""
    holding = int(np.searchsorted(signal.starts_s, since_s, side="right")) - 1
    starts_s = float(signal.starts_s[holding]) if holding >= 0 and signal.ends_s > since_s else since_s
    return signal.between(starts_s, math.inf)


def _encode(signal: Signal) -> bytes:
    series = msgspec.msgpack.encode(
        _Series(
            kind=signal.kind,
            zone=signal.zone,
            unit=signal.unit,
            source=signal.source,
            ends_s=signal.ends_s,
            issued_at_s=signal.issued_at_s,
            starts_s=signal.starts_s.astype(_FLOATS).tobytes(),
            values=signal.values.astype(_FLOATS).tobytes(),
            estimated=signal.estimated.tobytes(),
        )
    )
    return msgspec.msgpack.encode(_File(version=VERSION, sha256=hashlib.sha256(series).digest(), series=series))


def _decode(content: bytes) -> Signal:
    """Raise ValueError or MsgspecError if the content is damaged."""
    file = msgspec.msgpack.decode(content, type=_File)
    if hashlib.sha256(file.series).digest() != file.sha256:
        raise ValueError("the checksum is wrong")
    series = msgspec.msgpack.decode(file.series, type=_Series)
    return Signal(
        kind=series.kind,
        zone=series.zone,
        unit=series.unit,
        source=series.source,
        ends_s=series.ends_s,
        issued_at_s=series.issued_at_s,
        starts_s=np.frombuffer(series.starts_s, _FLOATS).astype(np.float64),
        values=np.frombuffer(series.values, _FLOATS).astype(np.float64),
        estimated=np.frombuffer(series.estimated, np.bool_).copy(),
    )
