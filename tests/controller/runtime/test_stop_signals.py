"""The stop signals: the first one counts, wherever it comes; ignored ones stay ignored."""

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from controller.runtime.stop_signals import (
    _SIGNALS,
    STOP_SIGNALS,
    default_stop_signals,
    handle_stop_signals,
    ignore_stop_signals,
    is_stop_requested,
    stopped_by_signals,
    stops_deferred,
)

DEADLINE_S = 10.0


@pytest.fixture(autouse=True)
def former_handlers() -> Iterator[None]:
    """Leave this process as it was."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number in STOP_SIGNALS:  # an ignored one would stay ignored
        signal.signal(number, signal.SIG_DFL)
    handle_stop_signals()
    with suppress(KeyboardInterrupt):
        default_stop_signals()  # forgets what was received
    for number, handler in before.items():
        signal.signal(number, handler)


def stopped(*numbers: signal.Signals, then: Callable[[], None] = lambda: None) -> int:
    """Return how often a body was stopped that gets these signals."""

    async def main() -> int:
        stop, n_stops = asyncio.Event(), 0

        def on_stop() -> None:
            nonlocal n_stops
            n_stops += 1
            stop.set()

        with stopped_by_signals(on_stop):
            for number in numbers:
                signal.raise_signal(number)
            async with asyncio.timeout(DEADLINE_S):
                await stop.wait()
            then()
            await asyncio.sleep(0)
        return n_stops

    return asyncio.run(main())


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_each_stop_signal_stops(number: signal.Signals) -> None:
    assert stopped(number) == 1


def test_only_the_first_of_several_counts() -> None:
    assert stopped(*STOP_SIGNALS, then=lambda: signal.raise_signal(signal.SIGTERM)) == 1


@pytest.mark.parametrize("line", range(3))
def test_a_signal_at_any_line_of_the_handler_of_another_stops_once(line: int) -> None:
    former, n_lines = sys.gettrace(), 0

    def raise_another(frame: FrameType, event: str, _argument: object) -> Any:  # noqa: ANN401 — as typeshed has it
        nonlocal n_lines
        if frame.f_code is not _SIGNALS.handle.__code__:
            return None
        if event == "line":
            n_lines += 1
            if n_lines == line + 1:
                signal.raise_signal(signal.SIGTERM)
        return raise_another

    sys.settrace(raise_another)
    try:
        assert stopped(signal.SIGINT, then=lambda: sys.settrace(former)) == 1
    finally:
        sys.settrace(former)
    assert n_lines > line


def test_before_a_verb_takes_over_a_signal_is_only_noted() -> None:
    handle_stop_signals()
    assert not is_stop_requested()
    signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGTERM)
    assert is_stop_requested()


def test_a_signal_that_came_before_the_verb_stops_it_when_it_begins() -> None:
    handle_stop_signals()
    signal.raise_signal(signal.SIGTERM)
    assert stopped() == 1


def test_a_signal_that_came_before_a_verb_that_holds_nothing_interrupts_it() -> None:
    handle_stop_signals()
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        default_stop_signals()


def test_an_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    handle_stop_signals()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert stopped(signal.SIGHUP, signal.SIGTERM) == 1
    with suppress(KeyboardInterrupt):
        default_stop_signals()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_after_the_stop_further_signals_have_no_effect() -> None:
    handle_stop_signals()
    assert stopped(signal.SIGTERM) == 1
    for number in STOP_SIGNALS:
        signal.raise_signal(number)
    ignore_stop_signals()
    assert {signal.getsignal(number) for number in STOP_SIGNALS} == {signal.SIG_IGN}


def test_a_verb_that_ends_by_itself_is_not_interrupted_any_more() -> None:
    handle_stop_signals()

    async def main() -> None:
        with stopped_by_signals(lambda: None):
            pass

    asyncio.run(main())
    signal.raise_signal(signal.SIGTERM)


def test_what_gives_limits_back_is_not_interrupted() -> None:
    handle_stop_signals()
    with stops_deferred():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)


def test_a_verb_that_holds_nothing_has_the_default_actions() -> None:
    handle_stop_signals()
    default_stop_signals()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_handlers_of_others_come_back_after_the_body() -> None:
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    assert stopped(signal.SIGQUIT) == 1
    assert {number: signal.getsignal(number) for number in STOP_SIGNALS} == before
