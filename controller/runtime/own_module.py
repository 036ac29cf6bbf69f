"""A process of our own package beside this one, which finds modules where this one does."""

import asyncio
import os
import sys
from subprocess import PIPE


async def start_module(*words: str, captures: bool = False) -> asyncio.subprocess.Process:
    """Start `python -m` with a module and its arguments; its stdin is a pipe.

    The working directory is searched only if it is here: a folder of trainings may well have a `controller.py`.

    Args:
        words: the module, and its arguments.
        captures: whether its output is piped to this process; else it has this one's.

    Raises:
        OSError: it cannot be started.
    """
    output = PIPE if captures else None
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", *words),
        stdin=PIPE,
        stdout=output,
        stderr=output,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), *sys.path)))},
        start_new_session=True,  # Ctrl-C in the terminal must reach only us: we end the process
    )
