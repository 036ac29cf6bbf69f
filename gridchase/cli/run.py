"""`gridchase run -- COMMAND…`: publishes what a training script trains, without a line in it.

It sets the environment, then becomes the command: exit code, signals and process id are the command's own. Where
nothing was published, a process that is left behind says so at the end (`run_watcher.py`).
"""

import argparse
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from gridchase.cli.run_watcher import forget, watched
from publishers.messages.topics import is_name
from publishers.training.run.launchers import LAUNCH

_BOOTSTRAP: Final = "publishers.training.frameworks.bootstrap"
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_NAME: Final = 64
_LAUNCH_BYTES: Final = 6
_NOT_FOUND: Final = 127
_NOT_EXECUTABLE: Final = 126
"""As shells have them."""
VARIABLES: Final = {
    "job": "GRIDCHASE_JOB",
    "run": "GRIDCHASE_RUN",
    "broker": "GRIDCHASE_BROKER",
    "password_file": "GRIDCHASE_PASSWORD_FILE",
    "ca_file": "GRIDCHASE_CA_FILE",
    "root": "GRIDCHASE_ROOT",
}
"""The environment variable of each option."""


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    verb.usage = "%(prog)s [options] -- command …"
    verb.add_argument("--job", help="the job's name; else GRIDCHASE_JOB, else that of the script")
    verb.add_argument("--run", dest="run_id", metavar="ID", help="the run's id; else it is found out")
    verb.add_argument("--broker", metavar="URL", help="the broker's URL; else GRIDCHASE_BROKER, else this machine")
    verb.add_argument("--password-file", metavar="FILE", help="the file with the password for the broker")
    verb.add_argument("--ca-file", metavar="FILE", help="the authorities that a broker with TLS is checked against")
    verb.add_argument("--root", metavar="TOPIC", help="the root of the topics")
    verb.add_argument("command", nargs=argparse.REMAINDER, help="what to run, as without gridchase")
    verb.set_defaults(do=lambda options: _run(verb, options))


def _run(verb: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        verb.error("the command is missing: gridchase run -- python train.py")
    given = {name: getattr(options, "run_id" if name == "run" else name) for name in VARIABLES}
    if given["job"] is not None and not is_name(given["job"]):
        verb.error(f"--job {given['job']!r}: must be 1 to {_MAX_NAME} of A-Z a-z 0-9 . _ -")
    environ = environment(command, os.environ, given)
    environ = watched(environ, environ["GRIDCHASE_JOB"])
    code = become(command, environ)
    forget(environ)
    return code


def environment(command: Sequence[str], environ: Mapping[str, str], given: Mapping[str, str | None]) -> dict[str, str]:
    """Return the environment of the command: what was given, the name of its job, the bootstrap, an id of its own."""
    ours = {VARIABLES[name]: value for name, value in given.items() if value is not None}
    if "job" not in ours:
        ours.setdefault("GRIDCHASE_JOB", environ.get("GRIDCHASE_JOB") or job_of(command))
    spec = find_spec(_BOOTSTRAP)
    folders = [*(spec.submodule_search_locations or ())] if spec is not None else []
    path = os.pathsep.join([*folders, *filter(None, [environ.get("PYTHONPATH")])])
    return {**environ, **ours, "PYTHONPATH": path, LAUNCH: os.urandom(_LAUNCH_BYTES).hex()}


def job_of(command: Sequence[str]) -> str:
    """Return the name of a command's job: that of its script or module, else of its program.

    >>> job_of(["torchrun", "--nproc-per-node=2", "src/train_resnet.py", "--lr", "0.1"])
    'train_resnet'
    >>> job_of(["python", "-m", "vision.train", "--config", "a.py"])
    'vision.train'
    >>> job_of(["python", "-m", "torch.distributed.run", "train.py"])
    'train'
    >>> job_of(["sh", "jobs/night.sh"])
    'night'
    """
    words = list(command)
    scripts = [k for k, word in enumerate(words) if word.endswith((".py", ".sh")) and not word.startswith("-")]
    modules = [k + 1 for k, word in enumerate(words[:-1]) if word in {"-m", "--module"} and k > 0]
    modules = [k for k in modules if not words[k].startswith(_LAUNCHERS)]
    if modules and not (scripts and scripts[0] < modules[0]):
        name = words[modules[0]]
    else:
        name = Path(words[scripts[0]]).stem if scripts else Path(words[0]).name
    return _NOT_IN_NAMES.sub("-", name)[:_MAX_NAME].strip("-") or "training"


_LAUNCHERS: Final = ("torch.distributed.", "accelerate.", "deepspeed.", "lightning.", "cProfile", "pdb", "coverage")
"""Modules that run the script that follows."""


def become(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Replace this process by the command; return an exit code only where that is not possible."""
    for stream in filter(None, (sys.stdout, sys.stderr)):  # one that is closed is none
        stream.flush()
    try:
        if os.name != "posix":  # there another process would be started, and this one would end
            return subprocess.run(command, env=dict(environ), check=False).returncode  # noqa: S603 — what the user asks for
        for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and the command would inherit that
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        os.execvpe(command[0], list(command), dict(environ))  # noqa: S606 — what the user asks for
    except FileNotFoundError:
        return _complain(f"{command[0]}: not found", _NOT_FOUND)
    except OSError as error:
        return _complain(f"{command[0]}: {error.strerror}", _NOT_EXECUTABLE)


def _complain(what: str, code: int) -> int:
    print(f"gridchase run: {what}", file=sys.stderr)
    return code
