"""A connection to a broker, as the training side uses it; `publishers.training.paho_client` has the real one."""

from collections.abc import Callable
from typing import Protocol

from publishers.messages.codec import Outgoing
from publishers.mqtt.broker_address import BrokerAddress


class Receipt(Protocol):
    """The fate of a published message."""

    @property
    def done(self) -> bool:
        """Return whether it has left (QoS 0), was acknowledged (QoS 1), is refused, or is lost."""
        ...

    @property
    def lost(self) -> bool:
        """Return whether it is known to be lost, so that it may be sent again."""
        ...

    @property
    def refused(self) -> bool:
        """Return whether the broker does not take it, so that it must not be sent again."""
        ...


class Connection(Protocol):
    """What the worker needs of a connection. All calls come from one thread; none raises."""

    @property
    def connections(self) -> int:
        """Return how often the broker has accepted the connection so far."""
        ...

    @property
    def failures(self) -> int:
        """Return how many attempts have failed, and connections been lost, so far."""
        ...

    def is_connected(self) -> bool:
        """Return whether the broker is connected now."""
        ...

    def is_subscribed(self) -> bool:
        """Return whether the broker has answered every subscription on this connection."""
        ...

    @property
    def failure(self) -> str | None:
        """Return why the last attempt failed or the connection ended; None before, and while connected."""
        ...

    def work(self, timeout_s: float = 0.0) -> None:
        """Do what is due (connect, read, write, ping); wait for the network for at most `timeout_s`."""
        ...

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> Receipt:
        """Send a message, or as much of it as the network takes now."""
        ...

    def allow(self, topic: str) -> None:
        """Try the next message at a topic, whatever was refused; from now on, messages go before subscriptions."""
        ...

    def subscribe(self, topic: str, handler: Callable[[bytes], None]) -> None:
        """Call `handler(payload)` for each message at `topic`, at QoS 1, on this connection and every later one.

        `handler` is called within `work`, and must not raise.
        """
        ...

    def retry_now(self) -> None:
        """Let the next `work` try to connect at once if the broker is away, and then retry with short delays."""
        ...

    def close(self) -> None:
        """Disconnect, so that the broker does not publish the last will."""
        ...


Connect = Callable[[BrokerAddress, Outgoing], Connection]
"""Opens a connection to a broker, with a last will."""
