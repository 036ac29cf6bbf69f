"""How a demo ends: on request, or with an error of ours told in a line."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Final, TypeVar

from controller.errors import ControllerError
from policies.providers.base import SignalError
from policies.service.errors import PolicyError
from publishers.mqtt.embedded_broker import BrokerError

T = TypeVar("T")


class DemoError(ControllerError):
    """The demo failed; the message says at what."""


EXPECTED: Final = (ControllerError, BrokerError, SignalError, PolicyError)


async def until_stopped(work: Coroutine[None, None, T]) -> T:
    """Return what a demo comes to; SIGTERM ends it as Ctrl-C does."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await work


def plain(group: ExceptionGroup[Exception]) -> DemoError | None:
    """Return the errors of a group as one, where all of them are expected; None: there is a bug among them."""
    expected, others = group.split(EXPECTED)
    if expected is None or others is not None:
        return None
    return DemoError("; ".join(str(error) for error in _leaves(expected)))


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Return the exceptions of a group, and of the groups in it."""
    return [
        leaf
        for error in group.exceptions
        for leaf in (_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    ]
