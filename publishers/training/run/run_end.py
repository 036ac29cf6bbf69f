"""Ends runs that were not closed, or that an exception has ended, as `finished` or `lost`.

A run that was not closed ends with the interpreter; or before, when its publisher is garbage-collected, or another run
replaces it, for example when a notebook cell is run again. A child that `multiprocessing` has forked (also a pool's, or
that of a fork server) ends without the interpreter's own hooks, but calls those of `multiprocessing`.
"""

import atexit
import logging
import os
import sys
import threading
import time
import weakref
from typing import Final, NamedTuple

from publishers.training.frameworks.bootstrap.sitecustomize import RUN, note
from publishers.training.run.launchers import is_child
from publishers.training.run.no_worker import NoWorker
from publishers.training.settings import Settings
from publishers.training.trial.batch_timing import is_out_of_device_memory
from publishers.training.worker import CLOSE_TIMEOUT_S, PublisherWorker

_LOGGER = logging.getLogger("publishers")


class RunSlot(NamedTuple):
    """What only one run can hold: the training of a job in a thread, on its GPUs."""

    job: str
    rank: int | None
    gpus: tuple[str | int, ...] | None
    thread: "weakref.ref[threading.Thread]"


_WORKERS: "weakref.WeakKeyDictionary[PublisherWorker, tuple[RunSlot | None, int]]" = weakref.WeakKeyDictionary()
"""The slot of each run, and the id of `sys.last_value` when it began."""
_HOOKED: Final[set[int]] = set()
"""Processes that call `_end_all_runs` at the end of a child."""
_EXIT_PRIORITY: Final = 10
"""Any number: without one `multiprocessing` forgets a hook at the end of a process."""


def run_slot(settings: Settings) -> RunSlot | None:
    """Return the slot of a run that the training has not named: a named one may be meant to run beside another."""
    given = settings.given
    if given.run is not None:
        return None
    return RunSlot(settings.job, given.rank, given.gpus, weakref.ref(threading.current_thread()))


def end_replaced_runs(slot: RunSlot | None) -> None:
    """End the runs that still hold a slot, since another one takes it; does not wait."""
    try:
        workers = list(_WORKERS.items())
    except RuntimeError:  # another thread has begun or ended a run in this moment
        workers = []
    for worker, (held, last_error_id) in workers:
        if slot is not None and held == slot and not worker.closed:
            _LOGGER.info("run %s of job %s has ended: another run begins", worker.run or "(unknown yet)", slot.job)
            end_run(worker, _error_since(last_error_id))


def end_former_run(worker: PublisherWorker) -> None:
    """End a run since its training begins another one; does not wait."""
    _, last_error_id = _WORKERS.get(worker, (None, 0))
    end_run(worker, _error_since(last_error_id))


def open_worker() -> PublisherWorker | None:
    """Return the worker of a run of this process that has not ended, if there is one."""
    try:
        return next((worker for worker in list(_WORKERS) if not worker.closed), None)
    except RuntimeError:  # another thread has begun or ended a run in this moment
        return None


def end_with_owner(owner: object, worker: PublisherWorker, slot: RunSlot | None) -> None:
    """End a run when its owner is garbage-collected or the interpreter exits, if it has not ended before."""
    note(RUN)
    last_error_id = id(getattr(sys, "last_value", None))
    _WORKERS[worker] = slot, last_error_id
    _end_with_child()
    weakref.finalize(owner, _end_collected, worker, last_error_id).atexit = False


def _end_collected(worker: PublisherWorker, last_error_id: int) -> None:
    """End a run that can no longer be published for; runs within a collection, where no lock may be taken."""
    end_run(worker, _error_since(last_error_id), wakes=False)


def _error_since(last_error_id: int) -> BaseException | None:
    """Return the exception that has come to the prompt since a run began, which may have ended it."""
    last: BaseException | None = getattr(sys, "last_value", None)
    return last if id(last) != last_error_id else None


def end_run(worker: PublisherWorker | NoWorker, error: BaseException | None, *, wakes: bool = True) -> None:
    """Publish how a run has ended, with this exception (None: without one); does not wait.

    An exception breaks a training off: like one that is killed it is `lost`, and is no result for its batch size. It is
    `finished` all the same if it had reached its target, was ordered to stop, or exits without an error.
    A device that is out of memory is an end, too: within the first epoch, that of the batch size.
    """
    if worker.closed:
        return
    is_failure = error is not None and not _is_orderly(error)
    is_out_of_memory = error is not None and is_out_of_device_memory(type(error))
    if is_out_of_memory and not worker.has_trained:
        worker.add_failure("out_of_memory", error)
    is_broken_off = is_failure and not (is_out_of_memory or worker.is_at_its_end)
    worker.request_close(reached=None, is_broken_off=is_broken_off, wakes=wakes)


def _is_orderly(error: BaseException) -> bool:
    """Return whether an exception is a way to end, rather than a failure."""
    code = error.code if isinstance(error, SystemExit) else 1
    return isinstance(error, GeneratorExit) or code is None or (isinstance(code, int) and code == 0)


def _error_at_exit(last_error_id: int) -> BaseException | None:
    """Return the exception that ends the process, if any; at a prompt, one that came there since a run began.

    In a child of `multiprocessing` it is still on its way when the hooks are called.
    """
    if hasattr(sys, "ps1") or bool(sys.flags.interactive):
        return _error_since(last_error_id)
    last: BaseException | None = getattr(sys, "last_value", None)
    return sys.exception() or last


def _end_with_child() -> None:
    """Let a child of `multiprocessing` end its runs when it ends; what its parent has registered is void there."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None and is_child() and os.getpid() not in _HOOKED:
        _HOOKED.add(os.getpid())
        util.Finalize(None, _end_all_runs, exitpriority=_EXIT_PRIORITY)


@atexit.register
def _end_all_runs() -> None:
    """End every run that was not closed, and wait for those that are ending; the last will covers other ends."""
    deadline_s = time.monotonic() + CLOSE_TIMEOUT_S
    workers = list(_WORKERS.items())
    for worker, (_, last_error_id) in workers:
        end_run(worker, _error_at_exit(last_error_id))
    for worker, _ in workers:
        worker.wait_closed(deadline_s - time.monotonic())
