"""Asks a site's process for a report."""

import http.client
import json
from typing import Final
from urllib.parse import urlencode, urlsplit

import msgspec

from controller.errors import ConfigError, ControllerError
from controller.history.energy_history.query import Report, ReportQuery

TIMEOUT_S: Final = 15.0
_MAX_BYTES: Final = 128 << 20
_FORM: Final = "must be http://HOST:PORT or https://HOST:PORT, as of `gridchase web`"


def fetch_report(url: str, query: ReportQuery) -> Report:
    """Return the answer of `gridchase web`.

    Raises:
        ConfigError: the URL is none, or the question is wrong.
        ControllerError: nobody answers, or the history cannot be read now.
    """
    connection = _connection(url)
    try:
        connection.request("GET", f"/v1/report?{urlencode(msgspec.to_builtins(query))}")
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


def _detail(answer: bytes) -> str:
    try:
        problem = json.loads(answer)
    except ValueError:
        return "is no `gridchase web`"
    return str(problem.get("detail") if isinstance(problem, dict) else problem)
