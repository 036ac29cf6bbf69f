"""Long replays on every core: processes of their own, progress on a terminal, and an end at once on Ctrl-C."""

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
    """Return what `replay` makes of each task, in their order.

    Args:
        replay: a function of a module; what it takes and returns can be pickled.
        tasks: what there is to do.
        n_processes: how many work at a time; one means: this process.
        what: what the tasks are called beside the progress bar.

    Raises:
        KeyboardInterrupt: the user wants no more; the processes have ended, whatever they were at.
    """
    with _progress(len(tasks), what) as advance:
        if n_processes == 1 or len(tasks) <= 1:
            results = []
            for task in tasks:
                results.append(replay(task))
                advance()
            return results
        with ProcessPoolExecutor(min(n_processes, len(tasks)), mp_context=get_context("spawn")) as pool:
            try:
                with deaf_children():
                    futures = [pool.submit(replay, task) for task in tasks]
                for _ in as_completed(futures):
                    advance()
            except KeyboardInterrupt:
                _stop(pool)
                raise
            return [future.result() for future in futures]


@contextmanager
def deaf_children() -> Iterator[None]:
    """Let processes that are started here not hear Ctrl-C, from their first moment on: it is this one that ends them.

    A Ctrl-C that comes meanwhile is raised at the end, also where it reaches another thread than this one. Children
    inherit the signals that this thread blocks, but not a handler; ignoring the signal instead would lose it here.
    """
    resource_tracker.ensure_running()  # the first child would start it, which unblocks the signal
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, before)
        if heard:
            raise KeyboardInterrupt


def _stop(pool: ProcessPoolExecutor) -> None:
    """End the processes in the middle of their work, which may be a minute's, and give up what waits."""
    pool.shutdown(wait=False, cancel_futures=True)
    for child in active_children():
        child.terminate()


@contextmanager
def _progress(n_tasks: int, what: str) -> Iterator[Callable[[], None]]:
    """Give what is told of each task that is done; shown on a terminal, and quiet in a pipe."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(what, total=n_tasks)
        yield lambda: progress.advance(bar)
