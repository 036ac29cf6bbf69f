"""`gridchase web`: with `--until-stdin-closes` it ends with what has started it, whatever its stdin is."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from controller.cli.history.web import _set_at_end_of_stdin


async def has_ended(stop: asyncio.Event) -> bool:
    """Return whether the end is seen in the next turns of the event loop."""
    for _ in range(3):
        await asyncio.sleep(0)
    return stop.is_set()


def test_a_pipe_ends_it_when_it_closes_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ends(writer: int) -> list[bool]:
        stop = asyncio.Event()
        _set_at_end_of_stdin(stop)
        before = await has_ended(stop)
        os.write(writer, b"a key was pressed")
        pressed = await has_ended(stop)
        os.close(writer)
        return [before, pressed, await has_ended(stop)]

    reader, writer = os.pipe()
    with os.fdopen(reader) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert asyncio.run(ends(writer)) == [False, False, True]


@pytest.mark.parametrize("name", ["/dev/null", "/proc/self/status", None])
def test_what_is_no_pipe_has_ended_before(name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ends() -> bool:
        stop = asyncio.Event()
        _set_at_end_of_stdin(stop)
        return await has_ended(stop)

    monkeypatch.setattr(sys, "stdin", None)
    if name is None:
        assert asyncio.run(ends())
        return
    with Path(name).open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert asyncio.run(ends())
