"""Secrets: read from a file or the environment, never shown, never logged.

>>> secret = Secret("s3cr3t")
>>> secret, f"{secret}", secret.masked("token=s3cr3t is refused")
(Secret(…), '…', 'token=… is refused')
"""

import html
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote, quote_plus

_VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]*")


class Secret:
    """A token or a password. Only `reveal()` gives it away."""

    def __init__(self, value: str) -> None:
        self._value = value

    def __repr__(self) -> str:
        """Return nothing of it."""
        return "Secret(…)"

    def __str__(self) -> str:
        """Return nothing of it."""
        return "…"

    def reveal(self) -> str:
        """Return it, for the request alone."""
        return self._value

    def masked(self, text: str) -> str:
        """Return a text without it: sources repeat in their errors what they were sent."""
        for form in self._forms():
            text = text.replace(form, "…")
        return text

    def _forms(self) -> list[str]:
        """Return it as it stands in texts, in URLs, in JSON and in HTML; the longest form first, none that is empty."""
        plain = self._value
        in_urls = {quote(plain, safe=""), quote(plain), quote_plus(plain)}
        in_json = {json.dumps(plain)[1:-1], plain.replace("/", r"\/")}
        return sorted({plain, html.escape(plain), *in_urls, *in_json} - {""}, key=len, reverse=True)


def read_secret(*, key: str, file: str, variable: str, environment: Mapping[str, str] | None = None) -> Secret:
    """Return the secret in a file or, where none is named, in an environment variable.

    Args:
        key: how the setting is called, for messages, such as `token`.
        file: a file that holds nothing but the secret; "" means none.
        variable: the environment variable to look into; not repeated where it looks like no name, but like the secret.
        environment: the variables there are; the process's by default.

    Raises:
        ValueError: there is none; says what to do.
    """
    if file:
        try:
            value = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "is not text"
            raise ValueError(f"{key}_file = {file!r}: {why}") from error
        whence = f"{key}_file = {file!r}"
    else:
        value = (os.environ if environment is None else environment).get(variable, "").strip()
        named = f"${variable}" if _VARIABLE.fullmatch(variable) else f"the variable that {key}_env names"
        whence = f"{key}_file is not set, and {named}"
    if not value:
        raise ValueError(f"{whence}: holds no {key}")
    if not value.isprintable():
        raise ValueError(f"{whence}: holds more than a {key}: must be one line")
    return Secret(value)
