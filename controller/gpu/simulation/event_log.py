"""Events of a simulated GPU, as records that several processes share without locks.

Each process appends what it does to one file of fixed-size records, one `write` a record, and every reader gets the
same records in the same order.
"""

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_RECORD: Final = struct.Struct("<qqd")  # time [ns], kind, value
_LIMIT, _LOAD, _PROCESS, _SETTLED = 1, 2, 3, 4
FOREVER_NS: Final = 2**63 - 1
_RECORDS_AT_ONCE: Final = 1024


@dataclass(frozen=True, slots=True)
class LimitSet:
    """The power limit was set."""

    time_ns: int
    power_limit_w: float


@dataclass(frozen=True, slots=True)
class LoadChanged:
    """The job began to use the GPU, or stopped using it."""

    time_ns: int
    loaded: bool


@dataclass(frozen=True, slots=True)
class ProcessAttached:
    """A process registered its load with the GPU, as one does with a driver when it initialises CUDA."""

    time_ns: int
    pid: int


@dataclass(frozen=True, slots=True)
class LoadSettled:
    """The job will not change its load at an earlier time than this: it may still do so later, and tell it late."""

    time_ns: int


Event = LimitSet | LoadChanged | ProcessAttached | LoadSettled


class EventFile:
    """An event log in a file that several processes share."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._offset = 0

    def append(self, event: Event) -> None:
        """Add an event; `O_APPEND` makes one `write` of one record atomic."""
        if isinstance(event, LimitSet):
            record = _RECORD.pack(event.time_ns, _LIMIT, event.power_limit_w)
        elif isinstance(event, ProcessAttached):
            record = _RECORD.pack(event.time_ns, _PROCESS, event.pid)
        elif isinstance(event, LoadSettled):
            record = _RECORD.pack(event.time_ns, _SETTLED, 0.0)
        else:
            record = _RECORD.pack(event.time_ns, _LOAD, event.loaded)
        if os.write(self._fd, record) != _RECORD.size:
            raise OSError("the event file took only a part of a record: is the disk full?")

    def read_new(self) -> list[Event]:
        """Return the events since the last call; the order in the file is the same for every reader."""
        events: list[Event] = []
        while whole := self._read_records():
            events += [_decode(*fields) for fields in _RECORD.iter_unpack(whole)]
            self._offset += len(whole)
        return events

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read_records(self) -> bytes:
        block = os.pread(self._fd, _RECORD.size * _RECORDS_AT_ONCE, self._offset)
        return block[: len(block) - len(block) % _RECORD.size]


def _decode(time_ns: int, kind: int, value: float) -> Event:  # [W], or 0 and 1, or a process id
    if kind == _LIMIT:
        return LimitSet(time_ns, value)
    if kind == _LOAD:
        return LoadChanged(time_ns, bool(value))
    if kind == _PROCESS:
        return ProcessAttached(time_ns, int(value))
    if kind == _SETTLED:
        return LoadSettled(time_ns)
    raise ValueError(f"record of kind {kind} at {time_ns} ns: this is not the event file of a simulated GPU")
