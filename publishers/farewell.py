"""The end of the interpreter: says `finished` for every run that nobody closed, and why where memory was short."""

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


def _out_of_memory() -> BaseException | None:
    """Return the exception that ends the interpreter, where it is one for want of a device's memory.

    At a prompt it may be an old one: whoever sits there has gone on since.
    """
    last: BaseException | None = getattr(sys, "last_value", None)
    is_interactive = hasattr(sys, "ps1") or bool(sys.flags.interactive)
    return last if last is not None and not is_interactive and is_out_of_device_memory(type(last)) else None


@atexit.register
def _say_finished() -> None:
    """Say `finished` for every run that nobody closed. The last will covers every end that does not get here."""
    deadline_s = time.monotonic() + CLOSE_TIMEOUT_S
    fault = _out_of_memory()
    senders = [sender for sender in list(_SENDERS) if not sender.closed]
    for sender in senders:
        if fault is not None and sender.conversation.has_asked and not sender.has_trained:
            sender.add_failure("out_of_memory", fault)
        sender.request_close(reached=None)
    for sender in senders:
        sender.wait_closed(deadline_s - time.monotonic())
