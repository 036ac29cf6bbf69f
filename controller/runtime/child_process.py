"""Child processes that end when their stdin closes: also when the process that has started them is killed."""

import asyncio
from typing import Final

STOP_TIMEOUT_S: Final = 10.0
"""For a child to write what waits; then it is killed."""


async def stop_child(child: asyncio.subprocess.Process) -> None:
    """Close the stdin of a child, and wait until it has ended."""
    if child.returncode is not None:
        return
    if child.stdin is not None:
        child.stdin.close()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await child.wait()
    except TimeoutError:
        child.kill()
        await child.wait()
