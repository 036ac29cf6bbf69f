"""The options of those verbs that read the configuration of the controller."""

import argparse
from pathlib import Path
from typing import Final

TRY_SIMULATION: Final = "without a GPU, try `gridchase up --simulate`: everything but the GPU is real"


def add_configuration(verb: argparse.ArgumentParser) -> None:
    """Add the options for the configuration of the controller."""
    verb.add_argument("--config", type=Path, metavar="FILE", help="a TOML file; deploy/controller.toml shows every key")
    verb.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one key")


def add_simulation(verb: argparse.ArgumentParser) -> None:
    """Add the option to use a simulated GPU; the options for the configuration are there already."""
    verb.add_argument(
        "--simulate",
        action="append_const",
        dest="set",
        const="gpu.backend=simulation",
        help="use a simulated GPU: --set gpu.backend=simulation",
    )
