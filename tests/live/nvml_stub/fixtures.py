"""Fixtures: the compiled stub, a machine on it, and the same machine for the real pynvml of this very process."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.live.nvml_stub.machine import LIBRARY_NAME, STATE_VARIABLE, StubMachine

_SOURCE = Path(__file__).with_name("nvml_stub.c")
_OPTIONS = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror")
_STUB_OPTIONS = ("-fvisibility=hidden", "-pthread", f"-Wl,-soname,{LIBRARY_NAME}")


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the stub, once a session; its soname is that of NVIDIA's library."""
    return compile_stub(tmp_path_factory.mktemp("nvml"))


def compile_stub(directory: Path) -> Path:
    """Compile the stub into a directory; skip where there is no compiler."""
    return compile_library(_SOURCE, directory / LIBRARY_NAME, *_STUB_OPTIONS)


def compile_library(source: Path, library_file: Path, *options: str) -> Path:
    """Compile a library that the tests bring along; skip where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip(f"no C compiler to build {source.name} with (Debian: apt-get install gcc libc6-dev)")
    subprocess.run([compiler, *_OPTIONS, *options, "-o", library_file, source], check=True, timeout=120)
    return library_file


@pytest.fixture
def nvml_machine(nvml_library: Path, tmp_path: Path) -> StubMachine:
    """Return a machine with one A40 whose iterations are a hundredth as long as they were measured."""
    return StubMachine.create(nvml_library, tmp_path / "nvml_state", speedup_ratio=100.0)


@pytest.fixture
def nvml_in_process(nvml_machine: StubMachine, monkeypatch: pytest.MonkeyPatch) -> StubMachine:
    """Return the machine, with this process's own pynvml on it.

    The loader gives pynvml the stub because a library of that soname is loaded already. Where something has loaded
    NVIDIA's own before, this refuses: no test may write to a real GPU.
    """
    monkeypatch.setenv(STATE_VARIABLE, str(nvml_machine.state_file))
    loaded = ctypes.CDLL(LIBRARY_NAME)
    if loaded._handle != nvml_machine.library._handle:
        pytest.fail(f"this process has NVIDIA's own {LIBRARY_NAME} loaded: the stub cannot take its place")
    return nvml_machine
