"""What browsers get: headers, tags and compression, and no colour written twice."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from controller.web.serving import MIN_COMPRESSED, page_response, static_routes
from publishers.shared.http.server import HttpServer, Route

LONG = "<p>long</p>" * MIN_COMPRESSED


@asynccontextmanager
async def served() -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    async def page(request: web.Request, _client: str) -> web.Response:
        return page_response(request, LONG if "long" in request.query else "<p>short</p>")

    routes = [Route(name="page", path="/", handle=page), *static_routes()]
    server = HttpServer(routes, host="127.0.0.1", port=9323, title="pages")
    async with server.serving() as url, aiohttp.ClientSession(auto_decompress=False) as client:
        yield client, url


async def test_a_page_may_load_nothing_from_elsewhere_and_stands_in_no_frame() -> None:
    async with served() as (client, url), client.get(url) as response:
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Referrer-Policy"] == "no-referrer"
        assert response.headers["Content-Type"] == "text/html; charset=utf-8"


async def test_a_long_body_is_compressed_for_whoever_takes_it() -> None:
    async with served() as (client, url):
        for path, accepted, is_compressed in (
            ("/?long", "gzip, br", True),
            ("/?long", "identity", False),
            ("/?long", "br,GZIP;q=0.5", True),
            ("/?long", "br, gzip;q=0", False),
            ("/?long", "gzip; q=0.000, br", False),
            ("/", "gzip", False),
            ("/static/page.css", "gzip", True),
        ):
            async with client.get(url + path, headers={"Accept-Encoding": accepted}) as response:
                assert (response.headers.get("Content-Encoding") == "gzip") == is_compressed, path
                assert response.headers["Vary"] == "Accept-Encoding"
                assert len(await response.read()) == int(response.headers["Content-Length"])


async def test_a_browser_that_has_a_file_does_not_get_it_again() -> None:
    async with served() as (client, url):
        async with client.get(f"{url}/static/page.css") as response:
            assert response.headers["Cache-Control"] == "max-age=300"
            tag = response.headers["ETag"]
        async with client.get(f"{url}/static/page.css", headers={"If-None-Match": tag}) as response:
            assert (response.status, await response.read()) == (304, b"")
        async with client.get(f"{url}/static/page.css", headers={"If-None-Match": '"other"'}) as response:
            assert response.status == 200


async def test_each_colour_is_written_once() -> None:
    plain = {"Accept-Encoding": "identity"}
    async with served() as (client, url), client.get(f"{url}/static/page.css", headers=plain) as response:
        style = (await response.read()).decode()
    own = style[style.index("main{display:grid") :]
    assert re.search(r"#[0-9a-f]{3,8}\b", own) is None
    assert "data-theme=dark" in style
