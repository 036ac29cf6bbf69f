"""The README's commands, run as a person would paste them: in an empty folder, with a simulated GPU.

What the README has a person add (`--simulate`), and ports and folders of the test's own, stand behind each command.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.live.conftest import free_port

pytestmark = pytest.mark.live
TIMEOUT_S: Final = 60.0
ROOT: Final = Path(__file__).parents[2]
README: Final = (ROOT / "README.md").read_text(encoding="utf-8")
NOT_RUN: Final = {
    "make demo": "installs from the network; what it shows is in test_readme.py",
    ".venv/bin/gridchase demo --web": "of the clone that `make demo` has set up",
    "pip install '.[controller]' ./controller": "installs from the network; the wheels are in test_distributions.py",
    "pip install .": "the same",
    "gridchase demo --recurrences 20": "takes a minute; in test_demo_recurrences.py",
    "gridchase signal --provider energy-charts --zone DE": "asks the network; in test_signal_verb.py",
    "gridchase web": "serves until it is stopped; in test_web.py",
    "make test": "would run itself",
    "make check": "runs beside the tests",
    "make docs": "runs in `make check`",
}
"""Why a command is not run here."""


def commands() -> set[str]:
    """Return the commands in shell blocks, and those in the text that begin with one of our programs."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    blocks = "\n".join(text for language, text in fences if language in {"", "sh", "shell", "bash", "console"})
    text = re.sub(r"^```.*?^```", "", README, flags=re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`((?:\.venv/bin/)?(?:gridchase|make|pip) [^`]+)`", text.replace("\n", " "))
    lines = (re.sub(r"\s+#.*", "", line).strip() for line in [*blocks.splitlines(), *spans])
    return {line for line in lines if line}


class Shell:
    """A shell in an empty folder, with `gridchase` in its path and a broker's port of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ran: set[str] = set()
        self.port = free_port()
        self.settings = (
            f" --set bus.url=mqtt://127.0.0.1:{self.port} --set http.port=-1 --set node.state_dir={folder}/state"
            " --set gpu.backend=simulation"
        )
        programs = folder / "bin"
        programs.mkdir()
        for name, module in (("gridchase", "-m gridchase"), ("python", "")):
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module} "$@"\n')
            program.chmod(0o755)
        own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "GRIDCHASE"))}
        path = f"{programs}{os.pathsep}{own['PATH']}"
        broker = f"mqtt://127.0.0.1:{self.port}"
        self._environment = own | {"PATH": path, "PYTHONPATH": str(ROOT), "GRIDCHASE_BROKER": broker}
        self._children: list[subprocess.Popen[str]] = []

    def run(self, command: str, added: str = "") -> str:
        """Run a command to its good end; return what it says."""
        with self._started(command, added, cwd=self.folder) as child:
            said, _ = child.communicate(timeout=TIMEOUT_S)
        assert child.returncode == 0, f"{command}: {said}"
        return said

    def serve(self, command: str, added: str, *, until: str, cwd: Path | None = None) -> "subprocess.Popen[str]":
        """Start a command that goes on until it is stopped; wait until it says something."""
        child = self._started(command, added, cwd=cwd or self.folder)
        self._children.append(child)
        in_time = threading.Timer(TIMEOUT_S, child.kill)
        in_time.start()
        lines = iter(child.stdout.readline, "") if child.stdout else iter(())
        assert any(until in line for line in lines), f"{command} has not said {until!r} within {TIMEOUT_S:g} s"
        in_time.cancel()
        return child

    def stop(self, child: "subprocess.Popen[str]") -> None:
        """Stop a command, which must end well."""
        child.send_signal(signal.SIGTERM)
        said, _ = child.communicate(timeout=TIMEOUT_S)
        assert child.returncode == 0, said

    def close(self) -> None:
        """Kill what a failed test has left."""
        for child in self._children:
            with child:
                child.kill()

    def _started(self, command: str, added: str, *, cwd: Path) -> "subprocess.Popen[str]":
        self.ran.add(command)
        return subprocess.Popen(
            ["sh", "-c", f"exec {command}{added}"],
            cwd=cwd,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Yield a shell in a new folder."""
    shell = Shell(tmp_path)
    yield shell
    shell.close()


def test_the_commands_of_the_readme_do_what_it_says(shell: Shell) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    (shell.folder / "train.py").write_text(f"loader = range(1_000)\n{code}")
    (shell.folder / "policy.toml").write_text("[http]\nport = -1\n")
    up = shell.serve(
        "gridchase up", f" --no-web --policy-config policy.toml{shell.settings}", until="connected to the broker"
    )
    assert "nothing is wrong" in shell.run("gridchase check", shell.settings)
    assert "gridchase: resnet50 run" in shell.run("gridchase run -- python train.py")
    if shutil.which("mosquitto_sub"):
        said = shell.run("mosquitto_sub -v -t 'gridchase/v1/node/+/gpu/+/energy'", f" -C 1 -W 30 -p {shell.port}")
        assert '"power_w":' in said
    shell.stop(up)
    assert shell.run("gridchase report", f" --set node.state_dir={shell.folder}/state").startswith("From ")
    assert "nothing to restore" in shell.run("gridchase restore", shell.settings)
    assert "profile" in shell.run("gridchase replay --help")
    policy = f" --state-dir {shell.folder}/policy --set bus.url= --set http.port=-1"
    file = "gridchase policy --config deploy/policy.toml"
    shell.stop(shell.serve(file, policy, until="created the tables", cwd=ROOT))
    file = "gridchase controller --config deploy/controller.toml"
    shell.stop(shell.serve(file, shell.settings, until="nothing listens at", cwd=ROOT))
    needs_mosquitto = {command for command in commands() if command.startswith("mosquitto_sub")}
    assert commands() - NOT_RUN.keys() - needs_mosquitto <= shell.ran, "each new command is run here, or in NOT_RUN"


def test_what_is_not_run_stands_in_the_readme() -> None:
    assert NOT_RUN.keys() <= commands()
