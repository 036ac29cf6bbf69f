"""What browsers get: headers, tags and compression, and no colour written twice."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from controller.runtime.machine_zone import MACHINE_ZONE
from controller.web.serving import MIN_COMPRESSED, ZONE_COOKIE, page_response, static_routes, zone_of
from publishers.shared.http.server import HttpServer, Route

LONG = "<p>long</p>" * MIN_COMPRESSED


@asynccontextmanager
async def served() -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    async def page(request: web.Request, _client: str) -> web.Response:
        if "zone" in request.query:
            return page_response(request, str(zone_of(request)) if zone_of(request) is not MACHINE_ZONE else "machine")
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
        assert response.headers["Referrer-Policy"] == "same-origin"
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
                assert response.headers["Vary"].split(", ")[0] == "Accept-Encoding"
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


async def zone_by(cookie: str) -> str:
    """Return the zone of a page that is asked for with a cookie header."""
    async with served() as (client, url), client.get(f"{url}/?zone", headers={"Cookie": cookie}) as response:
        assert response.status == 200
        assert response.headers["Vary"] == "Accept-Encoding, Cookie"
        return (await response.read()).decode()


@pytest.mark.parametrize(
    "name",
    [
        "Asia/Kathmandu",
        "America/St_Johns",
        "America/Argentina/Buenos_Aires",
        "Etc/GMT+5",
        "UTC",
        "America/Port-au-Prince",
    ],
)
async def test_a_page_has_the_zone_that_the_cookie_of_a_script_names(name: str) -> None:
    assert await zone_by(f"theme=dark; {ZONE_COOKIE}={name}") == name


@pytest.mark.parametrize(
    "value",
    [
        "", "Mars/Olympus", "../../etc/passwd", "/etc/passwd", "Europe/../Europe/Berlin", "Europe", "Europe/",
        "posixrules", "right/UTC", "zone.tab", "tzdata.zi", "UTC\\0", "Europe%2FBerlin", "Europe/Berlin\u00e9",
        "<script>", "A" * 6_000, "A/" * 2_000,
    ],
)  # fmt: skip
async def test_a_cookie_that_names_no_zone_costs_nothing(value: str) -> None:
    assert await zone_by(f"{ZONE_COOKIE}={value}") == "machine"
    assert await zone_by("") == "machine"


@pytest.mark.parametrize(
    "others", ["a/b@(=1; ", "=; ; x; ", "expires=1; path=/; ", f"x{ZONE_COOKIE}=Asia/Tokyo; ", '"; ']
)
async def test_other_cookies_however_they_are_written_are_no_zone(others: str) -> None:
    assert await zone_by(f"{others}{ZONE_COOKIE}=Asia/Kathmandu; b=1") == "Asia/Kathmandu"
    assert await zone_by(others) == "machine"
