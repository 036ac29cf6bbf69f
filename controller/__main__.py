"""The verbs of the controller: called by the console script `gridchase`, and as `python -m controller`."""

import os
import sys
from typing import Final

from controller.runtime.stop_signals import handle_stop_signals, ignore_stop_signals, is_stop_requested
from gridchase.cli.closed_pipe import ended_by_closed_pipe
from gridchase.cli.install import install_command

BLAS_THREAD_VARIABLES: Final = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def main() -> int:
    """Run `gridchase`; where the libraries of the controller are not installed, say what is missing."""
    try:
        handle_stop_signals()  # before anything else: what is imported takes its time
        _compute_in_one_thread()
        with ended_by_closed_pipe():
            return _main()
    finally:
        ignore_stop_signals()


def _compute_in_one_thread() -> None:
    """Have NumPy compute in one thread, unless it is told otherwise: the other cores are the training's.

    It would start one for each core. They spin between the small steps of a forecast, which takes longer with them.
    """
    for name in BLAS_THREAD_VARIABLES:
        os.environ.setdefault(name, "1")


def _main() -> int:
    try:
        from controller.cli.main import parse, run  # noqa: PLC0415 — the base install has not what this imports

        options = parse()  # imports what the verb needs
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in {"", "controller", "gridchase", "policies", "publishers"}:
            raise
        print(f"gridchase: {package} is not installed: {install_command()}", file=sys.stderr)  # noqa: T201 — speaks
        return 2
    if is_stop_requested() and not options.defers_stops:  # nothing was begun
        return 0
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
