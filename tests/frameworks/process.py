"""Runs a training script in a process of its own, by the launcher that its users have."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tests.frameworks.trainings.truth import BARE, VARIABLE

ROOT: Final = Path(__file__).parents[2]
QUICK_START: Final = Path(__file__).parent / "quick_start"
TRAININGS: Final = Path(__file__).parent / "trainings"
Launcher = Literal["python", "torchrun"]
_TIMEOUT_S: Final = 240.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a training has ended, and what it really did: an account of each rank, in their order.

    Attributes:
        bare: the accounts of the training without us that was made before, in the same processes; see `--bare-first`.
    """

    exit_code: int
    stdout: str
    stderr: str
    truths: list[dict[str, Any]]
    bare: list[dict[str, Any]]


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a training: nothing of ours but what is given, and no network."""
    ours = ("GRIDCHASE_", "TORCHELASTIC_", "SLURM_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = os.pathsep.join([str(QUICK_START), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    fixed = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    return {**inherited, **fixed, "JAX_PLATFORMS": "cpu", "LOGNAME": "alice", **variables}


def command(script: Path, arguments: Sequence[str], launcher: Launcher = "python", ranks: int = 1) -> list[str]:
    """Return the command line of a training."""
    match launcher:
        case "python":
            return [sys.executable, str(script), *arguments]
        case "torchrun":
            run = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--standalone"]
            return [sys.executable, *run, str(script), *arguments]


def train_published(line: Sequence[str], folder: Path, url: str, **variables: str) -> Outcome:
    """Run a training that is published as the job `toy`, and check that nothing is said about it."""
    ours = {"GRIDCHASE_JOB": "toy", "GRIDCHASE_BROKER": url, "GRIDCHASE_QUIET": "1"}
    outcome = train(line, folder, **(ours | variables))
    assert "gridchase:" not in outcome.stderr, outcome.stderr
    return outcome


def train(line: Sequence[str], folder: Path, **variables: str) -> Outcome:
    """Run a training to its end; its ranks write their accounts into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    child = subprocess.run(
        line,
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
        env=environment(**{VARIABLE: str(folder), **variables}),
        cwd=folder,
    )
    return Outcome(child.returncode, child.stdout, child.stderr, _accounts(folder), _accounts(folder / BARE))


def _accounts(folder: Path) -> list[dict[str, Any]]:
    accounts = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")]
    return sorted(accounts, key=lambda account: account["rank"])
