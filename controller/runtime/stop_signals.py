"""The stop signals: SIGINT, SIGTERM, SIGHUP (a terminal or ssh session was closed), SIGQUIT, and others that end us.

SIGXCPU comes when `ulimit -t` is used up, SIGUSR1 and SIGUSR2 from batch systems before a job's time is over.
Unhandled, they end a process at once.

All ask for an orderly stop, and only the first one counts. One that was ignored when the process started stays ignored:
that is what `nohup` is for.
"""

import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncio

STOP_SIGNALS: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGXCPU,
)

_LOGGER = logging.getLogger(__name__)


class _StopSignals:
    """The handler of the stop signals: there is one in a process, as there is one of each signal.

    Attributes:
        received: the first stop signal, or None.
        on_stop: what to do about it; None: nothing yet, as an exception just anywhere would hit half-made objects.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.on_stop: Callable[[signal.Signals], object] | None = None

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Act on the first stop signal; later ones would only disturb the stop.

        A signal that comes between the check and the assignment passes the check, too, so `on_stop` must bear a
        second call: no Python handler can prevent that.
        """
        if self.received is not None:
            return
        self.received = signal.Signals(number)
        if self.on_stop is not None:
            self.on_stop(self.received)

    def install(self) -> dict[signal.Signals, Any]:
        """Handle every stop signal that is not ignored; return the former handlers, empty if this was done before."""
        before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        changed = {number: old for number, old in before.items() if old not in {signal.SIG_IGN, self.handle}}
        for number in changed:
            signal.signal(number, self.handle)
        return changed

    def reset(self, handlers: dict[signal.Signals, Any]) -> None:
        """Put former handlers back."""
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if handlers:
            self.received = self.on_stop = None


_SIGNALS: Final = _StopSignals()


def handle_stop_signals() -> None:
    """Note the first stop signal until a verb takes over: for the very start of the process."""
    _SIGNALS.install()


def is_stop_requested() -> bool:
    """Return whether a stop signal has come."""
    return _SIGNALS.received is not None


def default_stop_signals() -> None:
    """Give the stop signals their default actions back: for a verb that holds nothing.

    Raises:
        KeyboardInterrupt: one has come already.
    """
    is_requested = is_stop_requested()
    defaults = dict.fromkeys(STOP_SIGNALS, signal.SIG_DFL) | {signal.SIGINT: signal.default_int_handler}
    _SIGNALS.reset({n: handler for n, handler in defaults.items() if signal.getsignal(n) == _SIGNALS.handle})
    if is_requested:
        raise KeyboardInterrupt


def ignore_stop_signals() -> None:
    """Ignore them from here on: Python gives handled ones their default actions back while it ends."""
    for number in STOP_SIGNALS:
        if signal.getsignal(number) == _SIGNALS.handle:
            signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def stopped_by_signals(on_stop: Callable[[], object]) -> Iterator[None]:
    """Call `on_stop`, once, in the event loop, when the first stop signal comes, or at once if it has come before.

    Later ones have no effect, also after the body: what it has begun to give back must not be interrupted.
    """
    import asyncio  # noqa: PLC0415 — the console script imports this module first of all; asyncio takes 60 ms

    loop = asyncio.get_running_loop()
    is_stopping = False

    def stop(number: signal.Signals) -> None:
        loop.call_soon_threadsafe(log_and_stop, number)

    def log_and_stop(number: signal.Signals) -> None:
        """Stop once: the loop, unlike a signal handler, makes one call after the other."""
        nonlocal is_stopping
        if not is_stopping:
            is_stopping = True
            _LOGGER.info("%s: stopping", number.name)
            on_stop()

    with _woken_by_signals(loop):
        earlier, _SIGNALS.on_stop = _SIGNALS.received, stop
        former = _SIGNALS.install()
        if earlier is not None:
            stop(earlier)
        try:
            yield
        finally:
            _SIGNALS.on_stop = _ignore
            _SIGNALS.reset(former)


@contextlib.contextmanager
def stops_deferred() -> Iterator[None]:
    """Finish the body whatever stop signal comes: it gives limits back, and takes a bounded time."""
    _SIGNALS.on_stop = _ignore
    former = _SIGNALS.install()
    try:
        yield
    finally:
        _SIGNALS.reset(former)


def _ignore(_number: signal.Signals) -> None:
    """Do nothing about a stop signal."""


@contextlib.contextmanager
def _woken_by_signals(loop: "asyncio.AbstractEventLoop") -> Iterator[None]:
    """Wake the event loop at each signal: the kernel may deliver it to another thread, but Python handles it in ours.

    The loop's own `add_signal_handler` would do that, too, but between its end and the end of the process a second
    signal would kill us.
    """
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        loop.add_reader(reader, reader.recv, 4_096)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(reader)
