"""The directory of this user that ends with the boot or the session: in memory, so that no disk can fail it.

The locks of the GPUs are there, and a copy of the journal: `/run/gridchase` for root, else
`$XDG_RUNTIME_DIR/gridchase`. Nobody but this user can write into it.
"""

import os
from pathlib import Path
from typing import Final

RUN_DIR: Final = Path("/run/gridchase")


def run_dir() -> Path | None:
    """Return the directory, which may not exist yet; None where this user has none."""
    if os.geteuid() == 0:
        return RUN_DIR
    session = os.environ.get("XDG_RUNTIME_DIR", "")
    return Path(session) / "gridchase" if session else None
