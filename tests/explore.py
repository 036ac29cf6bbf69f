"""Tries new random examples, schedules of faults and orders, round after round, until the time is up or one fails.

`python -m tests.explore SECONDS`, then what pytest is to run instead of all tests with random input. The last line of a
round that fails is the command that repeats it. In CI they are the same each time (`tests/conftest.py`).
"""

import os
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from tests.conftest import SEED_VARIABLE

RANDOM: Final = ("-n", "auto", "-m", "not live", "-k", "hypothesis or test_campaign")
"""Hypothesis marks its tests; the campaigns on virtual time have a seed of their own."""
_MAX_SEED: Final = 1 << 31


def main(arguments: Sequence[str], clock_s: Callable[[], float] = time.monotonic) -> int:
    """Explore; return the exit code of the round that has failed, or 0."""
    deadline_s = clock_s() + float(arguments[0])
    selected = arguments[1:] or RANDOM
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    n_rounds = 0
    while (left_s := deadline_s - clock_s()) > 0:
        seed = secrets.randbelow(_MAX_SEED)
        seeds = (f"--hypothesis-seed={seed}", f"--randomly-seed={seed}")
        command = [sys.executable, "-m", "pytest", "-q", "-x", *seeds, *selected]
        try:
            code = subprocess.run(
                command, env=environment | {SEED_VARIABLE: str(seed)}, timeout=left_s, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            break
        if code:
            print(f"\nRepeat it:\nenv -u CI {SEED_VARIABLE}={seed} {shlex.join(command)}", flush=True)
            return code
        n_rounds += 1
    print(f"\nNothing failed in {n_rounds} whole rounds, and in what was tried of the last one.", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
