"""Orders on the page, from a browser over a real broker to a node: by keyboard, without a script, over TLS."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from controller.errors import ConfigError
from controller.web.app import run_web
from controller.web.config import WebConfig, load_web_config
from controller.web.hands.order_form import ACTIONS
from tests.controller.web.pages.site import Found
from tests.live.conftest import Mosquitto, free_port
from tests.live.node import LiveNode, wait_for
from tests.live.nvml_stub.machine import StubMachine
from tests.live.page.browser import AXE, CHROMIUM, Tab, running_browser

pytestmark = pytest.mark.live
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
PRIOR_W, PIN_W = 280.0, 165.0
TOKEN: Final = "alice-token"
RUN: Final = "/run/alice/resnet50/r1"
RULES: Final = """\
topic readwrite gridchase/v1/#
topic deny gridchase/v1/user/+/job/+/run/+/set
topic deny gridchase/v1/node/+/gpu/+/set

user n1
topic readwrite gridchase/v1/#

user web
topic read gridchase/v1/#
topic write gridchase/v1/user/+/job/+/run/+/set
"""
PIN_LINK: Final = f'a[href="{RUN}/order?action=pin"]'
FIELDS: Final = "limit=165&until=%2B2h&slower=8&at=%2B9h&why=the+room+is+hot"
WALK: Final[dict[str, dict[str, str]]] = {
    "pause": {"until": "+2m"},
    "resume": {},
    "exempt": {"until": "+2h"},
    "budget": {"slower": "8"},
    "deadline": {"at": "+9h"},
}
SCREENS: Final = [(width, theme) for width in (390, 1280, 2560) for theme in ("light", "dark")]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    """Start a mosquitto that lets everybody in, and takes orders from the page alone."""
    directory = tmp_path / "broker"
    directory.mkdir()
    (directory / "acl").write_text(RULES)
    (directory / "acl").chmod(0o600)
    lines = "listener {port} 127.0.0.1", "allow_anonymous true", f"acl_file {directory / 'acl'}", "log_dest stderr"
    mosquitto = Mosquitto(directory, "\n".join([*lines, "persistence false", ""]))
    mosquitto.start()
    yield mosquitto
    mosquitto.stop()


@pytest.fixture
def node(nvml_machine: StubMachine, broker: Mosquitto, tmp_path: Path) -> Iterator[LiveNode]:
    nvml_machine.gpu().set_requested_power_limit_w(PRIOR_W)
    node = LiveNode(nvml_machine, broker, tmp_path)
    yield node
    node.close()


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"alice:{TOKEN}\n")
    path.chmod(0o600)
    return path


@asynccontextmanager
async def serving(config: WebConfig) -> AsyncIterator[str]:
    """Run the process of a site within this one; yield its URL."""
    stop, urls = asyncio.Event(), asyncio.Queue[str]()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run_web(config, version="1", stop=stop, started=urls.put_nowait))
        yield await urls.get()
        stop.set()


async def tab_to(tab: Tab, selector: str) -> None:
    """Press the Tab key until an element has the focus."""
    for _ in range(60):
        if await tab.run(f"document.activeElement?.matches({selector!r}) ?? false"):
            return
        await tab.press("Tab")
    pytest.fail(f"{selector} cannot be reached by keyboard")


async def sign_in(tab: Tab, url: str) -> None:
    """Sign in by keyboard, on the way to an order."""
    await tab.open(f"{url}{RUN}")
    await tab_to(tab, PIN_LINK)
    await tab.press("Enter")
    await tab.until("location.pathname === '/sign-in' && document.readyState === 'complete'")
    await tab_to(tab, "#token")
    await tab.call("Input.insertText", text=TOKEN)
    await tab.press("Enter")
    await tab.until(f"location.pathname === '{RUN}/order' && document.readyState === 'complete'")


@in_a_browser
async def test_a_limit_is_pinned_by_keyboard_and_released_without_a_script(
    node: LiveNode, broker: Mosquitto, tokens: Path, tmp_path: Path
) -> None:
    node.controller(orders__over_bus="true", bus__username="n1")
    node.training(300.0)
    await asyncio.to_thread(wait_for, node, lambda: (node.watcher.last("r1/profile") or {}).get("state") == "planned")
    settings = ("web.orders=true", f"web.token_file={tokens}", "web.port=0", f"web.state_dir={tmp_path / 'web'}")
    config = load_web_config(None, [*settings, f"bus.url={broker.url}", "bus.username=web"])
    async with running_browser(tmp_path / "browser") as browser, serving(config) as url:
        tab = await browser.new_tab()
        await sign_in(tab, url)
        await tab.open(f"{url}{RUN}")
        await tab_to(tab, PIN_LINK)
        await tab.press("Enter")
        await tab.until("document.activeElement?.id === 'limit'")
        for text in (f"{PIN_W:g}", "+2h", "the room is hot"):
            await tab.call("Input.insertText", text=text)
            await tab.press("Tab")
        await tab.until("document.querySelector('dialog #will h3')?.textContent === 'What will happen'")
        said = await tab.run("document.querySelector('dialog #will').textContent")
        assert "At 165 W this run goes at" in said, node.watcher.last("r1/profile")
        assert node.limit_w != PIN_W, "nothing was ordered yet"
        button = "document.querySelector('dialog #will button')"
        await tab.run("window.answering = fetch; fetch = () => new Promise(() => {})")
        await tab.run("document.querySelector('dialog #why').focus()")
        await tab.call("Input.insertText", text=" today")
        assert await tab.run(f"{button}.disabled"), "it would send what is not shown any more"
        await tab.run("fetch = window.answering")
        await tab.call("Input.insertText", text=".")
        await tab.until(f"{button}?.disabled === false")
        await tab_to(tab, "dialog #will button")
        await tab.press("Enter")
        status = "document.querySelector('dialog [role=status]')?.textContent"
        await tab.until(f"{status}?.includes('done: 165 W read back from 1 GPU')")
        assert node.limit_w == PIN_W
        await tab.press("Escape")
        await tab.until("document.querySelector('dialog') === null")
        assert await tab.run(f"document.activeElement.matches({PIN_LINK!r})")
        assert tab.complaints == []
        await tab.call("Emulation.setScriptExecutionDisabled", value=True)
        await tab.open(f"{url}{RUN}/order?action=release")
        await tab_to(tab, "#why")
        await tab.call("Input.insertText", text="it is cold")
        await tab.press("Enter")
        await tab.until("document.querySelector('#will form') !== null")
        await tab_to(tab, "#will button")
        await tab.press("Enter")
        await tab.until("document.querySelector('[role=status]')?.textContent.startsWith('done: ')")
        await asyncio.to_thread(wait_for, node, lambda: node.limit_w != PIN_W)
    assert "pinned to 165 W by alice over the bus until" in node.log()
    assert "alice over the bus ends it: it is cold" in node.log()


@in_a_browser
async def test_beside_up_a_run_is_paused_exempt_and_given_other_goals_in_the_dialog(
    node: LiveNode, broker: Mosquitto, tokens: Path, tmp_path: Path
) -> None:
    file, url = tmp_path / "web.toml", f"http://127.0.0.1:{free_port()}"
    keys = f'port = {url.rpartition(":")[2]}\ntoken_file = "{tokens}"\nstate_dir = "{tmp_path / "web"}"\norders = true'
    file.write_text(f'[bus]\nurl = "{broker.url}"\nusername = "n1"\n[web]\n{keys}\n')
    up = ("up", "--simulate", "--no-policy", "--web-config", str(file))
    node.verb(*up, orders__over_bus="true", bus__username="n1")
    node.training(300.0, PAUSABLE="1")
    async with running_browser(tmp_path / "browser") as browser:
        await asyncio.to_thread(wait_for, node, lambda: (node.watcher.last("r1/energy") or {}).get("n_gpus"))
        await asyncio.to_thread(wait_for, node, lambda: f"the page: {url}" in node.log())
        tab = await browser.new_tab()
        await sign_in(tab, url)
        await tab.open(f"{url}{RUN}")
        for action, fields in WALK.items():
            await tab.run(f"document.querySelector('a[data-order][href$=\"={action}\"]').click()")
            await tab.until("document.querySelector('dialog #why') !== null")
            for name, text in (fields | {"why": f"a walk: {action}"}).items():
                await tab.run(f"document.querySelector('dialog #{name}').focus()")
                await tab.call("Input.insertText", text=text)
            button = "document.querySelector('dialog #will form button')"
            await tab.until(f"{button}?.disabled === false")
            assert not any(each["action"] == action for each in node.watcher.all("/set")), "it is only shown"
            await tab.run(f"{button}.click()")
            await tab.until("document.querySelector('dialog [role=status]')?.textContent.includes('done: ')")
            await tab.press("Escape")
            await tab.until("document.querySelector('dialog') === null")
        assert tab.complaints == []
    answers = {each["action"]: each for each in node.watcher.all("/set/result")}
    assert {action: answer["state"] for action, answer in answers.items()} == dict.fromkeys(WALK, "done")
    assert (
        answers["exempt"]["enforced_power_limit_w"] == node.watcher.last("n1/status")["gpus"][0]["prior_power_limit_w"]
    )
    audited = node.log()
    for words in (
        "asks for a pause",
        "exempt, at its prior limit, by alice",
        "a time budget of 8 % by alice",
        "a deadline at",
    ):
        assert words in audited


@in_a_browser
@pytest.mark.further
@pytest.mark.skipif(AXE is None, reason="axe-core is not installed: npm install --no-save axe-core")
async def test_the_dialog_and_the_sign_in_have_no_fault_for_whoever_cannot_see(
    node: LiveNode, broker: Mosquitto, tokens: Path, tmp_path: Path
) -> None:
    node.controller()
    node.training(300.0)
    await asyncio.to_thread(wait_for, node, lambda: (node.watcher.last("r1/profile") or {}).get("state") == "planned")
    settings = ("web.orders=true", f"web.token_file={tokens}", "web.port=0", f"web.state_dir={tmp_path / 'web'}")
    config = load_web_config(None, [*settings, f"bus.url={broker.url}", "bus.username=web"])
    async with running_browser(tmp_path / "browser") as browser, serving(config) as url:
        tab = await browser.new_tab()
        await tab.open(f"{url}/sign-in")
        await check_screens(tab, "sign-in", tmp_path)
        await sign_in(tab, url)
        for action in ACTIONS:
            await tab.open(f"{url}{RUN}/order?action={action}&{FIELDS}")
            await check_screens(tab, f"page-{action}", tmp_path)
        await tab.open(f"{url}{RUN}")
        await check_screens(tab, "run", tmp_path)
        await tab.run("document.querySelector('a[data-order]').click()")
        await tab.until("document.querySelector('dialog')?.open ?? false")
        await check_screens(tab, "dialog-empty", tmp_path)
        for name, text in (("limit", "165"), ("until", "+2h"), ("why", "the room is hot")):
            await tab.run(f"document.querySelector('dialog #{name}').focus()")
            await tab.call("Input.insertText", text=text)
        await tab.until("document.querySelector('dialog #will form') !== null")
        await check_screens(tab, "dialog", tmp_path)
        await tab.run("document.querySelector('dialog #will button').click()")
        await tab.until("document.querySelector('dialog [role=status]') !== null")
        await check_screens(tab, "asked", tmp_path)


async def check_screens(tab: Tab, name: str, folder: Path) -> None:
    """Find no fault on any screen, nor anything that is wider than the screen; leave a picture of each."""
    for width, theme in SCREENS:
        await tab.show(width=width, theme=theme)
        (folder / f"{name}-{width}-{theme}.png").write_bytes(await tab.picture())
        assert await tab.faults() == [], (name, width, theme)
        assert await tab.too_wide() == [], (name, width)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a certificate for 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    name = ["-subj", "/CN=page", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "key.pem"]
    command = ["openssl", "req", "-x509", *key, "-out", "cert.pem", *name]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


async def test_with_a_certificate_of_its_own_all_is_encrypted(tmp_path: Path, tokens: Path, certificate: Path) -> None:
    cert_file, key_file = (str(certificate / name) for name in ("cert.pem", "key.pem"))
    overrides = [f"web.tls_cert_file={cert_file}", f"web.tls_key_file={key_file}", f"web.token_file={tokens}"]
    config = load_web_config(None, [*overrides, "web.port=0", f"web.state_dir={tmp_path / 'state'}"])
    trust = ssl.create_default_context(cafile=cert_file)
    jar = aiohttp.CookieJar(unsafe=True)
    async with serving(config) as url, aiohttp.ClientSession(cookie_jar=jar) as client:
        assert url.startswith("https://127.0.0.1:")
        async with client.get(f"{url}/sign-in", ssl=trust) as response:
            assert response.headers["Set-Cookie"].startswith("__Host-gridchase-session=")
            found = Found(await response.text())
        fields = {str(it["name"]): str(it.get("value", "")) for it in found.all("input") if it.get("type") == "hidden"}
        async with client.post(f"{url}/sign-in", data=fields | {"token": TOKEN}, ssl=trust) as response:
            assert response.status == 200
        async with client.get(f"{url}/sign-in", ssl=trust) as response:
            assert "You are signed in as alice ." in Found(await response.text()).text
        with pytest.raises(aiohttp.ClientError):
            await client.get(url.replace("https", "http"))


async def test_a_certificate_that_cannot_be_used_is_said(tmp_path: Path, certificate: Path) -> None:
    key_file = str(certificate / "key.pem")
    overrides = [f"web.tls_cert_file={key_file}", f"web.tls_key_file={key_file}", f"web.state_dir={tmp_path}"]
    with pytest.raises(ConfigError) as error:
        await run_web(load_web_config(None, overrides), version="1", stop=asyncio.Event())
    assert error.value.faults[0].startswith("web.tls_cert_file, web.tls_key_file: cannot be used: ")
