"""Whether a broker takes orders from whoever has no password: then none that comes over it is obeyed.

A probe logs in as the node and as nobody, and sends an order as nobody about a run that there is not.
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


def order_route(topics: Topics, key: RunKey, *, node: str) -> Route:
    """Return the way of an order to the party of a node; no run has this name, so nothing is done."""
    readers = {node: topics.run_filter("set")}
    return Route(topic=topics.run(key, "set"), writer=ANYBODY, readers=readers, payload=b'{"note":"check"}')


def open_doors(results: Sequence[RouteResult]) -> list[RouteResult]:
    """Return the orders that have arrived from whoever has no password."""
    return [each for each in results if each.route.writer == ANYBODY and not (each.refusal or each.unseen_by)]


def takes_orders_from_anybody(bus: BusConfig, password: str) -> bool | None:
    """Return whether a broker does, within some seconds; None: it does not let in the node, so it is not known.

    Args:
        bus: where the broker is, and who the node is there.
        password: of the node.
    """
    own = BrokerAddress(url=bus.url, username=bus.username, password=password, ca_file=bus.ca_file)
    node, key = Party(name="node", address=own, names=BUS_SETTINGS), RunKey("nobody", PROBE, secrets.token_hex(6))
    report = probe_routes([node, anybody(bus)], [order_route(Topics(bus.root), key, node=node.name)])
    return None if node.name in report.faults else bool(open_doors(report.results))
