"""The ends of runs that nobody closed, or that an exception has ended: `finished`, or `lost`.

A run that nobody closed ends with the interpreter; or before, when its publisher is collected, or another one takes its
place, as where the cell of a notebook is run again.
"""

import atexit
import logging
import sys
import threading
import time
import weakref
from typing import NamedTuple

from publishers.training.settings import Settings
from publishers.training.trial import is_out_of_device_memory
from publishers.training.worker import CLOSE_TIMEOUT_S, PublisherWorker

_LOGGER = logging.getLogger("publishers")


class RunSlot(NamedTuple):
    """What only one run can be at: the training of a job in a thread, on its GPUs."""

    job: str
    rank: int
    gpus: tuple[str | int, ...]
    thread: "weakref.ref[threading.Thread]"


_SENDERS: "weakref.WeakKeyDictionary[PublisherWorker, tuple[RunSlot | None, int]]" = weakref.WeakKeyDictionary()
"""The place of each run, and the exception that was the last one when it began."""


def run_slot(settings: Settings) -> RunSlot | None:
    """Return the place of a run that nobody has named; one that has a name may be meant to be beside another."""
    if not settings.run_is_random:
        return None
    return RunSlot(settings.job, settings.rank, tuple(settings.gpus), weakref.ref(threading.current_thread()))


def end_replaced_runs(place: RunSlot | None) -> None:
    """End the runs that are still at a place, since another one takes it; not waited for."""
    try:
        found = list(_SENDERS.items())
    except RuntimeError:  # another thread has begun or ended a run in this moment
        found = []
    for sender, (at, before) in found:
        if place is not None and at == place and not sender.closed:
            _LOGGER.info("run %s of job %s ends, since another one begins", sender.run, place.job)
            end_run(sender, _exception_since(before))


def end_with_owner(owner: object, sender: PublisherWorker, place: RunSlot | None) -> None:
    """Let a sender take leave when its owner is collected, or the interpreter exits, if it has not done so before."""
    before = id(getattr(sys, "last_value", None))
    _SENDERS[sender] = place, before
    weakref.finalize(owner, _abandon, sender, before).atexit = False


def _abandon(sender: PublisherWorker, before: int) -> None:
    """Take leave of what nobody can publish for any more; within a collection, where no lock may be taken."""
    end_run(sender, _exception_since(before), wakes=False)


def _exception_since(before: int) -> BaseException | None:
    """Return the exception that has come to the prompt since a run began, which may have ended it."""
    last: BaseException | None = getattr(sys, "last_value", None)
    return last if id(last) != before else None


def end_run(sender: PublisherWorker, error: BaseException | None, *, wakes: bool = True) -> None:
    """Let a sender say how the run has ended, with this exception (None: without one); not waited for.

    An exception breaks a training off, which then says as little of its batch size as one that is killed: it is `lost`.
    It has ended none the less where it had reached its target, was told to stop, or wanted to exit without a fault.
    Want of a device's memory is an end, too: within the first epoch, that of the batch size.
    """
    if sender.closed:
        return
    is_fault = error is not None and not _is_orderly(error)
    is_short_of_memory = error is not None and is_out_of_device_memory(type(error))
    if is_short_of_memory and not sender.has_trained:
        sender.add_failure("out_of_memory", error)
    is_broken_off = is_fault and not (is_short_of_memory or sender.is_at_its_end)
    sender.request_close(reached=None, is_broken_off=is_broken_off, wakes=wakes)


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
    """Take leave for every run that nobody closed, and wait for those that are about it, too.

    The last will covers every end that does not get here.
    """
    deadline_s = time.monotonic() + CLOSE_TIMEOUT_S
    error = _last_exception()
    senders = list(_SENDERS)
    for sender in senders:
        end_run(sender, error)
    for sender in senders:
        sender.wait_closed(deadline_s - time.monotonic())
