"""Output of the verbs: JSON, files, tables, and plots in the terminal."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import msgspec
from msgspec import Struct
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table

from controller.errors import ConfigError
from publishers.shared.files.atomic_file import replace_file
from publishers.shared.printable import printable

if TYPE_CHECKING:
    import plotille


class Terminal(Console):
    """rich's console, on which text from outside cannot move the cursor or change colours."""

    def on_broken_pipe(self) -> None:
        """Let the verb end as with `print`: rich would exit with 1."""
        raise  # noqa: PLE0704 — rich calls this where it handles the error

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield what is printed: line breaks and rich's own control codes stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(_printable_lines(segment.text), segment.style)


def shown(text: str) -> str:
    """Return a text from outside as rich's markup that shows it, on one line."""
    return escape(printable(text))


def print_json(report: object) -> None:
    """Print a report for scripts; what no terminal should get is escaped, as JSON allows."""
    text = msgspec.json.format(msgspec.json.encode(report)).decode()
    print(re.sub(r"[^\n\x20-\x7e]", lambda match: _json_escape(match[0]), text))


def _json_escape(character: str) -> str:
    is_plain = character.isprintable() and character.encode(sys.stdout.encoding or "utf-8", "replace") != b"?"
    return character if is_plain else json.dumps(character)[1:-1]


def _printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


def note_stream(*, as_json: bool) -> TextIO:
    """Return where remarks beside the report go: standard output must hold nothing but the JSON."""
    return sys.stderr if as_json else sys.stdout


def config_line(config: Struct) -> str:
    """Return what of a configuration differs from the defaults, as one line for the log.

    It holds the paths of secrets, never the secrets.
    """
    changes = _changes("", msgspec.to_builtins(config), msgspec.to_builtins(type(config)()))
    return ", ".join(f"{key} = {json.dumps(value)}" for key, value in changes) or "all defaults"


def _changes(prefix: str, given: dict[str, Any], default: dict[str, Any]) -> Iterator[tuple[str, object]]:
    for name, value in given.items():
        if isinstance(value, dict) and isinstance(default.get(name), dict):
            yield from _changes(f"{prefix}{name}.", value, default[name])
        elif name not in default or value != default[name]:
            yield f"{prefix}{name}", value


def write_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; a pipe or device is written as it is.

    Raises:
        OSError: it cannot be written.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    path.parent.resolve(strict=True)  # a missing folder is a mistake here
    replace_file(path, content, mode=0o666)  # less the umask, as for any file of the user


def write_drawing(option: str, path: Path, content: bytes, *, as_json: bool) -> None:
    """Write a picture or a page, and print its URL.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        write_file(path, content)
    except OSError as error:
        raise ConfigError([f"{option} {path}: {error.strerror}"]) from error
    print(path.resolve().as_uri(), file=note_stream(as_json=as_json))


def plain_table(title: str | None = None) -> Table:
    """Return an empty table without frame; the title may have several lines."""
    title = None if title is None else "\n".join(map(shown, title.split("\n")))
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)


def terminal_plot(
    *,
    size: tuple[int, int],
    labels: tuple[str, str],
    x_limits: tuple[float, float],
    y_limits: tuple[float, float],
    tick_texts: tuple[Callable[[float], str], Callable[[float], str]],
    in_colour: bool,
) -> "plotille.Figure":
    """Return an empty plot of the terminal; each pair is for x and y.

    Args:
        size: columns and rows.
        labels: the names of the axes.
        x_limits: where the x axis begins and ends.
        y_limits: where the y axis begins and ends.
        tick_texts: the text at a tick, from its value.
        in_colour: whether the terminal shows colours.
    """
    import plotille  # noqa: PLC0415 — daemons load this module, too, and draw nothing

    figure = plotille.Figure()
    figure.width, figure.height = size
    figure.with_colors, figure.color_mode, figure.origin = in_colour, "names", False
    figure.x_label, figure.y_label = labels
    figure.x_ticks_fkt = lambda tick, _: tick_texts[0](tick)
    figure.y_ticks_fkt = lambda tick, _: tick_texts[1](tick)
    figure.set_x_limits(min_=x_limits[0], max_=x_limits[1])
    figure.set_y_limits(min_=y_limits[0], max_=y_limits[1])
    return figure
