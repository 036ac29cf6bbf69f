"""A request over HTTP taken apart: names in its path, its query, its body, each checked against its type."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from policies.service.http.problems import ProblemError
from policies.service.records import Candidates, Record
from publishers.messages.codec import BatchSize, Count

PathName = Annotated[str, Meta(pattern=r"\A(?!\.+\Z)[A-Za-z0-9._-]{1,64}\Z")]
"""A `Name` that survives in a path: clients take `.` and `..` for directories."""
JSON: Final = "application/json"
_IN_THREAD_BYTES: Final = 64 << 10
"""A longer body is decoded in a thread, so that others are answered meanwhile."""
_MAX_EXACT: Final = 1 << 53
"""The largest of the integers that a float tells apart."""
_NAME: Final = re.compile(r"(?!\.+\Z)[A-Za-z0-9._-]{1,64}\Z")


class RunRegistration(Record, frozen=True, kw_only=True):
    """A run that wants a batch size; its job is registered where it is new. The default must be a candidate."""

    run: PathName
    batch_sizes: Candidates
    default_batch_size: BatchSize


class NoQuery(Record, frozen=True, kw_only=True):
    """No parameters."""


class TrialsQuery(Record, frozen=True, kw_only=True):
    """Which trials: the newest `limit` of those with a smaller number than `before`."""

    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    before: Count | UnsetType = UNSET


class ExportQuery(Record, frozen=True, kw_only=True):
    """Of which job; without: of all."""

    job: PathName | UnsetType = UNSET


Query = TypeVar("Query", bound=Record)
Body = TypeVar("Body")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest(Generic[Query, Body]):
    """A request, checked.

    Attributes:
        job, run: of its path; "" where it has none.
        query, body: as their types say.
        now_s: when it was read [s].
        writer: who sent it; "" where nothing is written.
    """

    job: str
    run: str
    query: Query
    body: Body
    now_s: float
    writer: str


def invalid(detail: str) -> ProblemError:
    """Return the answer to a request that cannot be read."""
    return ProblemError(HTTPStatus.BAD_REQUEST, "invalid_request", detail)


def name_in(path: Mapping[str, str], key: str) -> str:
    """Return a name of the path; "" where the path has none.

    Raises:
        Refusal: it is none.
    """
    name = path.get(key, "")
    if key in path and _NAME.match(name) is None:
        raise invalid(f"{key} = {name[:80]!r}: must be 1 to 64 of A-Z a-z 0-9 . _ -, and not dots alone")
    return name


def query_in(request: web.Request, kind: type[Query]) -> Query:
    """Return the query of a request.

    Raises:
        Refusal: a parameter is unknown, stands there twice, or is out of its bounds.
    """
    found = request.query
    twice = sorted({key for key in found if len(found.getall(key)) > 1})
    if twice:
        raise invalid(f"{twice[0][:80]!r} stands twice in the query")
    try:
        return msgspec.convert(dict(found), kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid(f"query: {error}") from error


async def body_in(request: web.Request, kind: type[Body], *, max_bytes: int) -> Body:
    """Return the body of a request.

    Raises:
        Refusal: it is no JSON, says it is none, is too long, or is not what its type says.
    """
    _check_content_type(request)
    raw = await _read(request, max_bytes=max_bytes)
    try:
        if len(raw) > _IN_THREAD_BYTES:
            return await asyncio.to_thread(_decoded, raw, kind)
        return _decoded(raw, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(f"body: {error}") from error
    except RecursionError as error:
        raise invalid("body: is nested too deeply") from error


def _decoded(raw: bytes, kind: type[Body]) -> Body:
    """Return a body as its type; what fails is tried again with integers wherever there are whole numbers.

    To JSON Schema 32.0 is an integer, and there are clients that write one so; to msgspec it is not.
    """
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError:
        return msgspec.convert(_with_integers(msgspec.json.decode(raw)), kind)


def _with_integers(found: Any) -> Any:  # noqa: ANN401 — a JSON value
    match found:
        case dict():
            return {key: _with_integers(value) for key, value in found.items()}
        case list():
            return [_with_integers(item) for item in found]
        case float() if found.is_integer() and abs(found) <= _MAX_EXACT:
            return int(found)
        case _:
            return found


def _check_content_type(request: web.Request) -> None:
    charset, encoding = request.charset or "utf-8", request.headers.get("Content-Encoding", "identity")
    if request.content_type == JSON and charset.lower() in {"utf-8", "utf8"} and encoding.lower() == "identity":
        return
    sent = f"{request.headers.get('Content-Type', 'nothing')[:80]!r}, {encoding[:80]!r}"
    detail = f"sent is {sent}: must be Content-Type: {JSON}, in UTF-8, not compressed"
    raise ProblemError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail, headers={"Accept": JSON})


async def _read(request: web.Request, *, max_bytes: int) -> bytes:
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
            raise invalid("the body did not arrive whole") from error
    detail = f"the body is longer than {max_bytes:,} bytes: send it in parts"
    raise ProblemError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", detail)


AnyRequest = ApiRequest[Any, Any]
