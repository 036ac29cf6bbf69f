"""Connections to an HTTP server with TLS: they count from their beginning, not only once hands were shaken."""

import asyncio
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from publishers.shared.http.server import HttpServer, Route, json_response

pytestmark = pytest.mark.live
MAX_CONNECTIONS = 64
PER_ADDRESS = MAX_CONNECTIONS // 2


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Make a certificate for 127.0.0.1; return its file, and that of its key."""
    folder = tmp_path_factory.mktemp("tls")
    name = ["-subj", "/CN=server", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "key.pem"]
    command = ["openssl", "req", "-x509", *key, "-out", "cert.pem", *name]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return str(folder / "cert.pem"), str(folder / "key.pem")


@asynccontextmanager
async def serving(certificate: tuple[str, str]) -> AsyncIterator[tuple[HttpServer, str, aiohttp.ClientSession]]:
    """Serve over TLS; yield the server, its URL, and a client that trusts it."""

    async def answer(request: web.Request, _client: str) -> web.Response:
        return json_response({"secure": request.secure, "body": len(await request.read())})

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    routes = [Route(name="any", method=method, path="/", handle=answer) for method in ("GET", "POST")]
    server = HttpServer(routes, host="127.0.0.1", port=0, title="test", max_connections=MAX_CONNECTIONS, tls=context)
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=certificate[0]), force_close=True)
    async with server.serving() as url, aiohttp.ClientSession(connector=connector) as client:
        yield server, url, client


def n_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_clients_that_never_shake_hands_are_bounded_and_others_are_answered(
    certificate: tuple[str, str],
) -> None:
    async with serving(certificate) as (_, url, client):
        async with client.get(url) as response:
            assert await response.json() == {"secure": True, "body": 0}
        before, silent = n_files(), list[socket.socket]()
        for _ in range(4 * MAX_CONNECTIONS):
            silent.append(socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))))
            await asyncio.sleep(0)
        async with client.get(url) as response:
            assert response.status == HTTPStatus.OK
        assert n_files() - before - len(silent) <= PER_ADDRESS + 2
        for each in silent:
            each.close()


async def test_requests_at_once_and_long_bodies_are_answered_over_tls(certificate: tuple[str, str]) -> None:
    async with serving(certificate) as (_, url, client):

        async def ask(n_bytes: int) -> None:
            async with client.post(url, data=b"x" * n_bytes) as response:
                assert await response.json() == {"secure": True, "body": n_bytes}

        for _ in range(4):
            async with asyncio.TaskGroup() as tasks:
                for number in range(16):
                    tasks.create_task(ask(number * 10_000))


async def test_what_is_no_handshake_is_cut_and_leaves_nothing_behind(certificate: tuple[str, str]) -> None:
    async with serving(certificate) as (server, url, client):
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(600), b""):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            writer.write(garbage)
            writer.write_eof()
            async with asyncio.timeout(10):
                with suppress(ConnectionError):
                    await reader.read()
            assert len(server._connections) == 0
            writer.close()
        async with client.get(url) as response:
            assert response.status == HTTPStatus.OK
