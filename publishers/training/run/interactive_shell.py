"""Whether somebody has typed the command of this process in a shell that srun has started: `srun --pty bash`.

What starts there inherits the variables of the shell's step, and is none of its ranks.
"""

import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

SHELLS: Final = frozenset({"bash", "sh", "dash", "zsh", "fish", "ksh", "csh", "tcsh"})
_WITH_FILE: Final = frozenset({"--rcfile", "--init-file"})
"""Options that have a value: editors start the shell of a terminal with them."""
PROC: Final = Path("/proc")
_MAX_ANCESTORS: Final = 64
_PARENT_FIELD: Final = 1
_TERMINAL_FIELD: Final = 4
"""Of `/proc/<pid>/stat`, after the name of the command: the number of the terminal, 0 without one."""


def is_typed_in_step(job: str, step: str) -> bool:
    """Return whether an ancestor of this process is an interactive shell with the variables of a step of Slurm's."""
    return has_interactive_shell(os.getpid(), job, step)


@lru_cache(maxsize=8)  # a shell that has ended meanwhile has started this process all the same
def has_interactive_shell(pid: int, job: str, step: str, proc: Path = PROC) -> bool:
    """Return whether an ancestor of a process is an interactive shell of a step; False where that cannot be seen."""
    variables = {f"SLURM_JOB_ID={job}".encode(), f"SLURM_STEP_ID={step}".encode()}
    return any(variables <= _environ(ancestor) for ancestor in _ancestors(pid, proc) if _is_interactive(ancestor))


def _ancestors(pid: int, proc: Path) -> Iterator[Path]:
    for _ in range(_MAX_ANCESTORS):
        fields = stat_fields(proc / str(pid))
        pid = int(fields[_PARENT_FIELD]) if len(fields) > _PARENT_FIELD else 0
        if not pid:
            return
        yield proc / str(pid)


def _is_interactive(process: Path) -> bool:
    """Return whether a process is a shell at a terminal that was given no script and no command."""
    words = [os.fsdecode(word) for word in _parts(process / "cmdline")]
    is_shell = bool(words) and Path(words[0]).name.removeprefix("-") in SHELLS
    fields = stat_fields(process)
    has_terminal = len(fields) > _TERMINAL_FIELD and fields[_TERMINAL_FIELD] != "0"
    return is_shell and has_terminal and not any(_work(words[1:]))


def _work(words: Iterable[str]) -> Iterator[str]:
    """Yield a shell's arguments that are a script or announce a command."""
    rest = iter(words)
    for word in rest:
        if word in _WITH_FILE:
            next(rest, None)
        elif not word.startswith("-") or ("c" in word and not word.startswith("--")):
            yield word


def stat_fields(process: Path) -> list[str]:
    """Return the fields of a process's `stat` after the name of its command; none where it cannot be read."""
    try:
        stat = (process / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return stat.rpartition(")")[2].split()  # the name of a command may hold spaces and brackets


def _environ(process: Path) -> set[bytes]:
    """Return the variables that a process has begun with."""
    return set(_parts(process / "environ"))


def _parts(file: Path) -> list[bytes]:
    try:
        return file.read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return []
