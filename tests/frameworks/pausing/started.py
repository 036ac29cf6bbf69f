"""A training in processes of its own, to be told something while it runs."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.frameworks.process import Launcher, command, environment
from tests.frameworks.trainings.truth import VARIABLE
from tests.live.conftest import Mosquitto


class Training:
    """A training whose ranks write their accounts into a folder at their end."""

    def __init__(
        self, line: list[str], folder: Path, broker: Mosquitto, *, ranks: int, variables: Mapping[str, str]
    ) -> None:
        self._folder = folder
        self._ranks = ranks
        ours = {"GRIDCHASE_JOB": "toy", "GRIDCHASE_BROKER": broker.url, "GRIDCHASE_QUIET": "1"}
        self.process = subprocess.Popen(
            line,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**{VARIABLE: str(folder), **ours, **variables}),
        )

    def end(self) -> tuple[list[dict[str, Any]], str]:
        """Wait for its end; return the account of each rank, and its stderr."""
        _, stderr = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, stderr
        paths = [path for rank in range(self._ranks) for path in self._folder.glob(f"{rank}*.json")]
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths], stderr


@contextmanager
def started(
    script: Path,
    folder: Path,
    broker: Mosquitto,
    *arguments: str,
    ranks: int = 1,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Training]:
    """Run a script, by torchrun where it has several ranks; end it where the test ends before it does."""
    launcher: Launcher = "torchrun" if ranks > 1 else "python"
    line = command(script, list(arguments), launcher, ranks)
    training = Training(line, folder, broker, ranks=ranks, variables=variables)
    try:
        yield training
    finally:
        training.process.kill()
        training.process.communicate()
