"""The style sheet and the script of the pages: package data, served with a tag that changes with them."""

import hashlib
from http import HTTPStatus
from importlib.resources import files
from typing import Final

from aiohttp import ETag, web

from controller.web.charts.style import CHARTS, COLOURS, FIGURES, TABLES, THEMES
from publishers.shared.http.server import Route

MAX_AGE_S: Final = 3_600
"""For so long a browser does not ask again."""
_TYPES: Final = {".css": "text/css", ".js": "text/javascript"}


def static_routes() -> list[Route]:
    """Return a route for each file."""
    folder = files("controller.web").joinpath("static")
    return [
        _route(entry.name, entry.read_text(encoding="utf-8"))
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(tuple(_TYPES))
    ]


def _route(name: str, text: str) -> Route:
    if name.endswith(".css"):
        text = f"{COLOURS}{THEMES}{CHARTS}{FIGURES}{TABLES}{text}"
    body, tag = text.encode(), ETag(hashlib.sha256(text.encode()).hexdigest()[:16])
    kind = _TYPES[f".{name.rpartition('.')[2]}"]

    async def serve(request: web.Request, _client: str) -> web.Response:
        is_known = any(known.value in {tag.value, "*"} for known in request.if_none_match or ())
        response = (
            web.Response(status=HTTPStatus.NOT_MODIFIED)
            if is_known
            else web.Response(body=body, content_type=kind, charset="utf-8")
        )
        response.etag = tag
        response.headers["Cache-Control"] = f"max-age={MAX_AGE_S}"
        return response

    return Route(name="static", path=f"/static/{name}", handle=serve)
