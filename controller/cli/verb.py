"""Which gridchase this is.

The verbs of the command line: each is a module, imported when its verb is spoken.

A module of a verb has `add_arguments(verb)`, which adds its arguments and sets `do`: takes the options, returns the
exit code. All of them together take seconds to import.
"""

import argparse
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

VERSION: Final = version("gridchase")


_MODULES: Final = "controller.cli"


class Verb(argparse.ArgumentParser):
    """A parser that learns its arguments from a module when it is first used."""

    def __init__(self, *, module: str | None = None, **settings: Any) -> None:  # noqa: ANN401 — those of argparse
        super().__init__(**settings)
        self._module = module

    def parse_known_args(  # type: ignore[override]  # argparse has overloads for namespaces of other types
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse arguments; import the module before."""
        module, self._module = self._module, None
        if module is not None:
            import_module(f"{_MODULES}.{module}").add_arguments(self)
        return super().parse_known_args(args, namespace)


def add_configuration(verb: argparse.ArgumentParser) -> None:
    """Add where the configuration of the controller is, and what replaces single keys of it."""
    verb.add_argument("--config", type=Path, metavar="FILE", help="a TOML file; deploy/controller.toml shows every key")
    verb.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one key")
