"""A real Chromium, driven by its DevTools protocol: https://chromedevtools.github.io/devtools-protocol/."""

import asyncio
import itertools
import os
import shutil
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp

CHROMIUM: Final = shutil.which("chromium")
_AXE_FILE: Final = Path(os.environ.get("NODE_PATH", "node_modules")) / "axe-core" / "axe.min.js"
AXE: Final = _AXE_FILE.read_text(encoding="utf-8") if _AXE_FILE.is_file() else None
"""axe-core (https://github.com/dequelabs/axe-core) finds what keeps people from using a page."""
_KEYS: Final = {"Tab": 9, "Enter": 13, "Escape": 27}
TIMEOUT_S: Final = 30.0
"""For whatever is waited for; a new browser on a busy machine takes its time [s]."""
_OPTIONS: Final = (
    "--headless",
    "--hide-scrollbars",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--remote-debugging-port=0",
)


_TOO_WIDE: Final = """
(() => {
  const name = (it) => `${it.tagName} ${it.className.baseVal ?? it.className}: ${it.textContent.slice(0, 60)}`;
  const root = document.documentElement;
  const found = root.scrollWidth > root.clientWidth ? ["the page"] : [];
  for (const frame of document.querySelectorAll(".scroll"))
    if (frame.scrollWidth > frame.clientWidth + 1) found.push(name(frame));
  for (const card of document.querySelectorAll(".card"))
    for (const part of card.querySelectorAll("*:not(svg, svg *, .unseen, thead, thead *, .decisions *)"))
      if (part.getBoundingClientRect().right > card.getBoundingClientRect().right + 1) found.push(name(part));
  return found;
})()
"""


class Tab:
    """A tab of the browser.

    Attributes:
        complaints: what it has written to its console: errors, and what its policy has blocked.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.complaints: list[str] = []
        self._socket = socket
        self._numbers = itertools.count(1)

    async def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Return the answer to a call."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json(timeout=TIMEOUT_S)
            if message.get("method") in {"Log.entryAdded", "Runtime.exceptionThrown"}:
                self.complaints.append(str(message["params"]))
            if message.get("id") == number:
                assert "error" not in message, message
                return dict(message["result"])

    async def open(self, url: str) -> None:
        """Go to a page, and wait until it is there."""
        await self.call("Page.navigate", url=url)
        await self.until(f"document.readyState === 'complete' && location.href === '{url}'")

    async def run(self, script: str) -> Any:  # noqa: ANN401 — whatever a script returns
        """Return the value of an expression."""
        answer = await self.call("Runtime.evaluate", expression=script, returnByValue=True)
        return answer["result"].get("value")

    async def until(self, condition: str) -> None:
        """Wait until an expression is true."""
        async with asyncio.timeout(TIMEOUT_S):
            while not await self.run(condition):  # noqa: ASYNC110 — of another process
                await asyncio.sleep(0.05)

    async def press(self, key: str) -> None:
        """Press and release a key."""
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            code = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]}
            await self.call("Input.dispatchKeyEvent", type=kind, **code, **(text if kind == "keyDown" else {}))

    async def show(
        self, *, width: int, theme: str = "light", media: str = "screen", has_own_colours: bool = False
    ) -> None:
        """Show the page.

        Args:
            width: of the screen, or of the paper between its margins [px].
            theme: light or dark.
            media: screen or print.
            has_own_colours: whether the reader has chosen all colours, as in a high contrast theme.
        """
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        features = {"prefers-color-scheme": theme, "forced-colors": "active" if has_own_colours else "none"}
        listed = [{"name": name, "value": value} for name, value in features.items()]
        await self.call("Emulation.setEmulatedMedia", media=media, features=listed)

    async def picture(self, *, is_whole: bool = False) -> bytes:
        """Return what is seen, or the whole page, PNG."""
        answer = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole)
        return b64decode(answer["data"])

    async def too_wide(self) -> list[str]:
        """Return what is wider than its card, its table's frame or the screen, by more than a pixel.

        Decisions that have no room are in a column that is not seen.
        """
        return list(await self.run(_TOO_WIDE))

    async def faults(self) -> list[str]:
        """Return what axe-core finds to be wrong."""
        script = (
            f"{AXE}; axe.run().then((found) => found.violations.flatMap("
            "(fault) => fault.nodes.map((node) => `${fault.id}: ${node.html}: ${node.failureSummary}`)))"
        )
        answer = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return list(answer["result"]["value"])


class Browser:
    """A browser that runs."""

    def __init__(self, client: aiohttp.ClientSession, address: str) -> None:
        self._client = client
        self._address = address

    async def new_tab(self) -> Tab:
        """Open a tab, which is then the one that is seen."""
        async with self._client.put(f"http://{self._address}/json/new?about:blank") as answer:
            target = await answer.json()
        tab = Tab(await self._client.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0))
        for domain in ("Page", "Runtime", "Log"):
            await tab.call(f"{domain}.enable")
        return tab


@asynccontextmanager
async def running_browser(profile: Path) -> AsyncIterator[Browser]:
    """Run a browser with a profile of its own."""
    assert CHROMIUM is not None
    process = await asyncio.create_subprocess_exec(
        CHROMIUM, *_OPTIONS, f"--user-data-dir={profile}", "about:blank", stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            line = b""
            while b"DevTools listening on ws://" not in line:
                line = await process.stderr.readline()
                assert line, "the browser has ended"
        async with aiohttp.ClientSession() as client:
            yield Browser(client, line.decode().split("/")[2])
    finally:
        process.kill()
        await process.communicate()
