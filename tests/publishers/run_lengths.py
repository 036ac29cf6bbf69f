"""Runs of any length, and what they say of it."""

from publishers import Publisher
from publishers.iterations import PublishedIterable
from tests.publishers.fake_connection import FakeConnection


def passes(loader: PublishedIterable[int], *, left_after: int | None = None) -> None:
    """Go through a loader, or leave it after some batches, each trained."""
    for n, _ in enumerate(loader, 1):
        if n == left_after:
            loader.pause()
            break


def totals(connection: FakeConnection) -> list[int | None]:
    """Return what was published."""
    return [status.total_iterations for status in connection.statuses()]


def told(publisher: Publisher) -> int | None:
    """Return what is said now."""
    return publisher.length.total_iterations
