"""Whatever training code passes is taken as it is meant, or one warning says why not; nothing raises or prints."""

import logging
from typing import Final

LOGGER: Final = logging.getLogger("publishers")
LOGGER.addHandler(logging.NullHandler())
_warned: set[str] = set()


def warn_once(to_text: str) -> None:
    """Log a warning unless this process has logged it already: loaders are wrapped anew in each epoch."""
    if to_text not in _warned:
        _warned.add(to_text)
        LOGGER.warning("%s", to_text)


def to_bool(value: object) -> bool | None:
    """Return whether a value is true, such as an array of one element; None where it is None or cannot tell."""
    if value is None:
        return None
    try:
        return bool(value)
    except Exception as error:  # noqa: BLE001 — a tensor's own conversion may raise anything
        warn_once(f"reached is not published: {type(value).__name__} is neither true nor false: {error}")
        return None


def to_float(value: object) -> float | None:
    """Return a number of any kind as a plain one, perhaps not finite; None for whatever is none."""
    try:
        return float(value)  # type: ignore[arg-type]  # TypeError
    except Exception:  # noqa: BLE001 — a tensor's own conversion may raise anything
        return None


def to_text(value: object, longest: int) -> str:
    """Return a value as text of at most `longest` characters; that of an exception may raise one."""
    try:
        return str(value)[:longest]
    except Exception:  # noqa: BLE001 — a tensor's own conversion may raise anything
        return f"a {type(value).__name__}"[:longest]
