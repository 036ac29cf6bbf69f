"""Runs with a target, whose batch size a policy service has chosen."""

from publishers import Publisher
from publishers.wire import TrialAnswer
from tests.publishers.fake_connection import FakeConnection, publisher_on

SIZES = [8, 16, 32, 64]


def service() -> FakeConnection:
    """Return a connection to a policy service that always answers 16."""
    return FakeConnection(
        answers=lambda request: [
            TrialAnswer(run=request.run, correlation=request.correlation, batch_size=16, reason="explored", detail="")
        ]
    )


def aimed(connection: FakeConnection, target: float, mode: str = "max") -> Publisher:
    publisher = publisher_on(connection)
    publisher.batch_size(SIZES, default=32, target=target, target_mode=mode)  # type: ignore[arg-type]
    return publisher
