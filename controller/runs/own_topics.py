"""The topics of this node's GPUs on the bus: proves that what is published arrives, and clears what has ended.

A broker drops what its access rules forbid without a word: MQTT 3.1.1 has no answer for that. So the controller hears
its own messages, too, and where they do not come back, `trouble` says so. The last energy message of a GPU is cleared
when the controller stops, and so is what is retained of GPUs that it does not measure any more.
"""

import asyncio
import logging
from collections.abc import Callable, Collection

from controller.config import Config
from controller.ports import Bus, TopicPublisher
from publishers.messages.reports import GpuEnergy
from publishers.messages.topics import PROBE, Topics
from publishers.shared.log_once import FaultLog

ECHO_TIMEOUT_S = 10.0
CHECK_PERIOD_S = 1.0
LEAVES = ("energy", "limit")

_LOGGER = logging.getLogger(__name__)


class OwnTopics:
    """The retained topics of this node's GPUs.

    Args:
        config: of the node, and of its bus.
        bus: where to publish.
        gpu_uuids: the GPUs.
    """

    def __init__(self, config: Config, bus: Bus, gpu_uuids: Collection[str]) -> None:
        self._node = config.node.name
        self._username = config.bus.username
        self._bus = bus
        self._topics = Topics(config.bus.root)
        self._gpu_uuids = frozenset(gpu_uuids)
        self._unheard_since_s: float | None = None
        """When the oldest message was sent that has not come back, on the clock of the event loop [s]."""
        self._is_sent = asyncio.Event()
        self._fault_log = FaultLog(_LOGGER, recovered="what is published reaches the broker again", log_changes=False)

    def add_gpu(self, gpu_uuid: str) -> None:
        """Take in a GPU that answers only now."""
        self._gpu_uuids |= {gpu_uuid}

    @property
    def trouble(self) -> str | None:
        """Return why nobody hears us although the broker is connected, in a sentence; None while all is well."""
        now_s = asyncio.get_running_loop().time()
        if self._unheard_since_s is None or now_s - self._unheard_since_s < ECHO_TIMEOUT_S:
            return None
        user = f"user {self._username!r}" if self._username else "a client without a user"
        return (
            f"nothing that is published comes back from the broker: {user} may not write, or not read,"
            f" {self._topics.gpu(self._node, None, 'energy')}: compare bus.username and node.name with its access rules"
        )

    def publisher_of_energy(self, gpu_uuid: str, gpu_index: int) -> Callable[[GpuEnergy], None]:
        """Return the function that publishes the energy of a GPU."""
        topic = self._topics.gpu(self._node, gpu_uuid, "energy")
        publisher = TopicPublisher[GpuEnergy](
            self._bus, topic, qos=0, node=self._node, gpu_uuid=gpu_uuid, gpu_index=gpu_index
        )

        def publish(message: GpuEnergy) -> None:
            if self._unheard_since_s is None and self._bus.connected:
                self._unheard_since_s = asyncio.get_running_loop().time()
                self._is_sent.set()
            publisher.publish(message)

        return publish

    async def run(self) -> None:
        """Listen until cancelled, then clear the energies: nobody measures these GPUs any more."""
        for leaf in LEAVES:
            self._bus.subscribe(self._topics.gpu(self._node, None, leaf), self._hear, qos=0)
        try:
            while True:
                await self._is_sent.wait()
                self._is_sent.clear()
                while self._unheard_since_s is not None:
                    await asyncio.sleep(CHECK_PERIOD_S)  # a deadline of the network: in real seconds, also in the demo
                    self._check()
        finally:
            for uuid in self._gpu_uuids:
                self._clear(self._topics.gpu(self._node, uuid, "energy"))

    def _hear(self, topic: str, payload: bytes) -> None:
        parsed = self._topics.parse(topic)
        if parsed is None or parsed.node != self._node or not payload:
            return
        if parsed.gpu_uuid in self._gpu_uuids:
            if parsed.leaf == "energy":
                self._unheard_since_s = None
        elif parsed.leaf in LEAVES and not str(parsed.gpu_uuid).startswith(PROBE):
            # amqtt also delivers what was not subscribed to
            _LOGGER.info("GPU %s is not measured on this node any more: clearing %s", parsed.gpu_uuid, topic)
            self._clear(topic)

    def _check(self) -> None:
        if not self._bus.connected:
            self._unheard_since_s = None
        if trouble := self.trouble:
            self._fault_log.report(trouble)
        elif self._unheard_since_s is None:
            self._fault_log.clear()

    def _clear(self, topic: str) -> None:
        self._bus.publish(topic, b"", qos=1, retain=True)
