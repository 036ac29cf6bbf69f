"""Interactive shells among the ancestors of a process, in a `/proc` of the test and in the real one."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from publishers.training.run.interactive_shell import has_interactive_shell
from publishers.training.run.launchers import world_size_of

TERMINAL, NO_TERMINAL = 34_816, 0
SRUN = ("SLURM_JOB_ID=5", "SLURM_STEP_ID=0", "SLURM_NTASKS=4")


def put(proc: Path, pid: int, parent: int, words: str, terminal: int = TERMINAL, environ: Sequence[str] = SRUN) -> None:
    """Put a process into a `/proc`."""
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "stat").write_text(f"{pid} (a (odd) name) S {parent} {pid} {pid} {terminal} 0")
    (folder / "cmdline").write_bytes(words.replace(" ", "\0").encode() + b"\0")
    (folder / "environ").write_bytes("\0".join(environ).encode() + b"\0")


@pytest.mark.parametrize(
    ("words", "terminal", "environ", "is_typed"),
    [
        ("bash", TERMINAL, SRUN, True),
        ("-bash", TERMINAL, SRUN, True),
        ("/usr/bin/zsh -l", TERMINAL, SRUN, True),
        ("bash --norc -i", TERMINAL, SRUN, True),
        ("bash --init-file /editor/shell.sh", TERMINAL, SRUN, True),
        ("bash", NO_TERMINAL, SRUN, False),  # a script on its standard input
        ("bash train.sh", TERMINAL, SRUN, False),
        ("bash -lc python", TERMINAL, SRUN, False),
        ("python -i", TERMINAL, SRUN, False),
        ("bash", TERMINAL, ("SLURM_JOB_ID=5", "SLURM_STEP_ID=1"), False),  # srun was called in it
        ("bash", TERMINAL, (), False),
    ],
)
def test_a_shell_that_srun_has_started_at_a_terminal_has_no_ranks_below_it(
    tmp_path: Path, words: str, terminal: int, environ: Sequence[str], *, is_typed: bool
) -> None:
    put(tmp_path, 2, 1, "slurmstepd:", NO_TERMINAL)
    put(tmp_path, 3, 2, words, terminal, environ)
    put(tmp_path, 4, 3, "make train")
    put(tmp_path, 5, 4, "python train.py")
    assert has_interactive_shell(5, "5", "0", proc=tmp_path) is is_typed


def test_what_cannot_be_seen_is_no_shell(tmp_path: Path) -> None:
    put(tmp_path, 5, 4, "python train.py")
    assert not has_interactive_shell(5, "5", "0", proc=tmp_path)
    assert not has_interactive_shell(6, "5", "0", proc=tmp_path)


@pytest.mark.live
def test_a_real_shell_at_a_terminal_is_found() -> None:
    command = f"{sys.executable} -c '{SIZE}'; exit"
    environ = {**os.environ, "PYTHONPATH": str(Path.cwd()), **dict(each.split("=") for each in SRUN)}
    ours, theirs = os.openpty()
    with os.fdopen(ours, "w") as keyboard:
        shell = subprocess.Popen(
            ["setsid", "--ctty", "bash", "--norc"], stdin=theirs, stdout=subprocess.PIPE, env=environ, text=True
        )
        os.close(theirs)
        keyboard.write(f"{command}\n")
        keyboard.flush()
        said, _ = shell.communicate(timeout=60)
    assert "size 1" in said
    assert world_size_of(dict(each.split("=") for each in SRUN)) == 4


SIZE = (
    'import os; from publishers.training.run.launchers import world_size_of; print("size", world_size_of(os.environ))'
)
