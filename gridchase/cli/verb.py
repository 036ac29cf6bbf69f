"""The verbs of `gridchase`: the module of each is imported only when its verb is used, because all take seconds.

The module of a verb has `add_arguments(verb)`, which adds its arguments and sets `do`: a function from the options to
the exit code. It also sets `outlives_terminal` where the verb has to end in order whatever becomes of its terminal, and
`defers_stops` where it has something to do even if a stop signal comes while it is imported.
"""

import argparse
import codecs
import io
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 — argparse has no public name for it

VERSION: Final = version("gridchase")
EPILOG: Final = "Try `gridchase demo` first: it needs no GPU, no broker and no configuration."
CONTROLLER: Final = "controller."
"""The modules of verbs that need the controller begin so."""


_HANDLER: Final = "gridchase"
_SUBSTITUTES: Final = {"✓": "+", "✗": "x", "…": "...", "±": "+-", "–": "-", "→": "->", "×": "x"}  # noqa: RUF001


class _Entry(NamedTuple):
    name: str
    module: str
    what: str
    description: str = ""


_VERBS: Final = (
    _Entry(
        "demo",
        "controller.cli.demo",
        "a day in a minute, on a simulated GPU",
        "a day of a real grid in a minute; with --recurrences, a recurring job that learns its batch size. Only the GPU"
        " is simulated, from measured curves and runs; bus and policies are real",
    ),
    _Entry(
        "up",
        "controller.cli.up",
        "broker, controller, policy service and page in one",
        "broker, controller, policy service and page, for a GPU machine",
    ),
    _Entry("controller", "controller.cli.run", "run the controller of this node"),
    _Entry(
        "policy",
        "controller.cli.policy.main",
        "run the policy service, or show what it has learned",
        "run the policy service, which learns batch sizes of recurring jobs, or show what it has learned",
    ),
    _Entry(
        "broker",
        "controller.cli.broker",
        "run a broker alone",
        "run a broker alone: mosquitto if it is installed, else the built-in one",
    ),
    _Entry(
        "check",
        "controller.cli.check",
        "check GPUs, broker, signal, permission; changes nothing",
        "check GPUs, broker, signal and permissions; changes nothing",
    ),
    _Entry(
        "doctor",
        "gridchase.cli.doctor",
        "check what a training here uses, and who hears it",
        "check what a training in this environment would use, and whether its messages arrive",
    ),
    _Entry(
        "run",
        "gridchase.cli.run",
        "run a training script as it is, and publish it",
        "run a training script, and publish what it trains, without a line in it",
    ),
    _Entry(
        "signal",
        "controller.cli.signal",
        "show the grid signal and its forecast",
        "show the grid signal: series, forecast with its interval, source, age, errors",
    ),
    _Entry("report", "controller.cli.history.report", "show what runs of this node, or site, used and saved"),
    _Entry("web", "controller.cli.history.web", "record the history of a site, and serve it"),
    _Entry(
        "replay",
        "controller.cli.replay.main",
        "compare policies on recorded signals, curves and runs",
        "evaluate policies on files: forecasts, batch sizes, power limits, profiles",
    ),
    _Entry("pause", "controller.cli.orders.pause", "let a run on this node wait between two iterations"),
    _Entry("resume", "controller.cli.orders.resume", "let a run that was paused go on"),
    _Entry(
        "pin",
        "controller.cli.orders.pin",
        "hold a run on this node at a power limit until a time",
        "hold all GPUs of a run on this node at one power limit until a time, whatever its plan says",
    ),
    _Entry("release", "controller.cli.orders.release", "end the pin of a run: its plan decides again"),
    _Entry("exempt", "controller.cli.orders.exempt", "leave a run on this node at its prior limit until a time"),
    _Entry("budget", "controller.cli.orders.budget", "change the time budget of a run on this node from now on"),
    _Entry("deadline", "controller.cli.orders.deadline", "have a run on this node end by a time, at the least cost"),
    _Entry(
        "restore",
        "controller.cli.restore",
        "restore the limits that a killed controller left",
        "restore every power limit that a killed controller left behind",
    ),
)


class Verb(argparse.ArgumentParser):
    """A parser that gets its arguments from a module when it is first used.

    Args:
        module: where `add_arguments` is; None where the arguments are added by the caller.
        missing: why that module cannot be imported; "" where it can.
        settings: those of argparse.
    """

    def __init__(self, *, module: str | None = None, missing: str = "", **settings: Any) -> None:  # noqa: ANN401
        super().__init__(**settings)
        self._module = module
        self._missing = missing

    def parse_known_args(  # type: ignore[override]  # argparse has overloads for namespaces of other types
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Import the module, then parse arguments.

        Raises:
            SystemExit: the arguments are invalid, or the module is not installed (2).
        """
        if self._missing:
            self.exit(2, f"{self.prog}: {self._missing}\n")
        module, self._module = self._module, None
        if module is not None:
            import_module(module).add_arguments(self)
        return super().parse_known_args(args, namespace)


class _CommandLine(argparse.ArgumentParser):
    """The parser of all verbs: without one it prints the help, and it knows what a wrong one may have meant.

    Attributes:
        offered: the names of the verbs that are installed.
    """

    offered: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        """Exit with 2, and say what is wrong."""
        if message.endswith("required: VERB"):
            self.print_help()
            self.exit(2)
        wrong = re.match("argument VERB: invalid choice: '(.*?)'", message)
        if wrong:
            from publishers.shared.toml_config import closest  # noqa: PLC0415 — only after a mistake

            message = f"there is no verb {wrong[1]!r}; {closest(wrong[1], self.offered)}"
        super().error(message)


def utf8_text(argument: str) -> str:
    """Return an argument that is text, as a name is; a path may be any bytes.

    Raises:
        argparse.ArgumentTypeError: it is not UTF-8.
    """
    try:
        argument.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"{ascii(argument)[1:-1]}: must be UTF-8") from error
    return argument


def take_any_text() -> None:
    """Let standard output and error take what their encoding has not: a substitute or `?` stands there."""
    codecs.register_error(_HANDLER, _substitute)
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):
            continue
        is_ascii = codecs.lookup(stream.encoding).name == "ascii"  # with `surrogateescape` where the locale is C
        if stream.errors == "strict" or (stream.errors == "surrogateescape" and is_ascii):
            stream.reconfigure(errors=_HANDLER)


def _substitute(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_SUBSTITUTES.get(one, "?") for one in error.object[error.start : error.end]), error.end


def command_line(*, without_controller: str = "") -> argparse.ArgumentParser:
    """Return the parser of `gridchase`.

    Args:
        without_controller: why the verbs of the controller cannot be used; "" where they can.
    """
    absent = [entry.name for entry in _VERBS if without_controller and entry.module.startswith(CONTROLLER)]
    epilog = f"Not here: {', '.join(absent)}; {without_controller}" if absent else EPILOG
    parser = _CommandLine(
        prog="gridchase",
        description="Power control for GPU training.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter if absent else argparse.HelpFormatter,
    )
    parser.offered = [entry.name for entry in _VERBS if entry.name not in absent]
    parser.add_argument("--version", action="version", version=f"gridchase {VERSION}")
    levels = ("debug", "info", "warning", "error")
    parser.add_argument("--log-level", choices=levels, metavar="LEVEL", help="debug, info (default), warning, error")
    parser.set_defaults(default_log_level="info", outlives_terminal=False, defers_stops=False)
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB", parser_class=Verb)
    for entry in _VERBS:
        description = f"gridchase {entry.name}: {entry.description or entry.what}."
        if entry.name in absent:  # known, and not offered
            verbs.add_parser(entry.name, missing=without_controller)
        else:
            verbs.add_parser(entry.name, module=entry.module, help=entry.what, description=description)
    return parser
