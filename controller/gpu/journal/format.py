"""The format of the journal: each entry proves itself.

Each line is a JSON object of its own, with a checksum, and counts only if what was read from it encodes to the very
same bytes. So a damaged entry is never taken for another one, and keeps no other GPU from being restored.

    {"version":2,"n_entries":1,"checksum":"…","number":17}
    {"gpu":"GPU-…","entry":{"prior_power_limit_w":300.0,…},"checksum":"…"}
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from controller.gpu.journal.entry import JournalEntry, uuid_fault

VERSION: Final = 2
FIRST_VERSION: Final = 1
"""One JSON object without checksums; still read."""

Content = TypeVar("Content")


class _Version(Struct, frozen=True, kw_only=True):
    version: int


class _FirstVersion(_Version, frozen=True, kw_only=True):
    gpus: dict[str, JournalEntry]


class _Header(_Version, frozen=True, kw_only=True, omit_defaults=True):
    n_entries: int
    checksum: str
    number: int = 0


class _Line(Struct, frozen=True, kw_only=True):
    gpu: str
    entry: JournalEntry
    checksum: str = ""


class DecodedJournal(NamedTuple):
    """What is in the content of a journal.

    Attributes:
        entries: the sound entries, by UUID.
        faults: what is wrong with the rest, a sentence each.
        number: of the content, which rises with each change; 0 in journals of versions that did not count.
    """

    entries: dict[str, JournalEntry]
    faults: list[str]
    number: int = 0


def encode_journal(entries: Mapping[str, JournalEntry], number: int) -> bytes:
    """Return the content of a journal with a number."""
    lines = [_encode_line(uuid, entry) for uuid, entry in sorted(entries.items())]
    return b"".join([_encode_header(lines, number), *lines])


def decode_journal(content: bytes) -> DecodedJournal:
    """Return the sound entries of a journal, and what is wrong with the rest.

    Raises:
        ValueError: it is of another version, or nothing in it can be understood.
    """
    version = _decode(content, _Version)
    if version is not None and version.version == FIRST_VERSION:
        return _decode_first_version(content)
    lines = content.splitlines(keepends=True)
    decoded = [_decode_line(line) for line in lines[1:]]
    sound = [line for line in decoded if line is not None]
    entries = {line.gpu: line.entry for line in sound}
    header = _decode(lines[0], _Header) if lines else None
    if header and lines[0] == _encode_header(lines[1:], header.number) and len(entries) == len(lines) - 1:
        return DecodedJournal(entries, [], header.number)
    if not entries:
        other = _decode(lines[0], _Version) if lines else None
        if other is not None and other.version != VERSION:
            raise ValueError(f"version {other.version}: this gridchase reads versions {FIRST_VERSION} and {VERSION}")
        raise ValueError("is damaged: no entry in it is sound")
    gpus = ", ".join(sorted(entries))
    return DecodedJournal(
        entries, [f"is damaged; of its entries only those of {gpus} are sound, and the others were not touched"]
    )


def _decode_first_version(content: bytes) -> DecodedJournal:
    file = _decode(content, _FirstVersion)
    if file is None:
        raise ValueError("is damaged: its entries cannot be understood")
    faults = {uuid: entry.fault() or uuid_fault(uuid) for uuid, entry in file.gpus.items()}
    sound = {uuid: entry for uuid, entry in file.gpus.items() if not faults[uuid]}
    damage = [
        f"the entry of {uuid!a} is damaged ({fault}) and was not touched" for uuid, fault in faults.items() if fault
    ]
    if damage and not sound:
        raise ValueError("; ".join(damage))
    return DecodedJournal(sound, damage)


def _encode_header(lines: list[bytes], number: int) -> bytes:
    checked = [str(number).encode(), *lines] if number else lines
    header = _Header(version=VERSION, n_entries=len(lines), checksum=_checksum(b"".join(checked)), number=number)
    return msgspec.json.encode(header) + b"\n"


def _encode_line(gpu_uuid: str, entry: JournalEntry) -> bytes:
    whole = msgspec.convert(msgspec.to_builtins(entry), JournalEntry)  # 180 is written as 180.0, as it is read
    line = _Line(gpu=gpu_uuid, entry=whole)
    checksum = _checksum(msgspec.json.encode(line))
    return msgspec.json.encode(msgspec.structs.replace(line, checksum=checksum)) + b"\n"


def _decode_line(content: bytes) -> _Line | None:
    """Return the entry in a line; None where a single bit of it cannot be trusted."""
    line = _decode(content, _Line)
    if line is None or line.entry.fault() or uuid_fault(line.gpu) or content != _encode_line(line.gpu, line.entry):
        return None
    return line


def _decode(content: bytes, kind: type[Content]) -> Content | None:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):  # ValueError: bytes that are not UTF-8
        return None


def _checksum(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()
