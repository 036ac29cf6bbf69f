"""A mosquitto with the shipped site files: three doors on free ports, certificates and passwords made on the spot."""

import re
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from tests.live.conftest import TIMEOUT_S, Mosquitto, add_user, free_port, make_certificates, wait_until

DEPLOY: Final = Path(__file__).parents[3] / "deploy" / "mosquitto"
DOORS: Final = {"trainings": 8883, "nodes": 8884, "services": 8885}
_WATCHER_DOOR: Final = "\nlistener {watcher_port} 127.0.0.1\nallow_anonymous true\n"
"""For the test's own eyes: without rules. The shipped file has no such door."""


def password_of(user: str) -> str:
    """Return the password that a user has at every door."""
    return f"correct horse of {user}"


class SiteBroker:
    """The broker of a site, and the ways into it.

    Args:
        directory: for its files.
        users: the users of each door.
        watched: open one more door, without password and rules, for the test itself.
        conf: a change to the shipped file.
    """

    def __init__(
        self,
        directory: Path,
        users: Mapping[str, Sequence[str]],
        *,
        watched: bool = False,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.ca_file = directory / "certs" / "ca.crt"
        self.ports = _distinct_ports(*DOORS, "watcher")
        (directory / "certs").mkdir()
        (directory / "data").mkdir()
        make_certificates(directory / "certs")
        for door in DOORS:
            shutil.copy(DEPLOY / f"{door}.acl", directory)
            for user in users.get(door, ("nobody-at-all",)):
                add_user(directory / f"{door}.passwd", user, password_of(user))
        text = (DEPLOY / "site.conf").read_text()
        for old, new in (conf or {}).items():
            assert old in text, f"{old} is not in site.conf"
            text = text.replace(old, new)
        if watched:
            text = text.replace("\n# --- limits", f"{_WATCHER_DOOR}\n# --- limits", 1)
        self.process = Mosquitto(directory, self._on_this_machine(text), port=self.ports["trainings"], scheme="mqtts")
        self._wanted = [self.ports[door] for door in (*DOORS, *(["watcher"] if watched else []))]
        self.start()

    def start(self) -> None:
        """Start it, and wait until its last door is open."""
        self.process.start()
        for port in self._wanted:
            wait_until(lambda port=port: _listens(port))  # type: ignore[misc]

    def url(self, door: str) -> str:
        """Return the URL of a door."""
        return f"mqtts://127.0.0.1:{self.ports[door]}"

    def client(self, door: str, user: str = "", **options: Any) -> "SiteClient":  # noqa: ANN401 — paho's own
        """Return a client at a door that is not connected yet; `user` has the test's password."""
        return SiteClient(self, door, user, **options)

    def _on_this_machine(self, text: str) -> str:
        """Return the file with this test's ports and paths."""
        for door, port in DOORS.items():
            text, n_changed = re.subn(
                rf"\nlistener {port} 0\.0\.0\.0\n", f"\nlistener {self.ports[door]} 127.0.0.1\n", text
            )
            assert n_changed == 1, f"site.conf has one door {port}"
        text = text.replace("/var/lib/mosquitto/", f"{self.directory}/data/")
        text = text.replace("/etc/mosquitto/", f"{self.directory}/")
        return text.replace("{watcher_port}", str(self.ports["watcher"]))


class SiteClient:
    """A client of the site's broker that remembers what it has received: payloads by topic."""

    def __init__(self, site: SiteBroker, door: str, user: str = "", *, client_id: str = "", password: str = "") -> None:
        self.received: dict[str, list[bytes]] = {}
        self.refusal = ""
        self._port = site.ports[door]
        self._connected, self._subscribed = threading.Event(), threading.Event()
        self.paho = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=client_id)
        self.paho.on_connect = self._on_connect
        self.paho.on_message = self._on_message
        self.paho.on_socket_open = _send_at_once
        self.paho.on_subscribe = lambda *_: self._subscribed.set()
        if door != "watcher":
            self.paho.tls_set_context(ssl.create_default_context(cafile=str(site.ca_file)))
            self.paho.username_pw_set(user, password or password_of(user))

    def __enter__(self) -> Self:
        """Connect; `refusal` says so where the broker does not want us."""
        self.paho.connect("127.0.0.1", self._port)
        self.paho.loop_start()
        assert self._connected.wait(TIMEOUT_S)
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect."""
        self.paho.disconnect()
        self.paho.loop_stop()

    def subscribe(self, *topics: str) -> None:
        """Subscribe and wait for the answer, which comes after everything that the broker had for us."""
        self._subscribed.clear()
        self.paho.subscribe([(topic, 1) for topic in topics])
        assert self._subscribed.wait(TIMEOUT_S)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Publish and wait until the broker has passed it on, or dropped it."""
        message = self.paho.publish(topic, payload, 1, retain)
        message.wait_for_publish(TIMEOUT_S)
        assert message.is_published()

    def vanish(self) -> None:
        """End the connection without a word, as a killed process does."""
        connection = self.paho.socket()
        assert connection is not None
        connection.close()

    def _on_connect(
        self, _client: mqtt.Client, _data: object, _flags: object, reason: ReasonCode, _properties: object
    ) -> None:
        self.refusal = str(reason) if reason.is_failure else ""
        self._connected.set()

    def _on_message(self, _client: mqtt.Client, _data: object, message: mqtt.MQTTMessage) -> None:
        self.received.setdefault(message.topic, []).append(bytes(message.payload))


@contextmanager
def site_broker(directory: Path, users: Mapping[str, Sequence[str]], **options: Any) -> Iterator[SiteBroker]:  # noqa: ANN401 — those of SiteBroker
    """Run the broker of a site."""
    site = SiteBroker(directory, users, **options)
    try:
        yield site
    finally:
        site.process.stop()


def _send_at_once(_client: mqtt.Client, _data: object, connection: Any) -> None:  # noqa: ANN401 — paho's own
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def _distinct_ports(*names: str) -> dict[str, int]:
    ports = set[int]()
    while len(ports) < len(names):  # the system may well name the same one twice: nobody holds it yet
        ports.add(free_port())
    return dict(zip(names, ports, strict=True))
