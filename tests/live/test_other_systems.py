"""Where there is no Linux: importing is safe, publishing is off, training goes on, and one line says so.

No Windows or macOS machine is here. What these have not is taken away from the interpreter before ours is imported.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.live
ROOT: Final = Path(__file__).parents[2]
SYSTEM: Final = """
import gridchase.cli.doctor, logging, os, select, signal, socket, sys
from gridchase import Publisher, publish_iterations  # so that the standard library is there, which is Linux's

for name in [name for name in sys.modules if name.partition(".")[0] in {"gridchase", "publishers", "paho"}]:
    del sys.modules[name]
logging.getLogger("publishers").handlers.clear()

def only_on_linux(event, arguments):
    if event == "open" and str(arguments[0]).startswith(("/proc", "/sys", "/run")):
        raise FileNotFoundError(2, "No such file or directory", arguments[0])
    if event in {"socket.connect", "socket.getaddrinfo", "_thread.start_new_thread", "os.fork"}:
        raise AssertionError(event)

sys.addaudithook(only_on_linux)
sys.platform = sys.argv.pop(1)
if sys.platform == "win32":
    for module in ("fcntl", "grp", "pwd", "resource", "termios", "pty", "tty"):
        sys.modules[module] = None
    for module, names in {
        os: "register_at_fork fork getuid geteuid getgid getpgid getsid sched_getaffinity sysconf uname O_NONBLOCK",
        select: "poll epoll",
        signal: "SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGXCPU SIGALRM SIGKILL pthread_sigmask",
        socket: "AF_UNIX socketpair",
    }.items():
        for name in names.split():
            delattr(module, name)
"""
TRAINING: Final = """
import gridchase
from gridchase import Publisher, publish_iterations

for name in gridchase.__all__:
    getattr(gridchase, name)

print(*publish_iterations(range(3), job="j"), *publish_iterations(iter("ab"), job="j"))
with Publisher(job="j", total_iterations=2) as publisher:
    print(publisher.batch_size([8, 16], default=8))
    for _ in publisher.epochs(2):
        publisher.iteration()
        publisher.metric(0.5)
    print(publisher.should_stop, publisher.closed)
"""
COMMAND: Final = """
from gridchase.__main__ import main
sys.exit(main())
"""
SYSTEMS: Final = ["win32", "darwin"]


def run(script: str, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a script on another system."""
    return subprocess.run(
        [sys.executable, "-c", SYSTEM + script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PYTHONPATH": str(ROOT), **variables},
    )


@pytest.mark.parametrize("system", SYSTEMS)
def test_training_goes_on_and_one_line_says_that_nothing_is_published(system: str) -> None:
    result = run(TRAINING, system)
    assert result.stdout == "0 1 2 a b\n8\nFalse True\n", result.stderr
    assert result.stderr.splitlines()[0] == (
        f"gridchase: publishing is off: it needs Linux, and this is {system}; GRIDCHASE_DISABLED=1 hides this line"
    )
    assert result.returncode == 0
    assert result.stderr.count("publishing is off: it needs Linux") == 1


@pytest.mark.parametrize("system", ["linux", *SYSTEMS])
def test_whoever_has_switched_it_off_reads_nothing(system: str) -> None:
    result = run(TRAINING, system, GRIDCHASE_DISABLED="1")
    assert (result.stdout, result.stderr) == ("0 1 2 a b\n8\nFalse True\n", "")


@pytest.mark.parametrize("system", SYSTEMS)
def test_doctor_says_that_nothing_is_published(system: str) -> None:
    result = run(COMMAND, system, "doctor", "--job", "j")
    assert (result.returncode, result.stderr) == (1, "")
    assert f"publishing is off: it needs Linux, and this is {system}" in result.stdout


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_controllers_verbs_say_that_they_need_linux(system: str) -> None:
    result = run(COMMAND, system, "up")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"gridchase up: it needs Linux, and this is {system}\n"
