"""People sign in, and pin and release limits on the pages without a script; every refusal is a page that says why."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import pytest
from yarl import URL

from controller.errors import ConfigError
from controller.ports.orders import ORDERS_PER_MIN
from controller.web.app import Site as WebSite
from controller.web.config import WebConfig, WebSettings, load_web_config
from controller.web.hands.exposure import NOT_SAID, UNKNOWN_PROXY
from controller.web.hands.order_form import GPU_ACTIONS
from controller.web.hands.routes import ANSWER_WAIT_S, LOOK_S, WRONG_TOKENS_PER_MIN
from controller.web.hands.sent_orders import ANSWER_S, PAUSE_ANSWER_S
from controller.web.hands.sessions import IDLE_S, SESSION_S
from controller.web.live.event_stream import HEARTBEAT_S
from controller.web.live.site_state import GpuKey
from controller.web.pages.layout import PAGES
from controller.web.routes import RENDERED_S
from controller.web.store import SqliteStore
from publishers.messages.codec import decode, encode
from publishers.messages.reports import GpuDescription, GpuEnergy, NodeStatus, Order, OrderResult
from publishers.messages.topics import RunKey
from publishers.shared.http.requests import BODY_TIMEOUT_S
from tests.controller.history.energy_history.records import TOPICS, measured, run_message, run_record
from tests.controller.runtime.test_markup import HOSTILE
from tests.controller.web.pages.site import Found
from tests.fakes import MIDNIGHT_S, FakeBus, LoopClock

KEY: Final = RunKey("alice", "resnet50", "r1")
ORDER: Final = "/run/alice/resnet50/r1/order"
SET: Final = TOPICS.run(KEY, "set")
RESULT: Final = TOPICS.run(KEY, "set/result")
GPU: Final = GpuKey("atlas", "GPU-0")
GPU_ORDER: Final = "/gpu/atlas/GPU-0/order"
GPU_SET: Final = TOPICS.gpu(*GPU, "set")
OPERATOR, ALICE, BOB = "operator-token", "alice-token", "bob-token"
PIN: Final = {"action": "pin", "limit": "205", "until": "+2h", "why": "the room is hot"}
HTTPS: Final = {"X-Forwarded-Proto": "https", "Origin": "https://power.example", "Host": "power.example"}


class Browser:
    """A browser without a script, and the site that it looks at."""

    def __init__(self, bus: FakeBus, url: str, client: aiohttp.ClientSession, tokens: Path) -> None:
        self.bus = bus
        self.url = url
        self.tokens = tokens
        self.headers: dict[str, str] = {}
        self.status = 0
        self.answer: dict[str, str] = {}
        self.path = ""
        self.found = Found("")
        self._client = client

    async def get(self, path: str) -> Found:
        """Open a page, and those that it leads to."""
        return await self._ask("GET", path)

    async def post(self, path: str, fields: dict[str, str] | bytes, **headers: str) -> Found:
        """Send a form, and open the page that it leads to."""
        return await self._ask("POST", path, data=fields, headers=headers)

    async def send(self, path: str | None = None, **changes: str) -> Found:
        """Send the form of the present page whose method is POST, with some fields filled in."""
        return await self.post(path or self.action, self.hidden | changes)

    @property
    def action(self) -> str:
        """Return where the form that is sent goes to."""
        return next(str(form["action"]) for form in self.found.all("form") if form.get("method") == "post")

    @property
    def hidden(self) -> dict[str, str]:
        """Return what the forms of the page carry."""
        inputs = [it for it in self.found.all("input") if it.get("type") == "hidden"]
        return {str(it["name"]): str(it.get("value", "")) for it in inputs}

    async def sign_in(self, token: str = OPERATOR, name: str = "", then: str = "/") -> Found:
        """Sign in by the form."""
        await self.get(f"/sign-in?then={then}")
        return await self.send(token=token, name=name)

    async def preview(self, **changes: str) -> Found:
        """Ask what an order would do."""
        return await self.get(str(URL(ORDER).with_query(PIN | changes)))

    def orders(self, topic: str = SET) -> list[Order]:
        """Return what was sent to the node of the run."""
        return [decode(payload, Order) for payload in self.bus.payloads(topic)]

    def say(self, state: str, detail: str = "205 W read back from 1 GPU", **changes: Any) -> None:  # noqa: ANN401
        """Let the node answer the last order."""
        order = self.orders()[-1]
        result = OrderResult(
            time_s=order.time_s,
            **KEY._asdict(),
            node="atlas",
            action=order.action,
            correlation=order.correlation,
            state=state,  # type: ignore[arg-type]
            reason="pinned",
            detail=detail,
        )
        self.bus.publish(RESULT, encode(msgspec.structs.replace(result, **changes)), qos=1)

    async def _ask(self, method: str, path: str, **given: Any) -> Found:  # noqa: ANN401
        headers = {**self.headers, **given.pop("headers", {})}
        url = URL(self.url + path, encoded=True)
        async with self._client.request(method, url, headers=headers, **given) as response:
            self.status, self.answer = response.status, dict(response.headers)
            self.path = response.url.raw_path_qs
            text = await response.text()
        self.found = Found(text)
        return self.found

    async def go(self, method: str, path: str, data: dict[str, str] | None = None) -> tuple[int, str, list[str]]:
        """Return status, target and cookies of one answer."""
        async with self._client.request(
            method, self.url + path, data=data, headers=self.headers, allow_redirects=False
        ) as response:
            return response.status, response.headers.get("Location", ""), response.headers.getall("Set-Cookie", [])


@asynccontextmanager
async def browsing(tmp_path: Path, **settings: Any) -> AsyncIterator[Browser]:  # noqa: ANN401 — the record checks them
    """Serve a site with a run that goes on, and open a browser."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{OPERATOR}\nalice:{ALICE}\nbob:{BOB}\n")
    tokens.chmod(0o600)
    given: dict[str, Any] = {
        "orders": True,
        "token_file": str(tokens),
        "port": 9323,
        "state_dir": str(tmp_path / "state"),
    } | settings
    config, bus, stop, urls = WebConfig(web=WebSettings(**given)), FakeBus(), asyncio.Event(), asyncio.Queue[str]()
    store = SqliteStore(tmp_path / "state", topics=TOPICS, config=config.retention)
    site = WebSite(config, bus=bus, store=store, topics=TOPICS, clock=LoopClock())
    record = measured(run_record(duration_s=3_600.0, n_gpus=1, max_power_w=300.0), saved_ratio=0.1)
    async with asyncio.TaskGroup() as tasks, aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:
        tasks.create_task(site.run(stop, urls.put_nowait))
        url = await urls.get()
        bus.publish(*run_message(msgspec.structs.replace(record, time_s=MIDNIGHT_S + 1)))
        yield Browser(bus, url, client, tokens)
        stop.set()


def is_sign_in(browser: Browser) -> bool:
    return any(it.get("name") == "token" for it in browser.found.all("input"))


async def test_a_pin_is_previewed_sent_and_done_when_the_node_has_read_back(tmp_path: Path) -> None:
    async with browsing(tmp_path) as browser:
        await browser.get("/run/alice/resnet50/r1")
        links = [it["href"] for it in browser.found.all("a") if "data-order" in it]
        actions = ("pin", "exempt", "pause", "resume", "budget", "deadline")
        assert links == [f"{ORDER}?action={action}" for action in actions]
        await browser.get(f"{ORDER}?action=pin")
        assert is_sign_in(browser)
        await browser.send(token=OPERATOR, name="Ada")
        assert (browser.status, browser.path) == (200, f"{ORDER}?action=pin")
        assert "What will happen" not in browser.found.text, "nothing is filled in yet"
        page = await browser.preview()
        assert "What will happen At 205 W" in page.text
        assert browser.orders() == [], "a page that is looked at orders nothing"
        page = await browser.send()
        assert browser.path.startswith("/order/page-")
        assert "asked for; the node has not read it back yet" in page.text
        assert "pin at 205 W until" in page.text
        (order,) = browser.orders()
        assert (order.action, order.power_limit_w, order.by, order.why) == (
            "pin",
            205.0,
            "Ada, an operator",
            "the room is hot",
        )
        assert order.until_s == pytest.approx(order.time_s + 7_200, abs=30)
        browser.say("done")
        page = await browser.get(browser.path)
        assert "done: 205 W read back from 1 GPU" in page.text
        assert "Look again" not in page.text


async def test_a_pin_that_is_on_the_bus_is_released_by_a_link(tmp_path: Path) -> None:
    async with browsing(tmp_path) as browser:
        await browser.sign_in(ALICE)
        pinned = run_record(
            duration_s=3_600.0,
            n_gpus=1,
            time_s=MIDNIGHT_S + 2,
            reason="pinned",
            pinned_until_s=MIDNIGHT_S + 7_200,
            pinned_by="bob",
            pinned_why="hot",
            power_limit_w=205.0,
        )
        browser.bus.publish(*run_message(pinned))
        await asyncio.sleep(2 * RENDERED_S)
        page = await browser.get("/")
        assert "To end it: release it" in page.text
        await browser.get(f"{ORDER}?action=release&why=cold")
        assert "The pin until" in browser.found.text
        assert "by bob : hot ends. Its plan decides again." in browser.found.text
        await browser.send()
        assert [(order.action, order.by) for order in browser.orders()] == [("release", "alice")]
        of_gpu = msgspec.structs.replace(pinned, time_s=MIDNIGHT_S + 3, pinned_gpu_uuid="GPU-0")
        browser.bus.publish(*run_message(of_gpu))
        await browser.get(f"{ORDER}?action=release&why=cold")
        assert "It is held with its GPU GPU-0, which is pinned until" in browser.found.text
        assert "hot : that stays. A pin of its own, if it has one, ends." in browser.found.text


async def test_a_form_that_is_sent_twice_orders_once(tmp_path: Path) -> None:
    async with browsing(tmp_path) as browser:
        await browser.sign_in()
        await browser.preview()
        path, fields = browser.action, browser.hidden
        for _ in range(3):
            await browser.post(path, fields)
            assert browser.path == f"/order/{fields['correlation']}"
        assert len(browser.orders()) == 1


async def test_more_orders_than_a_node_hears_are_refused_and_that_is_said(tmp_path: Path) -> None:
    async with browsing(tmp_path) as browser:
        await browser.sign_in()
        sent: list[dict[str, str]] = []
        for _ in range(ORDERS_PER_MIN):
            await browser.preview()
            sent.append(browser.hidden)
            assert (await browser.go("POST", ORDER, browser.hidden))[0] == 303
        await browser.preview()
        page = await browser.send()
        assert (browser.status, browser.answer["Retry-After"]) == (429, "60")
        assert "More than 10 orders a minute about one run or GPU: try again in a minute." in page.text
        assert (await browser.go("POST", ORDER, sent[0]))[0] == 303, "it was sent before"
        assert len(browser.orders()) == ORDERS_PER_MIN
        await asyncio.sleep(7)
        await browser.preview()
        await browser.send()
        assert len(browser.orders()) == ORDERS_PER_MIN + 1


@pytest.mark.parametrize("action", ["pause", "resume"])
async def test_a_run_is_paused_and_resumed(action: str, tmp_path: Path) -> None:
    async with browsing(tmp_path) as browser:
        await browser.sign_in()
        page = await browser.preview(action=action)
        expected = {"pause": "The training is paused until", "resume": "it goes on at once"}
        assert expected[action] in page.text
        await browser.send()
        (order,) = browser.orders()
        assert (order.action, order.until_s is not None, order.power_limit_w) == (action, action == "pause", None)
        wait_s = PAUSE_ANSWER_S if action == "pause" else ANSWER_S
        path = browser.path
        await asyncio.sleep(wait_s - 2 * ANSWER_WAIT_S)
        assert "asked for" in (await browser.get(path)).text
        await asyncio.sleep(2 * ANSWER_WAIT_S)
        assert "no answer in time" in (await browser.get(path)).text


@pytest.mark.parametrize(
    ("action", "fields", "said"),
    [
        ("exempt", {}, "have their prior limits until"),
        ("budget", {"slower": "8"}, "may make it 8.0 % slower than at full speed, until"),
        ("deadline", {"at": "+5h"}, "Its plan has it end by 05:00"),
        ("reset", {}, "follows its configured objective again"),
    ],
)
async def test_a_run_is_exempt_and_has_another_goal(
    action: str, fields: dict[str, str], said: str, tmp_path: Path
) -> None:
    async with browsing(tmp_path) as browser:
        await browser.sign_in()
        page = await browser.preview(action=action, **fields)
        assert said in page.text
        await browser.send()
        (order,) = browser.orders()
        assert order.action == action
        assert (order.max_slowdown_ratio, order.deadline_s is not None) == (
            1.08 if action == "budget" else None,
            action == "deadline",
        )
        browser.say("done", "as asked")
        assert "done: as asked" in (await browser.get(browser.path)).text


def say_gpu(browser: Browser, model: str = "NVIDIA A40") -> None:
    """Let a node say that it has a GPU, on which the run computes."""
    gpu = GpuDescription(uuid=GPU.gpu_uuid, index=0, model=model, prior_power_limit_w=300.0, min_power_limit_w=100.0)
    status = NodeStatus(state="online", version="1", time_s=MIDNIGHT_S + 1, gpus=[gpu])
    browser.bus.publish(TOPICS.node_status(GPU.node), encode(status), qos=1)
    energy = GpuEnergy(time_s=MIDNIGHT_S + 1, gpu_index=0, power_w=162.0, power_limit_w=205.0, job=KEY.job)
    browser.bus.publish(TOPICS.gpu(*GPU, "energy"), encode(energy), qos=0)


@pytest.mark.parametrize(
    ("action", "fields", "said"),
    [
        ("pin", {"limit": "205", "until": "+2h"}, "is held at 205 W until"),
        ("exempt", {"until": "+2h"}, "has its prior limits until"),
        ("release", {}, "If this GPU is pinned or exempt, that ends"),
    ],
)
async def test_an_operator_orders_about_a_gpu(action: str, fields: dict[str, str], said: str, tmp_path: Path) -> None:
    async with browsing(tmp_path) as browser:
        say_gpu(browser)
        await browser.get("/gpus")
        links = [it["href"] for it in browser.found.all("a") if "data-order" in it]
        assert links == [f"{GPU_ORDER}?action={each}" for each in GPU_ACTIONS]
        await browser.sign_in(name="Ada", then=f"{GPU_ORDER}?action={action}")
        assert (browser.status, browser.path) == (200, f"{GPU_ORDER}?action={action}")
        page = await browser.get(str(URL(GPU_ORDER).with_query({"action": action, "why": "a demo"} | fields)))
        assert said in page.text
        assert (page.text.count("Of resnet50 now: at 205 W"), browser.orders(GPU_SET)) == (action == "pin", [])
        page = await browser.send()
        assert "asked for; the node has not read it back yet" in page.text
        (order,) = browser.orders(GPU_SET)
        assert (order.action, order.by, order.by_owner) == (action, "Ada, an operator", False)
        result = OrderResult(
            time_s=order.time_s,
            node=GPU.node,
            gpu_uuid=GPU.gpu_uuid,
            action=order.action,
            correlation=order.correlation,
            state="done",
            reason="pinned",
            detail="300 W read back from 1 GPU",
        )
        browser.bus.publish(RESULT, encode(result), qos=1)
        assert "done: " not in (await browser.get(browser.path)).text, "that would be of a run"
        browser.bus.publish(TOPICS.gpu(*GPU, "set/result"), encode(result), qos=1)
        assert "done: 300 W read back from 1 GPU" in (await browser.get(browser.path)).text


async def test_what_a_pin_of_a_gpu_does_is_said_of_no_run_that_cannot_have_it(tmp_path: Path) -> None:
    async with browsing(tmp_path) as browser:
        say_gpu(browser)
        await browser.sign_in()
        pin = str(URL(GPU_ORDER).with_query(PIN | {"limit": "50"}))
        assert "Of resnet50 now: at 100 W" in (await browser.get(pin)).text, "no GPU of the run takes less"
        say_gpu(browser, model="Tesla V100-SXM2-32GB")
        page = await browser.get(pin)
        assert "is held at 50 W until" in page.text
        assert "Of resnet50 now" not in page.text, "the run of this name that is known has GPUs of another model"


async def test_no_user_gives_orders_about_a_gpu_nor_anybody_those_that_are_of_runs(tmp_path: Path) -> None:
    async with browsing(tmp_path) as browser:
        say_gpu(browser)
        await browser.sign_in(ALICE)
        page = await browser.get(f"{GPU_ORDER}?action=exempt")
        assert (browser.status, "only operators give orders about a GPU" in page.text) == (403, True)
        await browser.preview()
        await browser.send()
        assert [order.by_owner for order in browser.orders()] == [True], "an operator's pin would not yield to it"
        await browser.get("/sign-in")
        await browser.send()
        await browser.sign_in()
        await browser.get(f"{GPU_ORDER}?action=pause")
        assert browser.status == 400
        page = await browser.get("/gpu/atlas/GPU-9/order?action=exempt")
        assert (browser.status, "No GPU atlas/GPU-9 is online" in page.text) == (404, True)
        offline = NodeStatus(state="offline", version="1", time_s=MIDNIGHT_S + 2)
        browser.bus.publish(TOPICS.node_status(GPU.node), encode(offline), qos=1)
        await asyncio.sleep(2 * RENDERED_S)
        assert not any("data-order" in it for it in (await browser.get("/gpus")).all("a")), "nobody would hear them"
        await browser.get(f"{GPU_ORDER}?action=exempt")
        assert browser.status == 404
        assert browser.orders(GPU_SET) == []


@pytest.mark.parametrize(
    ("state", "said"), [("refused", "refused: 205 W read"), ("failed", "not in force: 205 W read")]
)
async def test_what_the_node_refuses_is_said(state: str, said: str, tmp_path: Path) -> None:
    async with browsing(tmp_path) as browser:
        await browser.sign_in()
        await browser.preview()
        await browser.send()
        browser.say("done", correlation="page-of-another")
        browser.say("done", action="release")
        browser.bus.publish(RESULT, b"\xff" * 20)
        assert "asked for; the node" in (await browser.get(browser.path)).text
        browser.say(state)
        browser.say("done")
        assert said in (await browser.get(browser.path)).text, "the first answer counts"


async def test_nothing_is_ordered_while_the_broker_is_away(tmp_path: Path) -> None:
    async with browsing(tmp_path) as browser:
        await browser.sign_in()
        await browser.preview()
        browser.bus.connected = False
        page = await browser.send()
        assert browser.status == 503
        assert "The broker is away, nothing was ordered: try again." in page.text
        assert browser.orders() == []


async def test_each_fault_of_a_form_is_said_and_nothing_is_sent(tmp_path: Path) -> None:
    async with browsing(tmp_path) as browser:
        await browser.sign_in()
        page = await browser.preview(limit="x", until="soon", why="")
        for fault in ("The limit 'x' must be", "The time 'soon' must be", "Why is missing"):
            assert fault in page.text
        assert [form.get("method") for form in page.all("form")] == ["get"], "there is nothing to send"
        await browser.preview()
        page = await browser.send(until="soon")
        assert (browser.status, "The time 'soon'" in page.text) == (422, True)
        assert browser.orders() == []


# Who may.


@pytest.mark.parametrize("token", ["", "wrong", "operator-toke", "alice", "alice:alice-token", "x" * 3_000])
async def test_a_wrong_token_signs_nobody_in(token: str, tmp_path: Path) -> None:
    async with browsing(tmp_path) as browser:
        page = await browser.sign_in(token)
        assert (browser.status, "This token is not among those that may sign in." in page.text) == (403, True)
        assert "wrong" not in page.text
        await browser.get(f"{ORDER}?action=pin")
        assert is_sign_in(browser)


async def test_a_user_orders_about_her_own_runs_alone(tmp_path: Path) -> None:
    async with browsing(tmp_path) as browser:
        await browser.sign_in(BOB, name="root")
        page = await browser.preview()
        assert (browser.status, "for the runs of bob alone" in page.text) == (403, True)
        code = {"code": "", "correlation": "page-1"}
        await browser.post(ORDER, PIN | code)
        assert browser.status == 403
        assert browser.orders() == []
        assert "signed in as bob ." in (await browser.get("/sign-in")).text, "a user has her own name"


async def test_without_a_session_a_form_orders_nothing(tmp_path: Path) -> None:
    async with browsing(tmp_path) as browser:
        await browser.sign_in()
        await browser.preview()
        path, fields = browser.action, browser.hidden
        await browser.get("/sign-in")
        await browser.send()
        await browser.post(path, fields)
        assert (browser.status, browser.orders()) == (403, []), "signed out"
        assert "You are not signed in any more; nothing was ordered." in browser.found.text


@pytest.mark.parametrize("after_s", [IDLE_S, SESSION_S])
async def test_a_session_that_has_ended_orders_nothing(after_s: float, tmp_path: Path) -> None:
    async with browsing(tmp_path) as browser:
        await browser.sign_in()
        await browser.preview()
        path, fields = browser.action, browser.hidden
        await asyncio.sleep(after_s + 1)
        browser.bus.publish(*run_message(run_record(duration_s=7_200.0, n_gpus=1, time_s=MIDNIGHT_S + after_s)))
        await browser.post(path, fields)
        assert (browser.status, browser.orders()) == (403, [])
        await browser.get(f"{ORDER}?action=pin")
        assert is_sign_in(browser)


async def test_a_token_that_is_struck_ends_its_sessions(tmp_path: Path) -> None:
    async with browsing(tmp_path) as browser:
        await browser.sign_in(ALICE)
        await browser.preview()
        path, fields = browser.action, browser.hidden
        browser.tokens.write_text(f"{OPERATOR}\n")
        await browser.post(path, fields)
        assert (browser.status, browser.orders()) == (403, [])


@pytest.mark.parametrize("code", ["", "0" * 64, "of another form", "of another session"])
async def test_a_form_that_was_not_made_for_this_session_is_refused(code: str, tmp_path: Path) -> None:
    async with browsing(tmp_path) as browser:
        await browser.sign_in()
        await browser.preview()
        fields = browser.hidden
        if code == "of another form":
            await browser.get("/sign-in")
            code = browser.hidden["code"]
        elif code == "of another session":
            await browser.sign_in()
            await browser.get("/sign-in")
            await browser.send()
            await browser.sign_in()
            code = fields["code"]
        page = await browser.post(ORDER, fields | {"code": code})
        assert (browser.status, browser.orders()) == (403, [])
        assert "This form is not valid any more." in page.text


async def test_a_sign_in_form_is_worth_nothing_without_its_cookie(tmp_path: Path) -> None:
    async with browsing(tmp_path) as browser:
        await browser.get("/sign-in")
        fields = browser.hidden | {"token": OPERATOR}
        async with aiohttp.ClientSession() as other, other.post(f"{browser.url}/sign-in", data=fields) as response:
            assert response.status == 403
            assert "This form is not valid any more." in await response.text()


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}]
)
async def test_a_form_of_another_site_is_refused(headers: dict[str, str], tmp_path: Path) -> None:
    async with browsing(tmp_path) as browser:
        await browser.sign_in()
        await browser.preview()
        await browser.post(browser.action, browser.hidden, **headers)
        assert (browser.status, browser.orders()) == (403, [])


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"token=" + b"x" * 5_000, {}, 413),
        (b"token=a&token=b", {}, 400),
        (b"&".join(b"f%d=1" % number for number in range(40)), {}, 400),
        (b"token=%ff", {}, 400),
        (b"{}", {"Content-Type": "application/json"}, 415),
        (b"x", {"Content-Encoding": "gzip"}, 415),
    ],
)
async def test_a_body_that_is_no_small_form_is_refused(
    body: bytes, headers: dict[str, str], status: int, tmp_path: Path
) -> None:
    async with browsing(tmp_path) as browser:
        await browser.sign_in()
        headers = {"Content-Type": "application/x-www-form-urlencoded"} | headers
        for path in ("/sign-in", ORDER):
            await browser.post(path, body, **headers)
            assert browser.status == status
            assert browser.answer["Content-Type"].startswith("text/html")


@pytest.mark.parametrize(("path", "status"), [(ORDER, 403), ("/sign-out", 303)])
async def test_whoever_is_not_signed_in_keeps_nobody_waiting_by_a_slow_body(
    path: str, status: int, tmp_path: Path
) -> None:
    async with browsing(tmp_path) as browser, asyncio.timeout(BODY_TIMEOUT_S / 2):
        reader, writer = await asyncio.open_connection(URL(browser.url).host, URL(browser.url).port)
        writer.write(f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n".encode())
        assert (await reader.readline()).split()[1] == b"%d" % status
        writer.close()


async def test_an_address_that_tries_too_often_waits(tmp_path: Path) -> None:
    async with browsing(tmp_path) as browser:
        for _ in range(2 * WRONG_TOKENS_PER_MIN):
            await browser.sign_in()
            assert not is_sign_in(browser), "many people may share an address, as behind a proxy"
            await browser.get("/sign-in")
            await browser.send()  # signs out
        for _ in range(WRONG_TOKENS_PER_MIN):
            await browser.sign_in("wrong")
            assert browser.status == 403
        await browser.sign_in()
        assert (browser.status, browser.answer["Retry-After"]) == (429, "60")
        assert "More than 10 wrong tokens a minute" in browser.found.text
        await asyncio.sleep(60)
        await browser.sign_in()
        assert browser.status == 200
        assert not is_sign_in(browser)


async def test_the_cookie_is_new_with_each_sign_in_and_no_script_reads_it(tmp_path: Path) -> None:
    async with browsing(tmp_path) as browser:
        await browser.get("/sign-in")
        before = browser.answer["Set-Cookie"]
        status, location, (cookie,) = await browser.go("POST", "/sign-in", browser.hidden | {"token": OPERATOR})
        assert (status, location) == (303, "/")
        assert cookie != before
        for each in (before, cookie):
            name, _, rest = each.partition("=")
            assert name == "gridchase-session"
            assert rest[43:] == f"; Path=/; Max-Age={SESSION_S:.0f}; HttpOnly; SameSite=Strict"


@pytest.mark.parametrize(
    ("then", "leads_to"),
    [
        ("/log", "/log"),
        ("/run/a/b/c/order?action=pin", "/run/a/b/c/order?action=pin"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("/a\r\nSet-Cookie: x", "/"),
    ],
)
async def test_a_sign_in_leads_to_a_page_of_ours(then: str, leads_to: str, tmp_path: Path) -> None:
    async with browsing(tmp_path) as browser:
        await browser.get("/sign-in")
        fields = browser.hidden | {"token": OPERATOR, "then": then}
        status, location, _ = await browser.go("POST", "/sign-in", fields)
        assert (status, location) == (303, leads_to)


@pytest.mark.parametrize("text", [*HOSTILE, "x" * 120])
async def test_whatever_is_typed_is_text(text: str, tmp_path: Path) -> None:
    async with browsing(tmp_path) as browser:
        await browser.sign_in()
        plain = await browser.preview()
        await browser.send()
        browser.say("done", "plain")
        sent = await browser.get(browser.path)
        typed = await browser.preview(why=text, limit=text, until=text)
        assert {tag for tag, _ in typed.elements} <= {tag for tag, _ in plain.elements}
        assert "\u202e" not in typed.text
        await browser.preview()
        await browser.send()
        browser.say("refused", text.encode("utf-8", "replace").decode())
        told = await browser.get(browser.path)
        assert [tag for tag, _ in told.elements] == [tag for tag, _ in sent.elements]
        assert "\u202e" not in told.text
        assert "refused: " in told.text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/run/alice/resnet50/r9/order?action=pin", 404),
        ("/run/alice/%3Cb%3E/r1/order?action=pin", 400),
        (f"{ORDER}?action=explode", 400),
        (ORDER, 400),
        ("/order/page-1", 404),
        ("/order/%3Cscript%3E", 400),
    ],
)
async def test_what_there_is_not_is_said_on_a_page(path: str, status: int, tmp_path: Path) -> None:
    async with browsing(tmp_path) as browser:
        await browser.sign_in()
        await browser.get(path)
        assert browser.status == status
        assert browser.found.all("h1")
        assert "default-src 'none'" in browser.answer["Content-Security-Policy"]


# From where.


async def test_behind_a_trusted_proxy_the_cookie_is_for_tls_alone(tmp_path: Path) -> None:
    async with browsing(tmp_path, trusted_proxies=["::1"], server_names=["power.example"]) as browser:
        browser.headers = dict(HTTPS)
        await browser.get("/sign-in")
        for status, fields in ((200, {}), (303, {"token": OPERATOR})):
            if fields:
                answer, _, (cookie,) = await browser.go("POST", "/sign-in", browser.hidden | fields)
                assert answer == status
            else:
                cookie = browser.answer["Set-Cookie"]
            name, _, rest = cookie.partition("=")
            assert name == "__Host-gridchase-session"
            assert rest.endswith("; HttpOnly; SameSite=Strict; Secure")
            browser.headers["Cookie"] = cookie.partition(";")[0]  # over TLS a browser would send it
        assert "Sign out" in " ".join((await browser.get("/sign-in")).texts)
        browser.headers["Host"] = "evil.example"
        await browser.get("/sign-in")
        assert browser.status == 403


@pytest.mark.parametrize(
    ("headers", "trusted", "why"),
    [
        ({"X-Forwarded-Proto": "https"}, [], UNKNOWN_PROXY),
        ({"X-Forwarded-Proto": "http"}, ["::1"], NOT_SAID),
        ({"Via": "1.1 x"}, ["10.0.0.1"], UNKNOWN_PROXY),
    ],
)
async def test_where_a_token_could_be_read_on_the_way_nobody_signs_in(
    headers: dict[str, str], trusted: list[str], why: str, tmp_path: Path
) -> None:
    async with browsing(tmp_path, trusted_proxies=trusted) as browser:
        await browser.sign_in()
        await browser.preview()
        path, fields = browser.action, browser.hidden
        browser.headers = headers
        for method, at in (("GET", "/sign-in"), ("GET", f"{ORDER}?action=pin"), ("POST", "/sign-in"), ("POST", path)):
            page = await (browser.get(at) if method == "GET" else browser.post(at, fields))
            assert browser.status == 403
            assert not is_sign_in(browser)
            assert f"Nobody signs in this way, and nothing is ordered: {why}." in page.text
        assert browser.orders() == []
        await browser.get("/")
        assert browser.status == 200, "reading is open"


async def test_reading_needs_a_session_or_a_token_where_that_is_wanted(tmp_path: Path) -> None:
    async with browsing(tmp_path, sign_in_to_read=True) as browser:
        for path in (*PAGES, "/run/alice/resnet50/r1"):
            await browser.get(path)
            assert is_sign_in(browser), path
        for path in ("/v1/state", "/v1/report", "/v1/events", "/v1/posterior?user=alice&job=resnet50"):
            await browser.get(path)
            assert browser.status == 401, path
        for path in ("/healthz", "/metrics", "/static/page.css"):
            await browser.get(path)
            assert browser.status == 200, path
        browser.headers = {"Authorization": "Bearer wrong"}
        await browser.get("/v1/state")
        assert browser.status == 401
        browser.headers = {"Authorization": f"Bearer {ALICE}"}
        await browser.get("/v1/state")
        assert browser.status == 200
        browser.headers = {}
        await browser.sign_in(BOB, then="/gpus")
        assert (browser.status, browser.path) == (200, "/gpus")
        await browser.get("/v1/state")
        assert browser.status == 200
        browser.headers = {"X-Forwarded-Proto": "https"}
        page = await browser.get("/gpus")
        assert (browser.status, "Nobody signs in this way" in page.text) == (403, True)


async def test_a_program_that_tries_too_often_waits(tmp_path: Path) -> None:
    async with browsing(tmp_path, sign_in_to_read=True) as browser:
        for token, status in [(ALICE, 200)] * 20 + [("wrong", 401)] * 10 + [(ALICE, 429)]:
            browser.headers = {"Authorization": f"Bearer {token}"}
            await browser.get("/v1/state")
            assert browser.status == status
        await asyncio.sleep(60)
        await browser.get("/v1/state")
        assert browser.status == 200


@pytest.mark.parametrize("is_bearer", [True, False])
async def test_a_stream_ends_with_the_token_that_it_was_opened_with(tmp_path: Path, *, is_bearer: bool) -> None:
    async with browsing(tmp_path, sign_in_to_read=True) as browser:
        headers = {"Authorization": f"Bearer {ALICE}"} if is_bearer else {}
        if not is_bearer:
            await browser.sign_in(ALICE)
        async with browser._client.get(f"{browser.url}/v1/events", headers=headers) as stream:
            await asyncio.sleep(3 * LOOK_S)
            assert not stream.content.at_eof()
            browser.tokens.write_text(f"{OPERATOR}\n")
            async with asyncio.timeout(LOOK_S + HEARTBEAT_S + 1):
                assert b"event: values" in await stream.content.read()


async def test_where_no_orders_are_taken_the_page_says_the_command(tmp_path: Path) -> None:
    async with browsing(tmp_path, orders=False) as browser:
        assert all("data-order" not in it for it in (await browser.get("/run/alice/resnet50/r1")).all("a"))
        await browser.preview()
        assert browser.status == 404
        assert [each for each in browser.bus.filters if "set" in each.split("/")] == []
    async with browsing(tmp_path, orders=False, token_file="") as browser:
        await browser.get("/sign-in")
        assert browser.status == 404


@pytest.mark.parametrize(
    ("settings", "is_told"),
    [
        ({"host": "0.0.0.0"}, True),  # noqa: S104
        ({"host": "::1"}, False),
        ({"host": "0.0.0.0", "trusted_proxies": ["10.0.0.1"]}, False),  # noqa: S104
    ],
)
async def test_it_is_told_where_nobody_else_can_sign_in(
    settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_told: bool
) -> None:
    async with browsing(tmp_path, **settings):
        assert ("people sign in on this machine alone" in caplog.text) == is_told


async def test_an_answer_that_the_broker_has_kept_is_to_no_order_of_now(tmp_path: Path) -> None:
    async with browsing(tmp_path) as browser:
        await browser.sign_in()
        await browser.preview()
        fields = browser.hidden
        result = OrderResult(
            time_s=MIDNIGHT_S, action="pin", correlation=fields["correlation"], state="done", reason="x", detail="y"
        )
        browser.bus.publish(RESULT, encode(result), retain=True)
        page = await browser.send()
        assert "asked for; the node" in page.text


# The configuration.


@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        (["web.orders=true"], "web.orders = true: needs bus.username"),
        (["web.orders=true", "bus.username=web"], "web.orders = true: needs web.token_file"),
        (["web.sign_in_to_read=true"], "web.sign_in_to_read = true: needs web.token_file"),
        (["web.token_file=/nowhere"], "web.token_file = '/nowhere': there is no such file"),
        (["web.tls_cert_file=/etc/hostname"], "web.tls_cert_file, web.tls_key_file: need each other"),
        (["web.trusted_proxies=['0.0.0.0/0']"], "web.trusted_proxies: '0.0.0.0/0': trusts whoever asks"),
        (["web.trusted_proxies=['proxy']"], "web.trusted_proxies: 'proxy': must be an address"),
    ],
)
def test_what_is_wrong_with_the_configuration_is_said(overrides: list[str], fault: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_web_config(None, overrides)
    assert any(each.startswith(fault) for each in error.value.faults), error.value.faults
