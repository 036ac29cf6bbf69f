"""Whether a broker takes orders from whoever has no password: then none that comes over it is obeyed.

A probe logs in as the node and as nobody, and sends orders as nobody about a run and a GPU that there are not.
"""

import secrets
from collections.abc import Sequence
from typing import Final

from publishers.messages.topics import PROBE, RunKey, Topics
from publishers.mqtt.broker_address import BrokerAddress
from publishers.mqtt.bus_config import BUS_SETTINGS, BusConfig
from publishers.mqtt.topic_probe import Party, Route, RouteResult, probe_routes

ANYBODY: Final = "anybody"
OPEN_DOOR: Final = (
    "orders.over_bus = true, and this broker takes orders from whoever has no password: anybody could hold the limit of"
    " any run; set it to false, or take a broker whose rules let operators alone send orders (deploy/mosquitto)"
)


def anybody(bus: BusConfig) -> Party:
    """Return whoever has no password, as a client of the broker."""
    return Party(name=ANYBODY, address=BrokerAddress(url=bus.url, ca_file=bus.ca_file), names=BUS_SETTINGS)


def order_routes(topics: Topics, key: RunKey, *, node: str, reader: str) -> list[Route]:
    """Return the ways of orders to a node, about a run and a GPU; there are none of these names, so nothing is done."""
    gpu_uuid, note = f"{PROBE}-{key.run}", b'{"note":"check"}'
    ways = {
        topics.run(key, "set"): topics.run_filter("set"),
        topics.gpu(node, gpu_uuid, "set"): topics.gpu(node, None, "set"),
    }
    return [
        Route(topic=topic, writer=ANYBODY, readers={reader: topic_filter}, payload=note)
        for topic, topic_filter in ways.items()
    ]


def open_doors(results: Sequence[RouteResult]) -> list[RouteResult]:
    """Return the orders that have arrived from whoever has no password."""
    return [each for each in results if each.route.writer == ANYBODY and not (each.refusal or each.unseen_by)]


def takes_orders_from_anybody(bus: BusConfig, node: str, password: str) -> bool | None:
    """Return whether a broker does, within some seconds.

    None: that is not known, as the broker does not let in the node, or is so slow that not even a message of the node's
    own has come back.

    Args:
        bus: where the broker is, and who the node is there.
        node: the node.
        password: of the node.
    """
    address = BrokerAddress(url=bus.url, username=bus.username, password=password, ca_file=bus.ca_file)
    own, key, topics = Party(name="node", address=address, names=BUS_SETTINGS), _nobodys_run(), Topics(bus.root)
    topic = topics.grid(f"{PROBE}-{key.run}", "carbon")
    control = Route(topic=topic, writer=own.name, readers={own.name: topic}, payload=b'{"note":"check"}')
    routes = [*order_routes(topics, key, node=node, reader=own.name), control]
    report = probe_routes([own, anybody(bus)], routes)
    if open_doors(report.results):
        return True
    came_back = any(each.route is control and not (each.refusal or each.unseen_by) for each in report.results)
    return False if came_back else None


def _nobodys_run() -> RunKey:
    return RunKey("nobody", PROBE, secrets.token_hex(6))
