"""What browsers get: pages that load nothing from elsewhere, and the files of theirs that are package data."""

import hashlib
import re
from collections.abc import Iterator
from datetime import tzinfo
from http import HTTPStatus
from importlib.resources import files
from typing import Final
from zoneinfo import ZoneInfo

from aiohttp import ETag, web
from aiohttp.web_response import ContentCoding

from controller.runtime.machine_zone import MACHINE_ZONE
from controller.web.charts.style import CHARTS, COLOURS, FIGURES, TABLES, THEMES
from publishers.shared.http.server import Route

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self';"
    " frame-ancestors 'none'; base-uri 'none'"
)
"""No script or style but our own files, neither in elements nor in attributes."""
MAX_AGE_S: Final = 300
"""For so long a browser does not ask for a file again, also after an update [s]."""
MIN_COMPRESSED: Final = 1_024
"""What has fewer bytes is sent as it is."""
ZONE_COOKIE: Final = "gridchase-zone"
"""Where a script leaves the time zone of its browser."""
_PART: Final = r"[A-Z][A-Za-z0-9_+-]{0,31}"
_ZONE: Final = re.compile(rf"(?:^|;) *{ZONE_COOKIE}=({_PART}(?:/{_PART}){{0,2}}) *(?:;|$)")
"""A name in the database of time zones; its other files, and zones with leap seconds, are lower case. Other cookies of
this host may be written in ways that parsers refuse."""
_GZIP: Final = re.compile(r"(?:^|[\s,])gzip(?!\s*;\s*q\s*=\s*0(?:\.0*)?\s*(?:,|$))")
"""In a list of what a client takes; with a weight of 0 it is refused."""
_TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def zone_of(request: web.Request) -> tzinfo:
    """Return the time zone of the browser, where a script has said one that is known here; else this machine's."""
    said = _ZONE.search(request.headers.get("Cookie", ""))
    if said is None:
        return MACHINE_ZONE
    try:
        return ZoneInfo(said[1])
    except (LookupError, ValueError, OSError):
        return MACHINE_ZONE


def page_response(request: web.Request, page: str, *, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    """Return a page as the answer to a request; its times are those of a zone that a cookie names."""
    response = _compressed(request, page.encode(), "text/html")
    response.set_status(status.value)
    response.headers["Vary"] += ", Cookie"
    response.headers.update({"Content-Security-Policy": POLICY, "Referrer-Policy": "same-origin"})
    return response


def static_routes() -> Iterator[Route]:
    """Yield a route for each file."""
    for entry in sorted(files("controller.web").joinpath("static").iterdir(), key=lambda entry: entry.name):
        kind = _TYPES.get(entry.name.rpartition(".")[2])
        if kind is not None:
            text = entry.read_text(encoding="utf-8")
            yield _static_route(entry.name, f"{_STYLE}{text}" if kind == "text/css" else text, kind)


_STYLE: Final = f"{COLOURS}{THEMES}{CHARTS}{FIGURES}{TABLES}"
"""Comes before what is in a style sheet, which so may differ from the report's."""


def _static_route(name: str, text: str, kind: str) -> Route:
    body = text.encode()
    tag = ETag(hashlib.sha256(body).hexdigest()[:16], is_weak=True)  # the same for what is compressed

    async def serve(request: web.Request, _client: str) -> web.Response:
        if any(known.value in {tag.value, "*"} for known in request.if_none_match or ()):
            response = web.Response(status=HTTPStatus.NOT_MODIFIED)
        else:
            response = _compressed(request, body, kind)
        response.etag = tag
        response.headers["Cache-Control"] = f"max-age={MAX_AGE_S}"
        return response

    return Route(name="static", path=f"/static/{name}", handle=serve)


def _compressed(request: web.Request, body: bytes, kind: str) -> web.Response:
    """Return an answer that is compressed where it is long and the client takes that; above 1 KiB on a thread."""
    response = web.Response(body=body, content_type=kind, charset="utf-8", zlib_executor_size=MIN_COMPRESSED)
    response.headers["Vary"] = "Accept-Encoding"
    if len(body) >= MIN_COMPRESSED and _GZIP.search(request.headers.get("Accept-Encoding", "").lower()):
        response.enable_compression(ContentCoding.gzip)
    return response
