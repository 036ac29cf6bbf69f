"""Children of this process: modules of ours beside it, which end when their stdin closes: also where it is killed."""

import asyncio
import os
import sys
from subprocess import PIPE
from typing import Final

STOP_TIMEOUT_S: Final = 15.0
"""For a child, as a page whose viewers read slowly, to write what waits; then it is killed."""


async def start_module(
    *words: str, captures: bool = False, captures_errors: bool | None = None
) -> asyncio.subprocess.Process:
    """Start `python -m` with a module and its arguments; its stdin is a pipe.

    The working directory is searched only if it is here: a folder of trainings may well have a `controller.py`.

    Args:
        words: the module, and its arguments.
        captures: whether its output is piped to this process; else it has this one's.
        captures_errors: the same of its stderr; by default as of its output.

    Raises:
        OSError: it cannot be started.
    """
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", *words),
        stdin=PIPE,
        stdout=PIPE if captures else None,
        stderr=PIPE if (captures if captures_errors is None else captures_errors) else None,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), *sys.path)))},
        start_new_session=True,  # Ctrl-C in the terminal must reach only us: we end the process
    )


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
