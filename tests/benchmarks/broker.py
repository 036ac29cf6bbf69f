"""What a flood of 30 s does to the broker's memory, with and without the limits of the shipped file.

`python -m tests.benchmarks.broker` prints the table of broker.md. One training user floods through TLS as fast as the
broker takes it; one controller is stuck: it subscribes to everything that it may, and reads nothing.
"""

import re
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

from tests.live.broker.site import DEPLOY, SiteBroker, password_of, site_broker
from tests.live.hostile.raw_client import Door, RawClient
from tests.live.hostile.tenant import ATTEMPTS
from tests.live.hostile.world import NODE, ROOT, TENANT, World

DURATION_S = 30.0
FLOODS = (
    *("flood_iterations_at_qos_0", "flood_statuses_at_qos_1", "flood_with_large_messages"),
    *("flood_oneself_and_never_read", "flood_with_30_000_retained_statuses"),
)
_LIMITS = ("memory_limit", "max_packet_size", "max_queued_bytes", "max_inflight_bytes", "max_queued_messages")


def main() -> None:
    """Print the table."""
    text = (DEPLOY / "site.conf").read_text()
    shipped = {found[0]: found[0] for name in _LIMITS if (found := re.search(rf"^{name} .*$", text, re.MULTILINE))}
    unlimited = dict.fromkeys(shipped, "") | {
        line: "max_queued_messages 100000" for line in shipped if "messages" in line
    }
    sys.stdout.write(
        "| flood of 30 s | messages | without limits, MiB | messages | shipped file, MiB |\n|---|---|---|---|---|\n"
    )
    for flood in FLOODS:
        cells = [
            f"{sent:,} | {peak_mib:,.0f}" for sent, peak_mib in (measure(flood, unlimited), measure(flood, shipped))
        ]
        sys.stdout.write(f"| {flood.replace('_', ' ')} | {' | '.join(cells)} |\n")
        sys.stdout.flush()


def measure(flood: str, conf: Mapping[str, str]) -> tuple[int, float]:
    """Return how many messages were sent, and the highest resident memory of the broker [MiB]."""
    users = {"trainings": [TENANT], "nodes": [NODE]}
    with tempfile.TemporaryDirectory() as name, site_broker(Path(name), users, conf=conf) as site:
        world = _world(site)
        stuck = RawClient(Door(port=site.ports["nodes"], ca_pem=world.ca_pem))
        assert stuck.log_in(NODE, password_of(NODE)) == 0
        stuck.subscribe(f"{ROOT}/host/#")
        ended, peak_mib = threading.Event(), [0.0]

        def watch() -> None:
            while not ended.wait(0.1):
                peak_mib[0] = max(peak_mib[0], site.process.rss_mib)

        watcher = threading.Thread(target=watch)
        watcher.start()
        sent = ATTEMPTS[flood](world)["messages"]
        ended.set()
        watcher.join()
        return int(str(sent)), peak_mib[0]


def _world(site: SiteBroker) -> World:
    nothing = {"boot_id": "boot", "gpu_uuids": ["GPU-0", "GPU-1"], "victim_pid": 0, "controller_pid": 0, "http_port": 0}
    nowhere = dict.fromkeys(("state_dir", "broker_dir", "shared_dir", "link_target"), "")
    ca_pem, ports = site.ca_file.read_text(), site.ports
    return World(ports=ports, ca_pem=ca_pem, password=password_of(TENANT), duration_s=DURATION_S, **nothing, **nowhere)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
