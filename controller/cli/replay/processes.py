"""Long replays on every core: worker processes, progress on a terminal, and an immediate end on Ctrl-C."""

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import active_children, get_context, resource_tracker
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress

Task = TypeVar("Task")
Result = TypeVar("Result")


def replay_each(
    replay: Callable[[Task], Result], tasks: Sequence[Task], *, n_processes: int, what: str
) -> list[Result]:
    """Return the result of `replay` for each task, in order.

    Args:
        replay: a function of a module; what it takes and returns can be pickled.
        tasks: its arguments.
        n_processes: how many processes work at a time; 1: this one.
        what: the name of the tasks beside the progress bar.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed; the processes have been ended in the middle of their work.
    """
    with progress_bars() as progress:
        bar = progress.add_task(what, total=len(tasks))
        if n_processes == 1 or len(tasks) <= 1:
            results = []
            for task in tasks:
                results.append(replay(task))
                progress.advance(bar)
            return results
        with ProcessPoolExecutor(min(n_processes, len(tasks)), mp_context=get_context("spawn")) as pool:
            try:
                with sigint_blocked():
                    futures = [pool.submit(replay, task) for task in tasks]
                for _ in as_completed(futures):
                    progress.advance(bar)
            except KeyboardInterrupt:
                _stop(pool)
                raise
            return [future.result() for future in futures]


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Start the processes of the body with SIGINT blocked, since this process ends them.

    A Ctrl-C during the body is raised at its end, even if another thread receives it. Children inherit the signals
    that this thread blocks, but no handlers; ignoring the signal instead would lose it here.
    """
    resource_tracker.ensure_running()  # the first child would start it, which unblocks the signal
    received: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, before)
        if received:
            raise KeyboardInterrupt


def _stop(pool: ProcessPoolExecutor) -> None:
    """End the processes in the middle of their work, which may take minutes, and cancel waiting tasks."""
    pool.shutdown(wait=False, cancel_futures=True)
    for child in active_children():
        child.terminate()


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Yield progress bars on a terminal; in a pipe they stay silent."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress
