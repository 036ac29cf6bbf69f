"""The controller's own `/`: a small page of this node's GPUs, from memory; no script, and nothing to load."""

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Final

from aiohttp import web

from controller.http.health import GpuSnapshot, Snapshot
from controller.ports import Hold
from controller.runtime.markup import Markup, element, escaped, joined
from publishers.messages.reasons import short_reason
from publishers.shared.http.server import Route

MAX_GPUS: Final = 16
"""More are counted: the page stays below 5 kB."""
MAX_NAME: Final = 64
"""Characters of a name that are shown."""
UNKNOWN: Final = "—"
_HOLDS: Final = {
    Hold.FREE: "no run; prior limit",
    Hold.HELD: "held by a run",
    Hold.YIELDED: "another program has set the limit",
    Hold.OBSERVING: "only measured",
    Hold.SUSPECT: "the GPU does not answer",
}
"""Where no reason is known."""
PAGE_HINT: Final = "All nodes, what was saved, and why: run gridchase web, and open port 9323 of that machine."
_STYLE: Final = (
    ":root{color-scheme:light dark;font:1rem/1.5 system-ui,sans-serif}body{margin:1rem}"
    "h1{font-size:1.2rem}td,th{padding:0 1rem 0 0;text-align:left;overflow-wrap:anywhere}"
)
POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'; "
    "form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
)
"""No script, no style but this one."""


def index_route(node: str, snapshot: Callable[[], Snapshot]) -> Route:
    """Return the route of the page; each request takes a snapshot."""

    async def index(_request: web.Request, _client: str) -> web.Response:
        headers = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}
        return web.Response(text=index_page(node, snapshot().gpus), content_type="text/html", headers=headers)

    return Route(name="index", path="/", handle=index)


def index_page(node: str, gpus: Mapping[str, GpuSnapshot]) -> str:
    """Return the page of a node, of at most 5 kB; `gpus` by UUID."""
    shown = list(gpus.items())[:MAX_GPUS]
    head = element("tr", *(element("th", escaped(name), scope="col") for name in ("GPU", "power", "limit", "why")))
    rows = [_row(uuid[:MAX_NAME], gpu) for uuid, gpu in shown]
    n_more = len(gpus) - len(shown)
    more = element("p", escaped(f"{n_more} more GPUs: /metrics has them all.")) if n_more else Markup("")
    title = f"gridchase on {node[:MAX_NAME]}"
    page = element(
        "html",
        element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", name="viewport", content="width=device-width"),
            element("title", escaped(title)),
            element("style", Markup(_STYLE)),
        ),
        element(
            "body",
            element("main", element("h1", escaped(title)), element("table", head, *rows), more, *_hints(shown)),
        ),
        lang="en",
    )
    return f"<!doctype html>{page}"


def _hints(shown: Sequence[object]) -> Iterator[Markup]:
    if not shown:
        yield element("p", escaped("No GPU is known yet."))
    yield element("p", escaped(PAGE_HINT))


def _row(uuid: str, gpu: GpuSnapshot) -> Markup:
    limit = None if gpu.limit is None or gpu.limit.hold is Hold.SUSPECT else gpu.limit
    power_w = gpu.sample.power_w if gpu.sample else None
    cells = (uuid, _watts(power_w), _watts(limit.enforced_power_limit_w if limit else None), _why(gpu))
    return element("tr", joined(element("td", escaped(cell)) for cell in cells))


def _why(gpu: GpuSnapshot) -> str:
    if gpu.limit is None:
        return UNKNOWN
    is_told = gpu.limit.reason and gpu.limit.hold is not Hold.SUSPECT
    return short_reason(gpu.limit.reason) if is_told else _HOLDS[gpu.limit.hold]


def _watts(power_w: float | None) -> str:
    return UNKNOWN if power_w is None else f"{power_w:.0f} W"
