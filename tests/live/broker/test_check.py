"""`gridchase check` on real brokers: what reaches its reader, what the rules swallow, and who is named for it."""

import asyncio
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from controller.cli.main import main
from controller.orders.open_door import takes_orders_from_anybody
from publishers.mqtt.broker_address import BrokerAddress
from publishers.mqtt.bus_config import BusConfig
from publishers.mqtt.embedded_broker import embedded_broker
from publishers.mqtt.topic_probe import Party, Route, probe_routes
from tests.live.broker.closing_broker import ClosingBroker, serving
from tests.live.broker.site import SiteBroker, password_of, site_broker
from tests.live.conftest import Mosquitto
from tests.live.subscriber import Subscriber

pytestmark = pytest.mark.live
CONTROLLER, TRAINING = "topics of the controller", "topics of the training"
USERS = {"trainings": ["alice", "alice.smith"], "nodes": ["gpu01", "gpu.02"]}


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """What `gridchase check --json` has printed."""

    faults: list[str]
    found: Mapping[str, str]


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Report]:
    def run(url: str, *settings: str) -> Report:
        fixed = ["gpu.backend=simulation", f"node.state_dir={tmp_path / 'state'}", f"bus.url={url}"]
        main(["check", "--json", *(word for setting in (*fixed, *settings) for word in ("--set", setting))])
        report = msgspec.json.decode(capsys.readouterr().out)
        return Report(report["faults"], {finding["what"]: finding["found"] for finding in report["findings"]})

    return run


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SiteBroker]:
    with site_broker(tmp_path_factory.mktemp("site"), USERS) as site:
        yield site


def written(file: Path, password: str) -> Path:
    """Write a password file that nobody else can read."""
    file.touch(0o600)
    file.write_text(password)
    return file


@pytest.fixture
def check_site(
    check: Callable[..., Report], site: SiteBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Report]:
    """Return the check of a node and a training user at the site."""

    def run(*, node: str = "gpu01", user: str = "alice", password: str = "") -> Report:
        node_file = written(tmp_path / "node-password", password_of(node))
        user_file = written(tmp_path / "user-password", password or password_of(user))
        monkeypatch.setenv("GRIDCHASE_BROKER", site.url("trainings").replace("//", f"//{user}@"))
        monkeypatch.setenv("GRIDCHASE_PASSWORD_FILE", str(user_file))
        monkeypatch.setenv("GRIDCHASE_CA_FILE", str(site.ca_file))
        bus = [f"bus.username={node}", f"bus.password_file={node_file}", f"bus.ca_file={site.ca_file}"]
        return check(site.url("nodes"), f"node.name={node}", *bus)

    return run


def test_everything_arrives_through_a_broker_of_one_machine(check: Callable[..., Report], broker: Mosquitto) -> None:
    report = check(broker.url)
    assert report.faults == []
    assert report.found[CONTROLLER] == "10 of 10 arrive or are accepted"
    assert report.found[TRAINING] == "6 of 6 arrive or are accepted"


def test_nothing_stays_retained_on_the_broker(check: Callable[..., Report], broker: Mosquitto) -> None:
    check(broker.url)
    listener = Subscriber(broker.port)
    listener.close()
    assert listener.seen == []


@pytest.mark.parametrize(
    ("limits", "name", "remedy"),
    [
        ("retain_available false", "the broker refuses retained messages", "retain_available true"),
        ("max_qos 0", "the broker takes QoS 0 alone", "max_qos 1"),
    ],
)
def test_a_limit_of_the_broker_is_one_fault_with_its_name(
    check: Callable[..., Report], tmp_path: Path, *, limits: str, name: str, remedy: str
) -> None:
    conf = "listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\nlog_dest stderr\n"
    broker = Mosquitto(tmp_path, conf + limits)
    broker.start()
    (fault,) = check(broker.url).faults
    broker.stop()
    assert name in fault
    assert remedy in fault


async def test_a_broker_that_only_closes_is_asked_whether_it_refuses_retain() -> None:
    routes = [
        Route(topic=topic, writer="node", readers={}, payload=b"1", retain=topic == "limit")
        for topic in ("limit", "metric", "big")
    ]
    async with serving(ClosingBroker(refuses=lambda message: message.retain or message.topic == "big")) as broker:
        parties = [Party(name="node", address=BrokerAddress(url=broker.url))]
        report = await asyncio.to_thread(probe_routes, parties, routes)
    assert [result.refusal for result in report.results] == [
        "the broker closes the connection; without retain it takes it: allow retained messages",
        "",
        "the broker closes the connection when it is published",
    ]


def test_filters_that_fit_no_packet_together_are_probed_and_one_too_long_is_told(tmp_path: Path) -> None:
    conf = "listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\nlog_dest stderr\nmax_packet_size 200\n"
    topics = [f"node/{number}/status" for number in range(20)]
    routes = [Route(topic=topic, writer="node", readers={"node": topic}, payload=b"1") for topic in topics]
    long = Route(topic="node/20/status", writer="node", readers={"node": f"+/20/{'x' * 200}"}, payload=b"1")
    broker = Mosquitto(tmp_path, conf)
    broker.start()
    report = probe_routes([Party(name="node", address=BrokerAddress(url=broker.url))], [*routes, long])
    broker.stop()
    assert [result.unseen_by for result in report.results] == [()] * 20 + [("node",)]
    (left_out,) = report.limits
    assert "is skipped: a packet of 213 bytes; the broker takes at most 200" in left_out


def test_a_node_and_a_training_user_of_the_site_reach_each_other(check_site: Callable[..., Report]) -> None:
    report = check_site()
    assert report.faults == []
    assert report.found[TRAINING] == "6 of 6 arrive or are accepted"


def test_a_training_user_whom_the_rules_do_not_fit_is_told(check_site: Callable[..., Report]) -> None:
    report = check_site(user="alice.smith")
    (status,) = [fault for fault in report.faults if "/status: " in fault]
    assert "user/alice~2esmith/" in status
    assert "the training may not publish it" in status
    assert "no run is seen" in status


def test_a_node_whom_the_rules_do_not_fit_is_told(check_site: Callable[..., Report]) -> None:
    faults = check_site(node="gpu.02").faults
    assert any("node/gpu~2e02/gpu/" in fault and "the controller may not publish it" in fault for fault in faults)


def test_a_wrong_password_of_the_training_is_told(check_site: Callable[..., Report], site: SiteBroker) -> None:
    (fault,) = check_site(password="wrong").faults
    assert "does not accept user 'alice' with this password" in fault
    assert str(site.ports["trainings"]) in fault


def test_without_credentials_of_a_training_only_the_node_is_checked(
    check: Callable[..., Report], site: SiteBroker, tmp_path: Path
) -> None:
    password_file = written(tmp_path / "password", password_of("gpu01"))
    bus = ["bus.username=gpu01", f"bus.password_file={password_file}", f"bus.ca_file={site.ca_file}"]
    report = check(site.url("nodes"), "node.name=gpu01", *bus)
    assert report.faults == []
    assert report.found[TRAINING].startswith("not checked: set GRIDCHASE_BROKER")


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # amqtt forgets to close who speaks MQTT 5
async def test_everything_arrives_through_the_built_in_broker(check: Callable[..., Report]) -> None:
    async with embedded_broker(prefer="amqtt") as running:
        report = await asyncio.to_thread(check, running.url)
    assert report.faults == []


def test_orders_on_a_broker_that_lets_in_everybody_are_a_fault(
    check: Callable[..., Report], broker: Mosquitto, tmp_path: Path
) -> None:
    password_file = written(tmp_path / "node-password", "secret")
    as_node = ("bus.username=n1", f"bus.password_file={password_file}")
    assert check(broker.url, *as_node).faults == []
    (fault,) = check(broker.url, *as_node, "orders.over_bus=true").faults
    assert "this broker takes orders from whoever has no password" in fault
    assert takes_orders_from_anybody(BusConfig(url=broker.url, username="n1"), "n1", "secret") is True


def test_where_rules_forbid_it_whoever_has_no_password_may_be_let_in(
    check: Callable[..., Report], tmp_path: Path
) -> None:
    (rules := tmp_path / "acl").write_text("topic read gridchase/v1/#\n\nuser n1\ntopic readwrite gridchase/v1/#\n")
    conf = f"listener {{port}} 127.0.0.1\nallow_anonymous true\nacl_file {rules}\npersistence false\nlog_dest stderr\n"
    broker = Mosquitto(tmp_path, conf)
    broker.start()
    try:
        as_node = ("bus.username=n1", f"bus.password_file={written(tmp_path / 'node-password', 'secret')}")
        assert check(broker.url, *as_node, "orders.over_bus=true").faults == []
        bus = BusConfig(url=broker.url, username="n1")
        assert takes_orders_from_anybody(bus, "n1", "secret") is False
        deaf = BusConfig(url=broker.url, username="n2")  # whose own messages do not come back either
        assert takes_orders_from_anybody(deaf, "n2", "secret") is None
        broker.stop()
        assert takes_orders_from_anybody(bus, "n1", "secret") is None
    finally:
        broker.stop()
