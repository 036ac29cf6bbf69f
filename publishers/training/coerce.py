"""Conversion of whatever training code passes (NumPy scalars, tensors of one element, text) to plain Python types.

Nothing here raises: what cannot be converted is None, or is logged once to the logger `publishers`, which shows its
warnings on stderr unless the application has configured logging.
"""

import operator
import os
from collections.abc import Mapping
from typing import Final

from publishers.shared.fork_guard import guarded_logger
from publishers.shared.stderr_handler import StderrHandler

_OFF: Final = frozenset({"", "0", "false", "no", "off"})
_ON: Final = frozenset({"1", "true", "yes", "on"})
_MAX_SHOWN: Final = 40
LOGGER: Final = guarded_logger("publishers")
LOGGER.addHandler(StderrHandler("gridchase"))
DISABLED: Final = "GRIDCHASE_DISABLED"
"""Switches off everything: nothing is published, counted or said."""
QUIET: Final = "GRIDCHASE_QUIET"
"""Switches off the lines about a run at its beginning and its end."""
_MAX_WARNED: Final = 256
"""Different warnings of a process: further ones are not logged, so that neither the log nor the memory grows."""
_warned: set[str] = set()


def warn_once(message: str) -> None:
    """Log a warning unless this process has logged it before: loaders are wrapped again in each epoch.

    Where publishing is switched off, nothing is said.
    """
    if message not in _warned and len(_warned) < _MAX_WARNED and not is_switched_on(DISABLED):
        _warned.add(message)
        LOGGER.warning("%s", message)


def is_switched_on(variable: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether a variable of the environment says yes: anything but nothing, 0, false, no and off."""
    return _word(environ, variable) not in _OFF


def is_allowed(argument: object, name: str, variable: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether an argument or, where there is none, a variable of the environment allows something.

    What others may do to a training is not guessed: a word that means neither is taken for no, and told.
    """
    given = to_bool(argument, name)
    if given is not None:
        return given
    word = _word(environ, variable)
    if word not in _ON | _OFF:
        warn_once(f"{variable} = {to_text(word, _MAX_SHOWN)} is not used: must be 1 or 0")
    return word in _ON


def _word(environ: Mapping[str, str], variable: str) -> str:
    return environ.get(variable, "").strip().lower()


def to_bool(value: object, name: str) -> bool | None:
    """Return the truth of a value, such as an array of one element; None if it is None or, which is told, ambiguous."""
    if value is None:
        return None
    try:
        return bool(value)
    except Exception as error:  # noqa: BLE001 — a tensor's own conversion may raise anything
        warn_once(f"{name} is not used: {type(value).__name__} is neither true nor false: {error}")
        return None


def to_int(value: object) -> int | None:
    """Return an integer of any kind (text, NumPy's, a tensor of one element) as a plain one; None if it is none."""
    try:
        return int(value) if isinstance(value, str) else operator.index(value)  # type: ignore[arg-type]  # TypeError
    except Exception:  # noqa: BLE001 — a tensor's own conversion may raise anything
        return None


def to_float(value: object) -> float | None:
    """Return a number of any kind as a plain one, perhaps not finite; None if it is none."""
    try:
        return float(value)  # type: ignore[arg-type]  # TypeError
    except Exception:  # noqa: BLE001 — a tensor's own conversion may raise anything
        return None


def to_text(value: object, max_length: int) -> str:
    """Return a value as text of at most `max_length` characters."""
    try:
        return str(value)[:max_length]
    except Exception:  # noqa: BLE001 — a tensor's own conversion may raise anything
        return f"a {type(value).__name__}"[:max_length]
