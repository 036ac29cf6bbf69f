"""The tenant: `python -m tests.live.hostile.tenant WORLD ATTEMPT` makes one attempt, as `nobody` where root runs it.

It says on stdout, as JSON, what it could see itself: where it got in, and what it received that is not its own.
"""

import json
import os
import sys
from pathlib import Path
from typing import Final

from tests.live.hostile import floods, forgeries, local
from tests.live.hostile.attempt import ATTEMPTS
from tests.live.hostile.world import World

__all__ = ["ATTEMPTS", "floods", "forgeries", "local"]
NOBODY: Final = 65_534


def drop_privileges() -> None:
    """Become `nobody`, once everything that Python reads later has been read."""
    "x".encode("idna")
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


if __name__ == "__main__":
    the_world = World.read(Path(sys.argv[1]))
    drop_privileges()
    sys.stdout.write(json.dumps(ATTEMPTS[sys.argv[2]](the_world)) + "\n")
