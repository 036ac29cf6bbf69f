"""Verbs of the command line: the module of each is imported only when its verb is used, because all take seconds.

The module of a verb has `add_arguments(verb)`, which adds its arguments and sets `do`: a function from the options to
the exit code. It also sets `outlives_terminal` where the verb has to end in order whatever becomes of its terminal.
"""

import argparse
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 — argparse has no public name for it

VERSION: Final = version("gridchase")


class Verb(argparse.ArgumentParser):
    """A parser that gets its arguments from a module when it is first used."""

    def __init__(self, *, module: str | None = None, **settings: Any) -> None:  # noqa: ANN401 — those of argparse
        super().__init__(**settings)
        self._module = module

    def parse_known_args(  # type: ignore[override]  # argparse has overloads for namespaces of other types
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Import the module, then parse arguments."""
        module, self._module = self._module, None
        if module is not None:
            import_module(f"controller.cli.{module}").add_arguments(self)
        return super().parse_known_args(args, namespace)


def add_configuration(verb: argparse.ArgumentParser) -> None:
    """Add the options for the configuration of the controller."""
    verb.add_argument("--config", type=Path, metavar="FILE", help="a TOML file; deploy/controller.toml shows every key")
    verb.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one key")
