"""The console script `gridchase`, and `python -m gridchase`.

Nothing of the controller is imported before one of its verbs is used: in a training environment `controller` may be the
user's own module, or another package. Before a verb of the controller, nothing else is: it handles stop signals first.
"""

import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Final

BASE_VERBS: Final = ("doctor", "run")
"""The verbs that need the base install alone."""


def main() -> int:
    """Run `gridchase` and return its exit code."""
    verb = _verb(sys.argv[1:])
    without_controller = "" if verb in BASE_VERBS else _why_without_controller()
    if verb is not None and verb not in BASE_VERBS and not without_controller:
        code: int = importlib.import_module("controller.__main__").main()
        return code
    from gridchase.cli.closed_pipe import ended_by_closed_pipe  # noqa: PLC0415 — the controller handles stop signals first
    from gridchase.cli.main import main as run_base_verb  # noqa: PLC0415

    with ended_by_closed_pipe():
        return run_base_verb(without_controller=without_controller)


def _verb(words: Sequence[str]) -> str | None:
    """Return the verb in the words of a command line; None where there is none."""
    is_value = False
    for word in words:
        if not (is_value or word.startswith("-")):
            return word
        is_value = word == "--log-level"
    return None


def _why_without_controller() -> str:
    """Return why the verbs of the controller cannot be used; "" where they can. Runs no code of a package."""
    if sys.platform != "linux":
        return f"it needs Linux, and this is {sys.platform}"
    spec = importlib.util.find_spec("controller")
    if spec is None:
        return f"this is the training side alone: {_remedy()}"
    folders = spec.submodule_search_locations or ()
    if any(os.path.isfile(os.path.join(folder, "runtime", "stop_signals.py")) for folder in folders):  # noqa: PTH113, PTH118
        return ""
    return f"the package `controller` here is another one, {spec.origin}; in an environment of its own: {_remedy()}"


def _remedy() -> str:
    from gridchase.cli.install import install_command  # noqa: PLC0415 — the controller handles stop signals first

    return install_command()


if __name__ == "__main__":
    sys.exit(main())
