"""TOML tables to frozen records: every fault at once, each with its path, its value and what it must be."""

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

Record = TypeVar("Record", bound=Struct)
KeyReader = Callable[[str, object, list[str]], object]
"""Reads the value of one key: (path, value, faults) → the value for the record; faults are appended."""
SectionReaders = Mapping[str, Mapping[str, KeyReader]]
"""Key readers by section and key."""


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the configuration."""


def load_sections(
    kind: type[Record],
    path: Path | None,
    overrides: Sequence[str],
    *,
    cross_key_faults: Callable[[Record], Iterable[str]],
    readers: Callable[[Mapping[str, Any]], SectionReaders] = lambda _: {},
    removed_keys: Mapping[str, Mapping[str, str]] | None = None,
) -> tuple[Record, list[str]]:
    """Return a configuration, with defaults in place of what is missing or wrong, and every fault of it.

    Args:
        kind: the whole configuration: each field is a section, and has a default.
        path: the TOML file; None: the defaults.
        overrides: single keys on top, each `section.key=value`.
        cross_key_faults: yields the faults that concern more than one key.
        readers: returns the keys that are read in their own way, given all tables.
        removed_keys: keys of former versions, by section and key, with what replaces each.
    """
    faults: list[str] = []
    tables = _read_tables(path, faults)
    is_readable = not faults
    for text in overrides:
        _apply_override(tables, text, faults)
    tables = {name: _without_removed(name, table, removed_keys or {}, faults) for name, table in tables.items()}
    sections = get_type_hints(kind)
    faults += [
        f"{name}: there is no such section; {closest(name, sections)}" for name in tables if name not in sections
    ]
    own_readers = readers(tables)
    built = {
        name: build_record(name, section, tables.get(name, {}), faults, readers=own_readers.get(name))
        for name, section in sections.items()
    }
    config = kind(**{name: section for name, section in built.items() if section is not None})
    if is_readable:
        faults += _independent(cross_key_faults(config), faults)
    return config, faults


def build_record(
    name: str,
    kind: type[Record],
    table: object,
    faults: list[str],
    *,
    readers: Mapping[str, KeyReader] | None = None,
) -> Record | None:
    """Return the record that a table describes, without what is wrong in it; None where it cannot be made at all.

    Args:
        name: the path of the table, for the faults.
        kind: the type of the record.
        table: what the TOML file has under this path.
        faults: is appended to.
        readers: keys that are read in their own way.
    """
    if not isinstance(table, dict):
        faults.append(f"{name} = {redacted_repr(table)}: must be a table, [{name}]")
        return None
    hints = get_type_hints(kind, include_extras=True)
    good: dict[str, Any] = {}
    for key, value in table.items():
        if key not in hints:
            faults.append(f"{name}.{key}: there is no such key; {closest(key, hints)}")
        elif readers and key in readers:
            good[key] = readers[key](f"{name}.{key}", value, faults)
        else:
            try:
                good[key] = msgspec.convert(value, hints[key])
            except msgspec.ValidationError as error:
                seen = "…" if key.endswith("_env") else redacted_repr(value)  # people put the secret itself there
                faults.append(f"{name}.{key} = {seen}: {_describe_bounds(hints[key]) or error}{_as_number(key, value)}")
    missing = [field.name for field in msgspec.structs.fields(kind) if field.required and field.name not in good]
    faults += [f"{name}.{key}: is missing: {_describe_bounds(hints[key])}" for key in missing if key not in table]
    return None if missing else kind(**good)


def closest(name: str, known: Iterable[str]) -> str:
    """Return what somebody may have meant by a name that is not known: the most similar one, or else all.

    >>> closest("max_slowdwn", ["max_slowdown", "eta"])
    'did you mean max_slowdown?'
    >>> closest("zeal", ["max_slowdown", "eta"])
    'there are max_slowdown, eta'
    """
    names = list(known)
    similar = get_close_matches(name, names, n=1, cutoff=0.7)
    return f"did you mean {similar[0]}?" if similar else f"there are {', '.join(names)}"


def _as_number(key: str, value: object) -> str:
    """Return how a text with a unit is written as the number that a key wants; "" where that is not known.

    >>> [_as_number(key, text) for key, text in [("max_slowdown", "5%"), ("period_s", "5 min"), ("step_w", "0.7 kW")]]
    [': write 1.05', ': write 300', ': write 700']
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z%]+)\s*", value) if isinstance(value, str) else None
    scales = next((scales for ending, scales in _SCALES.items() if key.endswith(ending)), {})
    if found is None or found[2] not in scales:
        return ""
    offset = 1.0 if key.endswith("slowdown") else 0.0
    return f": write {offset + float(found[1]) * scales[found[2]]:g}"


def _parse_value(text: str) -> object:
    """Return the TOML value that a text is; a text that is none is a string: `gpu.backend=simulation`."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def redacted_repr(value: object) -> str:
    """Return a value as it may be logged."""
    return _redact_credentials(repr(value))


def _describe_bounds(hint: Any) -> str:  # noqa: ANN401 — a type annotation has no narrower type
    """Return what a value of a type must be, in words; "" where that is not known."""
    if get_origin(hint) is Literal:
        return "must be " + " or ".join(repr(choice) for choice in get_args(hint))
    if get_origin(hint) is not Annotated:
        return f"must be {_WORDS[hint]}" if hint in _WORDS else ""
    kind, meta, *_ = get_args(hint)
    if isinstance(kind, UnionType) or kind not in _WORDS:
        return ""
    words = [f"{word} {getattr(meta, field):g}" for field, word in _BOUNDS.items() if getattr(meta, field) is not None]
    return (
        f"must be {_WORDS[kind]}"
        + (" " + " and ".join(words) if words else "")
        + (f" of {meta.description}" if meta.description else f" like {meta.pattern}" if meta.pattern else "")
        + (" and not empty" if meta.min_length and not meta.pattern else "")
    )


_KEY: Final = re.compile(r"\b[a-z]+\.[a-z_]+")
_TABLE: Final = re.compile(r"\bjob\[\d+\]\.")
"""What a `[[plan.job]]` does not say itself it has from `[plan]`, and its fault may be that of there."""
_BOUNDS: Final = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
_SCALES: Final = {
    "slowdown": {"%": 0.01},
    "_ratio": {"%": 0.01},
    "_s": {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0},
    "_w": {"W": 1.0, "kW": 1_000.0},
}
"""The units that people write, by the ending of a key, and what one is in the key's unit."""
_WORDS: Final = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}


def _read_tables(path: Path | None, faults: list[str]) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        faults.append(f"{path}: {error.strerror}")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        faults.append(f"{path}: {error}")
    return {}


def _apply_override(tables: dict[str, Any], text: str, faults: list[str]) -> None:
    """Set one key, given as `section.key=value`; a bare word is a string."""
    try:
        text.encode()
    except UnicodeEncodeError:
        faults.append(f"--set {_redact_credentials(text)}: must be UTF-8")
        return
    key, equals, value_text = text.partition("=")
    section, dot, name = key.strip().partition(".")
    if not (equals and dot and section and name):
        faults.append(f"--set {_redact_credentials(text)}: must be section.key=value")
        return
    table = tables.setdefault(section, {})
    if isinstance(table, dict):
        table[name] = _parse_value(value_text)


def _without_removed(
    name: str, table: object, removed_keys: Mapping[str, Mapping[str, str]], faults: list[str]
) -> object:
    removed = removed_keys.get(name, {})
    if not (removed and isinstance(table, dict)):
        return table
    faults += [f"{name}.{key}: there is no such key any more: {removed[key]}" for key in removed if key in table]
    return {key: value for key, value in table.items() if key not in removed}


def _independent(found: Iterable[str], faults: Sequence[str]) -> list[str]:
    """Return the faults between keys that would be there, too, if the keys that are wrong by themselves were right.

    A record is built without the keys that are wrong: what they mean together with others is not known yet.
    """
    wrong = {match[0] for fault in faults if (match := _KEY.match(fault))}
    return [fault for fault in found if wrong.isdisjoint(_KEY.findall(fault) + _KEY.findall(_TABLE.sub("", fault)))]


def _redact_credentials(text: str) -> str:
    """Return a text in which no URL shows a user or a password: faults are logged."""
    return re.sub(r"://.*@", "://…@", text, flags=re.DOTALL)
