"""What both demos share: options, exit codes, a broker in a temporary folder, waiting, and the result table."""

import asyncio
import tempfile
import textwrap
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from importlib import metadata
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from rich.console import Console
from rich.table import Table

from controller.errors import ConfigError, ControllerError, leaf_errors
from controller.runtime.stop_signals import stopped_by_signals
from policies.providers.base import SignalError
from policies.service.errors import PolicyError
from publishers.errors import BrokerError
from publishers.mqtt.embedded_broker import EmbeddedBroker, embedded_broker
from publishers.shared.files.lookup import writing_fault

R = TypeVar("R")
VERSION: Final = metadata.version("gridchase")
_EXPECTED: Final = (ControllerError, BrokerError, SignalError, PolicyError)


class DemoError(ControllerError):
    """The demo failed; the message says why."""


def check_common_options(seed: int, json_path: Path | None) -> list[str]:
    """Return what is wrong with the options of both demos: value, bound and remedy."""
    faults = []
    if not 0 <= seed < 1 << 63:
        faults.append(f"--seed {seed}: must be at least 0 and below 2^63")
    if json_path is not None and (fault := writing_fault(json_path)):
        faults.append(f"--json {json_path}: {fault}")
    return faults


def run_to_exit_code(
    demo: Callable[[Console, Callable[[R], None]], Coroutine[None, None, object]],
    *,
    faults: list[str],
    json_path: Path | None,
    print_result: Callable[[R, Console], None],
) -> int:
    """Run a demo, which shows its result by what it is given; return the exit code: 0 done or stopped, 1 failed.

    Raises:
        ConfigError: there are faults in the options; nothing was started.
    """
    if faults:
        raise ConfigError(faults)
    console = Console()

    def show_result(result: R) -> None:
        if json_path is not None:
            json_path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
        print_result(result, console)

    try:
        asyncio.run(_until_stopped(demo(console, show_result)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("stopped on request")
        return 0
    except (*_EXPECTED, OSError) as error:
        errors = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        errors.print(f"gridchase: the demo failed: {error}")
        return 1
    return 0


async def _until_stopped(work: Coroutine[None, None, R]) -> R:
    """Return the result of `work`; the first stop signal cancels it."""
    task = asyncio.current_task()
    with stopped_by_signals(task.cancel if task else work.close):
        return await work


@asynccontextmanager
async def demo_broker() -> AsyncIterator[tuple[EmbeddedBroker, Path]]:
    """Run a broker, with a temporary folder beside it; nothing is left behind.

    Raises:
        DemoError: the body failed with a group of expected errors; the message holds all of them.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="gridchase-demo-") as folder:
            async with embedded_broker() as broker:
                yield broker, Path(folder)
    except ExceptionGroup as group:
        expected, bugs = group.split(_EXPECTED)
        if expected is None or bugs is not None:
            raise
        raise DemoError("; ".join(str(error) for error in leaf_errors(expected))) from group


async def wait_for_event(event: asyncio.Event, timeout_s: float, failure: str) -> None:
    """Wait for an event.

    Raises:
        DemoError: it was not set in time; `failure` says what did not happen.
    """
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError as error:
        raise DemoError(failure) from error


def comparison_table(title: str | None, headings: Iterable[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table of right-aligned columns beside a column of names."""
    table = Table(title=title)
    table.add_column("")
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def print_notes(notes: Iterable[str], console: Console) -> None:
    """Print sentences, each in lines as wide as the terminal; in a pipe, of 80 columns."""
    for note in notes:
        lines = textwrap.wrap(note, console.width, break_long_words=False, break_on_hyphens=False)
        console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def percent_change(ratio: float) -> str:
    """Return a relative change with its sign, as in -13.2 %."""
    return f"{100 * ratio:+.1f} %"
