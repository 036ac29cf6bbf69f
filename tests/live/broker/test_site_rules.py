"""The shipped rules of a site on a real mosquitto: every cell of the table in the docs, and the doors."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.live.broker.rules import OWNER, ROLES, RULES, Role, access, table
from tests.live.broker.site import DEPLOY, DOORS, SiteBroker, SiteClient, password_of, site_broker
from tests.live.conftest import wait_until

pytestmark = pytest.mark.live
ROOT = "gridchase/v1"
DOCS = DEPLOY.parents[1] / "docs"
USERS = {
    "trainings": ["alice", "gpu01", "policy"],
    "nodes": ["gpu01", "alice"],
    "services": ["policy", "dashboard", "web", "operator"],
}
DOOR_AND_USER: dict[Role, tuple[str, str]] = {
    "training": ("trainings", "alice"),
    "node": ("nodes", "gpu01"),
    "policy": ("services", "policy"),
    "dashboard": ("services", "dashboard"),
    "web": ("services", "web"),
    "operator": ("services", "operator"),
}
NAMES = {"job": "resnet50", "run": "r1", "rank": "3", "boot_id": "b00t", "uuid": "GPU-1", "zone": "DE"}
OWN = NAMES | {"user": "alice", "node": "gpu01", "random": "0a", "other": "log"}
OTHERS = NAMES | {"user": "bob", "node": "gpu02", "random": "0b", "other": "dump"}


class Seen(NamedTuple):
    """What a real broker let pass: by role and topic."""

    written: set[tuple[Role, str]]
    read: set[tuple[Role, str]]


def topic_of(template: str, whose: str) -> str:
    names: Mapping[str, str] = OWN if whose == "own" else OTHERS
    return f"{ROOT}/" + re.sub(r"<(\w+)>", lambda found: names[found[1]], template)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SiteBroker]:
    with site_broker(tmp_path_factory.mktemp("site"), USERS, watched=True) as site:
        yield site


@pytest.fixture(scope="module")
def seen(site: SiteBroker) -> Seen:
    """Let every role write and read every topic, its own and others', and return what passed."""
    topics = [topic_of(template, whose) for template in RULES for whose in ("own", "other")]
    seen = Seen(set(), set())
    with site.client("watcher") as watcher:
        watcher.subscribe(f"{ROOT}/#")
        for role, (door, user) in DOOR_AND_USER.items():
            with site.client(door, user) as client:
                assert not client.refusal
                client.subscribe(*topics)
                for topic in topics:
                    watcher.publish(topic, f"for {role}".encode())
                client.subscribe(f"{ROOT}/fence")
                seen.read.update(
                    (role, topic) for topic in client.received if f"for {role}".encode() in client.received[topic]
                )
                for topic in topics:
                    client.publish(topic, f"by {role}".encode())
                watcher.subscribe(f"{ROOT}/fence")
                seen.written.update(
                    (role, topic) for topic in topics if f"by {role}".encode() in watcher.received[topic]
                )
    return seen


@pytest.mark.parametrize("role", ROLES)
def test_a_role_writes_and_reads_what_the_table_says(seen: Seen, role: Role) -> None:
    wrong = []
    for template in RULES:
        for whose in ("own", "other"):
            allowed, cell = access(role, template), (role, topic_of(template, whose))
            is_own = whose == "own" and f"<{OWNER.get(role)}>" in template
            may = [granted == "any" or (granted == "own" and is_own) for granted in (allowed.write, allowed.read)]
            if may != [cell in seen.written, cell in seen.read]:
                wrong.append(cell)
    assert wrong == []


def test_the_table_in_the_docs_is_what_was_tested() -> None:
    safety = (DOCS / "safety.md").read_text().splitlines()
    first = safety.index(table()[0])
    assert safety[first : first + len(table())] == table()


def test_every_topic_of_the_docs_is_in_the_table() -> None:
    documented = re.findall(r"^\| `([^`]+/[^`]+)` \|", (DOCS / "topics.md").read_text(), re.MULTILINE)
    assert documented
    assert [topic for topic in documented if topic not in RULES] == []


def test_no_rule_of_the_files_is_missing_from_the_table() -> None:
    for door in DOORS:
        for line in (DEPLOY / f"{door}.acl").read_text().splitlines():
            if line.startswith(("pattern", "topic")):
                granted = line.split()[-1].removeprefix(f"{ROOT}/").replace("%u", "+")
                assert any(_matches(granted, template) for template in RULES), line


def _matches(granted: str, template: str) -> bool:
    wanted = re.sub(r"<\w+>", "+", template)
    return granted == wanted


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("topic", ["#", "$SYS/#", f"{ROOT}/#", f"{ROOT}/host/+/user/+/job/+/run/+/rank/+/status"])
def test_a_wildcard_delivers_no_more_than_the_rules_allow(site: SiteBroker, door: str, topic: str) -> None:
    user = {"trainings": "alice", "nodes": "gpu01", "services": "dashboard"}[door]
    role: Role = {"trainings": "training", "nodes": "node", "services": "dashboard"}[door]  # type: ignore[assignment]
    with site.client("watcher") as watcher, site.client(door, user) as client:
        client.subscribe(topic)
        for template in RULES:
            watcher.publish(topic_of(template, "other"), b"others'")
        client.subscribe(f"{ROOT}/fence")
        allowed = {topic_of(template, "other") for template in RULES if access(role, template).read == "any"}
        assert set(client.received) <= allowed


@pytest.mark.parametrize(
    ("door", "user", "password"),
    [
        *((door, "", "guess") for door in DOORS),
        *((door, "alice", "wrong") for door in DOORS),
        ("trainings", "dashboard", password_of("dashboard")),
        ("nodes", "policy", password_of("policy")),
        ("services", "gpu01", password_of("gpu01")),
        ("services", "alice", password_of("alice")),
    ],
)
def test_a_password_opens_its_own_door_only(site: SiteBroker, door: str, user: str, password: str) -> None:
    with site.client(door, user, password=password) as client:
        assert "authori" in client.refusal.lower()


def test_a_training_user_named_like_a_node_is_no_node(site: SiteBroker) -> None:
    topics = [topic_of(template, "own") for template in RULES if template.startswith("node/")]
    with site.client("watcher") as watcher, site.client("trainings", "gpu01") as impostor:
        watcher.subscribe(*topics)
        for topic in topics:
            impostor.publish(topic, b"forged")
        watcher.subscribe(f"{ROOT}/fence")
        assert watcher.received == {}


@pytest.mark.parametrize(("user", "passes"), [("alice", True), ("bob", False)])
def test_a_last_will_obeys_the_rules_of_its_owner(site: SiteBroker, user: str, passes: bool) -> None:
    will, fence = (topic_of("host/<boot_id>/user/<user>/job/<job>/run/<run>/rank/0/status", "own"), f"{ROOT}/fence")
    will = will.replace("/user/alice/", f"/user/{user}/")
    with site.client("watcher") as watcher:
        watcher.subscribe(will)
        dying = site.client("trainings", "alice")
        dying.paho.will_set(will, b"lost", 1, retain=False)
        with dying:
            dying.subscribe(fence)
            dying.vanish()
        if passes:
            wait_until(lambda: watcher.received.get(will) == [b"lost"])
        else:
            with site.client("trainings", "alice") as later:  # the broker has noticed the end when it serves the next
                later.subscribe(fence)
            watcher.subscribe(fence)
            assert watcher.received == {}


@pytest.mark.parametrize("whose", ["own", "other"])
def test_a_training_clears_its_own_retained_messages_only(site: SiteBroker, whose: str) -> None:
    topic = topic_of("host/<boot_id>/user/<user>/job/<job>/run/<run>/rank/0/status", whose)
    with site.client("watcher") as watcher, site.client("trainings", "alice") as alice:
        watcher.publish(topic, b"running", retain=True)
        alice.publish(topic, b"", retain=True)
        with site.client("watcher") as later:
            later.subscribe(topic, f"{ROOT}/fence")
            later.subscribe(f"{ROOT}/fence")
            assert (later.received == {}) == (whose == "own")
        watcher.publish(topic, b"", retain=True)


def test_retained_statuses_survive_a_restart_of_the_broker(tmp_path: Path) -> None:
    topic = topic_of("host/<boot_id>/user/<user>/job/<job>/run/<run>/rank/0/status", "own")
    with site_broker(tmp_path, USERS) as site:
        with site.client("trainings", "alice") as alice:
            alice.publish(topic, b"running", retain=True)
        site.process.stop()
        site.start()
        with site.client("nodes", "gpu01") as node:
            node.subscribe(topic)
            wait_until(lambda: node.received == {topic: [b"running"]})


@pytest.mark.parametrize("user", ["a+b", "#", "+", "bob/job", "alice.smith", "bob/job/x/run"])
def test_a_user_whose_name_does_not_fit_is_refused_everything(tmp_path: Path, user: str) -> None:
    others = [topic_of(template, "other") for template in RULES]
    with site_broker(tmp_path, {"trainings": [user]}, watched=True) as site, site.client("watcher") as watcher:
        watcher.subscribe(*others)
        with site.client("trainings", user) as client:
            if not client.refusal:
                _publish_all(client, others)
        watcher.subscribe(f"{ROOT}/fence")
        assert watcher.received == {}


def _publish_all(client: SiteClient, topics: list[str]) -> None:
    for topic in topics:
        client.publish(topic, b"forged")
