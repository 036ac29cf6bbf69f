"""The words of a command line that are its verb, the verbs of the base install, and output that nobody reads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from controller.__main__ import BLAS_THREAD_VARIABLES
from gridchase.__main__ import BASE_VERBS, _verb, _why_without_controller
from gridchase.cli.closed_pipe import EXIT_CODE
from gridchase.cli.verb import _VERBS
from tests.closed_pipe import closed_pipe


@pytest.mark.parametrize(
    ("words", "verb"),
    [
        ("doctor", "doctor"),
        ("--log-level debug doctor --job up", "doctor"),
        ("--log-level=debug up", "up"),
        ("--version", None),
        ("--log-level", None),
        ("", None),
    ],
)
def test_the_verb_is_the_first_word_that_is_neither_an_option_nor_its_value(words: str, verb: str | None) -> None:
    assert _verb(words.split()) == verb


def test_the_verbs_without_the_controller_are_those_whose_module_is_not_its() -> None:
    assert {entry.name for entry in _VERBS if not entry.module.startswith("controller.")} == set(BASE_VERBS)


def test_the_controller_of_this_tree_is_known_as_ours() -> None:
    assert not _why_without_controller()


N_THREADS = "import numpy, os; print(len(os.listdir('/proc/self/task')))"


def test_a_verb_of_the_controller_computes_in_one_thread() -> None:
    run = "import sys; from gridchase.__main__ import main; sys.argv = ['gridchase', 'check', '--help']"
    ended = run_alone(f"{run}\ntry:\n    main()\nexcept SystemExit:\n    pass\n{N_THREADS}")
    assert ended.splitlines()[-1] == "1", "one on any number of cores"


def test_a_training_that_is_run_keeps_its_threads(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(N_THREADS)
    words = ["gridchase", "run", sys.executable, str(script)]
    run = f"import sys; from gridchase.__main__ import main; sys.argv = {words}; main()"
    assert run_alone(run) == run_alone(N_THREADS)


def run_alone(code: str) -> str:
    """Return what code prints in a process of its own, which nobody has told how many threads to use."""
    environment = {name: value for name, value in os.environ.items() if name not in BLAS_THREAD_VARIABLES}
    return subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment, text=True, timeout=60, check=True
    ).stdout


@pytest.mark.parametrize("words", [["--help"], ["restore", "--help"]], ids=["base", "controller"])
def test_a_help_that_nobody_reads_ends_without_a_word(words: list[str]) -> None:
    with closed_pipe() as written:
        ended = subprocess.run(
            [sys.executable, "-m", "gridchase", *words],
            stdout=written,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONUNBUFFERED": ""},
            check=False,
            timeout=60,
        )
    assert (ended.returncode, ended.stderr) == (EXIT_CODE, b"")


@pytest.mark.parametrize(("words", "unbuffered"), [("restore --help", ""), ("doctor", ""), ("doctor", "1")])
def test_a_full_disk_ends_it_with_a_line(words: str, unbuffered: str) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "gridchase", *words.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            check=False,
            timeout=60,
        )
    assert (ended.returncode, ended.stderr) == (1, b"gridchase: standard output: No space left on device\n")


@pytest.mark.parametrize("error", ["ValueError('a fault of ours')", "SystemExit('a fault of ours')"])
def test_an_error_is_told_though_nobody_reads_what_was_printed_before(error: str) -> None:
    program = f"from gridchase.cli.closed_pipe import *\nwith ended_by_closed_pipe():\n    print(1)\n    raise {error}"
    with closed_pipe() as written:
        ended = subprocess.run(
            [sys.executable, "-c", program],
            stdout=written,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONUNBUFFERED": ""},
            check=False,
            timeout=60,
        )
    assert b"a fault of ours" in ended.stderr
