"""The options of those verbs that read the configuration of the controller."""

import argparse
from pathlib import Path


def add_configuration(verb: argparse.ArgumentParser) -> None:
    """Add the options for the configuration of the controller."""
    verb.add_argument("--config", type=Path, metavar="FILE", help="a TOML file; deploy/controller.toml shows every key")
    verb.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one key")
