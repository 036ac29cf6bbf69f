"""What the policy service needs of the message bus."""

from typing import Protocol

from publishers.mqtt.client import Handler


class MessageBus(Protocol):
    """The connection to the broker; nothing here waits for it."""

    def subscribe(self, topic_filter: str, handler: Handler, *, qos: int = 0) -> None:
        """Call `handler(topic, payload)` for each message under `topic_filter`."""
        ...

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> None:
        """Send a message, or keep it until the broker is back."""
        ...
