"""The end of the interpreter: says `finished` for every run that nobody closed, or how an exception has ended it."""

import atexit
import sys
import time
import weakref

from publishers.sender import CLOSE_TIMEOUT_S, Sender
from publishers.trial import is_out_of_device_memory

_SENDERS: "weakref.WeakSet[Sender]" = weakref.WeakSet()


def remember(sender: Sender) -> None:
    """Let a sender take leave when the interpreter exits, if it has not done so before."""
    _SENDERS.add(sender)


def take_leave(sender: Sender, error: BaseException | None) -> None:
    """Let a sender say how the run has ended, with this exception (None: without one); not waited for.

    An exception breaks a training off, which then says as little of its batch size as one that is killed: it is `lost`.
    It has ended none the less where it had reached its target, was told to stop, or wanted to exit without a fault.
    Want of a device's memory is an end, too: within the first epoch, that of the batch size.
    """
    is_fault = error is not None and not _is_orderly(error)
    is_short_of_memory = error is not None and is_out_of_device_memory(type(error))
    if is_short_of_memory and not sender.has_trained:
        sender.add_failure("out_of_memory", error)
    sender.request_close(reached=None, is_broken_off=is_fault and not (is_short_of_memory or sender.is_at_its_end))


def _is_orderly(error: BaseException) -> bool:
    """Return whether an exception is a way to end, rather than a fault."""
    code = error.code if isinstance(error, SystemExit) else 1
    return isinstance(error, GeneratorExit) or code is None or (isinstance(code, int) and code == 0)


def _last_exception() -> BaseException | None:
    """Return the exception that ends the interpreter, if any.

    At a prompt it may be an old one: whoever sits there has gone on since.
    """
    last: BaseException | None = getattr(sys, "last_value", None)
    is_interactive = hasattr(sys, "ps1") or bool(sys.flags.interactive)
    return None if is_interactive else last


@atexit.register
def _say_finished() -> None:
    """Take leave for every run that nobody closed. The last will covers every end that does not get here."""
    deadline_s = time.monotonic() + CLOSE_TIMEOUT_S
    error = _last_exception()
    senders = [sender for sender in list(_SENDERS) if not sender.closed]
    for sender in senders:
        take_leave(sender, error)
    for sender in senders:
        sender.wait_closed(deadline_s - time.monotonic())
