"""What a request says: names in its path, its query, its body in JSON or of a form."""

import asyncio
import re
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import parse_qsl

import msgspec
from aiohttp import web
from msgspec import Meta

from publishers.shared.http.problems import ProblemError, invalid_request

JSON: Final = "application/json"
FORM: Final = "application/x-www-form-urlencoded"
MAX_FIELDS: Final = 16
"""Of a form."""
BODY_TIMEOUT_S: Final = 10.0
"""For the body of a request, once its header is there [s]."""
_IN_THREAD_BYTES: Final = 64 << 10
"""A longer body is decoded in a thread, so that the event loop stays responsive."""
_MAX_EXACT: Final = 1 << 53
"""The largest integer below which floats tell all integers apart."""
_NAME: Final = re.compile(r"\A(?!\.+\Z)[A-Za-z0-9._-]{1,64}\Z")
_USER: Final = re.compile(r"\A(?!\.+\Z)[^\x00-\x1f\x7f]{1,128}\Z")
PathName = Annotated[str, Meta(pattern=_NAME.pattern)]
"""A `Name` that survives in a path: clients take `.` and `..` for directories."""
UserName = Annotated[str, Meta(pattern=_USER.pattern)]
"""Of a user on the bus; in a path every character outside `A-Z a-z 0-9 . _ ~ -` is percent-encoded."""
Value = TypeVar("Value")


def path_name(request: web.Request, key: str) -> str:
    """Return a name in the path of a request; "" where the path has none.

    Raises:
        ProblemError: it is not a valid name.
    """
    name = request.match_info.get(key, "")
    if key in request.match_info and _NAME.match(name) is None:
        raise invalid_request(f"{key} = {name[:80]!r}: must be 1 to 64 of A-Z a-z 0-9 . _ -, and not dots alone")
    return name


def path_user(request: web.Request, key: str = "user") -> str:
    """Return the name of a user in the path of a request; "" where the path has none.

    Raises:
        ProblemError: no user can have this name.
    """
    user = request.match_info.get(key, "")
    if key in request.match_info and _USER.match(user) is None:
        raise invalid_request(f"{key} = {user[:80]!r}: must be 1 to 128 characters, not dots or control characters")
    return user


def read_query(request: web.Request, kind: type[Value]) -> Value:
    """Return the query of a request as a record.

    Raises:
        ProblemError: a parameter is unknown, repeated, or out of its bounds.
    """
    repeated = sorted({key for key in request.query if len(request.query.getall(key)) > 1})
    if repeated:
        raise invalid_request(f"{repeated[0][:80]!r} stands twice in the query")
    try:
        return msgspec.convert(dict(request.query), kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_request(f"query: {error}") from error


async def read_json(request: web.Request, kind: type[Value], *, max_bytes: int, timeout_s: float) -> Value:
    """Return the body of a request as a record.

    Raises:
        ProblemError: it is not JSON, says so itself, is too long, comes too slowly, or does not match the type.
    """
    raw = await _read_raw(request, JSON, max_bytes=max_bytes, timeout_s=timeout_s)
    try:
        if len(raw) > _IN_THREAD_BYTES:
            return await asyncio.to_thread(_decode, raw, kind)
        return _decode(raw, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid_request(f"body: {error}") from error
    except RecursionError as error:
        raise invalid_request("body: is nested too deeply") from error


async def read_form(request: web.Request, *, max_bytes: int, timeout_s: float) -> dict[str, str]:
    """Return the fields of a form that a browser has sent.

    Raises:
        ProblemError: it is no form, says so itself, is too long, comes too slowly, or has a field twice.
    """
    raw = await _read_raw(request, FORM, max_bytes=max_bytes, timeout_s=timeout_s)
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise invalid_request("body: is no form in UTF-8, or has too many fields") from error
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise invalid_request("body: a field stands twice in the form")
    return fields


async def _read_raw(request: web.Request, content_type: str, *, max_bytes: int, timeout_s: float) -> bytes:
    _check_content_type(request, content_type)
    try:
        async with asyncio.timeout(timeout_s):
            return await _read_body(request, max_bytes=max_bytes)
    except TimeoutError as error:
        detail = f"the body has not arrived within {timeout_s:g} s"
        raise ProblemError(HTTPStatus.REQUEST_TIMEOUT, "slow_body", detail) from error


def _decode(raw: bytes, kind: type[Value]) -> Value:
    """Return a body as its type, with whole floats as integers where that helps.

    To JSON Schema 32.0 is an integer, and some clients write it so; msgspec refuses it.
    """
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError:
        return msgspec.convert(_with_integers(msgspec.json.decode(raw)), kind)


def _with_integers(value: Any) -> Any:  # noqa: ANN401 — a JSON value
    match value:
        case dict():
            return {key: _with_integers(item) for key, item in value.items()}
        case list():
            return [_with_integers(item) for item in value]
        case float() if value.is_integer() and abs(value) <= _MAX_EXACT:
            return int(value)
        case _:
            return value


def _check_content_type(request: web.Request, expected: str) -> None:
    charset, encoding = request.charset or "utf-8", request.headers.get("Content-Encoding", "identity")
    if request.content_type == expected and charset.lower() in {"utf-8", "utf8"} and encoding.lower() == "identity":
        return
    sent = f"{request.headers.get('Content-Type', 'nothing')[:80]!r}, {encoding[:80]!r}"
    detail = f"sent is {sent}: must be Content-Type: {expected}, in UTF-8, not compressed"
    headers = {"Accept": expected}
    raise ProblemError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail, headers=headers)


async def _read_body(request: web.Request, *, max_bytes: int) -> bytes:
    raw = bytearray()
    if (request.content_length or 0) <= max_bytes:
        try:
            async for chunk in request.content.iter_any():
                raw += chunk
                if len(raw) > max_bytes:
                    break
            else:
                return bytes(raw)
        except (web.RequestPayloadError, ConnectionError) as error:
            raise invalid_request("the body did not arrive whole") from error
    detail = f"the body is longer than {max_bytes:,} bytes: send it in parts"
    raise ProblemError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", detail)
