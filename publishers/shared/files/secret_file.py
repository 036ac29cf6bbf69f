"""Secrets: read from a file or the environment, never shown, never logged.

>>> secret = Secret("s3cr3t")
>>> secret, f"{secret}", secret.masked("token=s3cr3t is refused")
(Secret(…), '…', 'token=… is refused')
"""

import html
import json
import os
import re
import shlex
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote, quote_plus

from publishers.shared.fork_guard import guarded_logger

MAX_CHARACTERS: Final = 1 << 20
"""A longer file is a mistake, or a device that never ends."""
MAX_TOLD: Final = 256
_TOLD: Final[set[str]] = set()
_LOGGER = guarded_logger(__name__)
_VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]*")


class Secret:
    """A token or a password. Only `reveal()` returns it."""

    def __init__(self, value: str) -> None:
        self._value = value

    def __repr__(self) -> str:
        """Return a placeholder."""
        return "Secret(…)"

    def __str__(self) -> str:
        """Return a placeholder."""
        return "…"

    def reveal(self) -> str:
        """Return the value, for the request alone."""
        return self._value

    def masked(self, text: str) -> str:
        """Return `text` without the secret: servers repeat in their errors what they were sent."""
        for form in self._forms():
            text = text.replace(form, "…")
        return text

    def _forms(self) -> list[str]:
        """Return the secret as it appears in text, URLs, JSON and HTML: the longest form first, no empty one."""
        plain = self._value
        in_urls = {quote(plain, safe=""), quote(plain), quote_plus(plain)}
        in_json = {json.dumps(plain)[1:-1], plain.replace("/", r"\/")}
        return sorted({plain, html.escape(plain), *in_urls, *in_json} - {""}, key=len, reverse=True)


def read_secret_file(key: str, file: str) -> str:
    """Return what a file of one secret holds, without white space around it; one that others can read is told once.

    Args:
        key: the setting that names the file, for the message, such as `bus.password_file`.
        file: the path.

    Raises:
        ValueError: the file cannot be read, is too long, or is not text; the message never shows what it holds.
    """
    try:
        with Path(file).open(encoding="utf-8") as text:
            _tell_readers(key, file, os.fstat(text.fileno()))
            content = text.read(MAX_CHARACTERS + 1)
    except OSError as error:
        raise ValueError(f"{key} = {file!r}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ValueError(f"{key} = {file!r}: is not UTF-8 text") from None  # its message shows bytes of the secret
    if len(content) > MAX_CHARACTERS:
        raise ValueError(f"{key} = {file!r}: is longer than {MAX_CHARACTERS:,} characters")
    return content.strip()


def _tell_readers(key: str, file: str, status: os.stat_result) -> None:
    """Warn, once for each file, that users who should not can read it."""
    is_for_group = status.st_mode & stat.S_IRGRP and status.st_gid not in {0, os.getegid()}
    if not stat.S_ISREG(status.st_mode) or not (status.st_mode & stat.S_IROTH or is_for_group) or file in _TOLD:
        return
    if len(_TOLD) < MAX_TOLD:
        _TOLD.add(file)
    _LOGGER.warning("%s = %r: other users of this machine can read it: chmod 600 %s", key, file, shlex.quote(file))


def read_secret(*, key: str, file: str, variable: str, environment: Mapping[str, str] | None = None) -> Secret:
    """Return the secret in a file or, where none is named, in an environment variable.

    Args:
        key: what the secret is called, such as `token`: the settings `token_file` and `token_env` name its place.
        file: a file that holds nothing but the secret; "" means none.
        variable: the environment variable; repeated in messages only where it looks like a name, not like the secret.
        environment: the process's own by default.

    Raises:
        ValueError: there is none, or it is more than one line; says what to do.
    """
    if file:
        value = read_secret_file(f"{key}_file", file)
        source = f"{key}_file = {file!r}"
    else:
        value = (os.environ if environment is None else environment).get(variable, "").strip()
        named = f"${variable}" if _VARIABLE.fullmatch(variable) else f"the variable that {key}_env names"
        source = f"{key}_file is not set, and {named}"
    if not value:
        raise ValueError(f"{source}: holds no {key}")
    if not value.isprintable():
        raise ValueError(f"{source}: holds more than a {key}: must be one line")
    return Secret(value)
