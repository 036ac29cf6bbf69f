"""Asks a site's process for a report."""

import http.client
import json
from pathlib import Path
from typing import Final
from urllib.parse import urlencode, urlsplit

import msgspec

from controller.errors import ConfigError, ControllerError
from controller.history.energy_history.query import Report, ReportQuery
from publishers.shared.files.secret_file import read_secret_file
from publishers.shared.http.server import is_this_machine

TIMEOUT_S: Final = 15.0
_MAX_BYTES: Final = 128 << 20
_FORM: Final = "must be http://HOST:PORT or https://HOST:PORT, as of `gridchase web`"


def fetch_report(url: str, query: ReportQuery, *, token_file: Path | None = None) -> Report:
    """Return the answer of `gridchase web`.

    Args:
        url: where it serves.
        query: what is asked.
        token_file: a token, for a page that is shown to nobody without one.

    Raises:
        ConfigError: the URL is none, the question is wrong, or the token cannot be read or would be sent in clear text.
        ControllerError: nobody answers, the token is refused, or the history cannot be read now.
    """
    connection = _connection(url)
    headers = {} if token_file is None else _authorization(url, connection, token_file)
    try:
        connection.request("GET", f"/v1/report?{urlencode(msgspec.to_builtins(query))}", headers=headers)
        response = connection.getresponse()
        answer = response.read(_MAX_BYTES)
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ControllerError(f"{url}: no `gridchase web` answers: {why}") from error
    finally:
        connection.close()
    if response.status == http.client.OK:
        try:
            return msgspec.json.decode(answer, type=Report)
        except msgspec.MsgspecError as error:
            raise ControllerError(f"{url}: is no `gridchase web`: {error}") from error
    fault = f"{url}: {_detail(answer)} ({response.status})"
    if response.status == http.client.UNAUTHORIZED and token_file is None:
        fault += "; pass --token-file"
    raise ConfigError([fault]) if response.status == http.client.BAD_REQUEST else ControllerError(fault)


def _connection(url: str) -> http.client.HTTPConnection:
    try:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        host = parts.hostname or ""
        host.encode("idna")
        connection = kind(host, parts.port, timeout=TIMEOUT_S)
    except (ValueError, http.client.InvalidURL) as error:
        raise ConfigError([f"--url {url}: {error}; {_FORM}"]) from error
    if parts.scheme not in {"http", "https"} or not host or parts.path.strip("/") or parts.query or parts.username:
        raise ConfigError([f"--url {url}: {_FORM}"])
    return connection


def _authorization(url: str, connection: http.client.HTTPConnection, token_file: Path) -> dict[str, str]:
    """Return the header that carries a token: over the network encrypted, or not at all."""
    is_encrypted = isinstance(connection, http.client.HTTPSConnection)
    if not is_encrypted and not is_this_machine(connection.host):
        raise ConfigError([f"--token-file: {url} would carry the token in clear text; ask it over https"])
    try:
        token = read_secret_file("--token-file", str(token_file))
    except ValueError as error:
        raise ConfigError([str(error)]) from error
    if not (token.isascii() and token.isprintable()):
        raise ConfigError([f"--token-file = {str(token_file)!r}: must hold one token: one line of ASCII characters"])
    return {"Authorization": f"Bearer {token}"}


def _detail(answer: bytes) -> str:
    try:
        problem = json.loads(answer)
    except ValueError:
        return "is no `gridchase web`"
    return str(problem.get("detail") if isinstance(problem, dict) else problem)
