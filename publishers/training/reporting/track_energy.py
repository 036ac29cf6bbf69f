"""`track_energy`: the energy of any code, as a decorator or a `with` block, for code without a loop of its own.

from gridchase import track_energy

@track_energy(job="resnet50")
def main(): ...

with track_energy("evaluation") as publisher:
    ...
print(publisher.summary())

Each call or block is a run. Where PyTorch was imported before it, the steps of the optimizers are its iterations, and
the controller saves energy as in any training. Without a step it measures the energy of the process's GPUs, no more.
"""

import functools
import inspect
import os
import re
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Any, Final, TypeVar, Unpack, cast, overload

from publishers.training.publisher import Publisher
from publishers.training.settings import PublisherOptions

F = TypeVar("F", bound=Callable[..., Any])
_NOT_OF_A_NAME: Final = re.compile(r"[^A-Za-z0-9._-]")


class EnergyTracker:
    """What `track_energy` returns: a decorator, and a context manager that yields the publisher of its run.

    Args:
        options: as for `track_energy`.
    """

    def __init__(self, options: PublisherOptions) -> None:
        self._options: Final = options
        self._function_name: str | None = None
        self._here = threading.local()

    def __enter__(self) -> Publisher:
        """Begin a run; what is entered again before it has ended, in this thread, is part of it."""
        here = self._here
        here.depth = getattr(here, "depth", 0) + 1
        if here.depth == 1:
            here.publisher = self._begin()
        publisher: Publisher = here.publisher
        return publisher

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the run, and tell what it was; an exception goes on."""
        here = self._here
        if not getattr(here, "depth", 0):  # a generator that another thread has closed
            return
        here.depth -= 1
        if not here.depth:
            publisher: Publisher = here.publisher
            del here.publisher
            publisher.__exit__(kind, error, traceback)

    def __call__(self, function: F) -> F:
        """Return a function whose calls are runs; also of one that is asynchronous, or a generator."""
        self._function_name = getattr(function, "__name__", None)
        if inspect.isasyncgenfunction(function):
            return cast("F", self._async_generator(function))
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def tracked_coroutine(*args: object, **kwargs: object) -> object:
                with self:
                    return await function(*args, **kwargs)

            return cast("F", tracked_coroutine)
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def tracked_generator(*args: object, **kwargs: object) -> Generator[Any, Any, Any]:
                with self:
                    return (yield from function(*args, **kwargs))

            return cast("F", tracked_generator)

        @functools.wraps(function)
        def tracked(*args: object, **kwargs: object) -> object:
            with self:
                return function(*args, **kwargs)

        return cast("F", tracked)

    def _async_generator(self, function: Callable[..., AsyncGenerator[Any, Any]]) -> Callable[..., Any]:
        """Return an asynchronous generator function that is in the run until its generator ends, or is closed."""

        @functools.wraps(function)
        async def tracked(*args: object, **kwargs: object) -> AsyncGenerator[Any, Any]:
            with self:
                async with aclosing(function(*args, **kwargs)) as items:
                    with suppress(StopAsyncIteration):
                        item = await anext(items)
                        while True:
                            try:
                                sent = yield item
                            except Exception as error:  # noqa: BLE001 — thrown into the generator, which may go on
                                item = await items.athrow(error)
                            else:
                                item = await items.asend(sent)

        return tracked

    def _begin(self) -> Publisher:
        """Return the publisher of a new run."""
        options = self._options
        if options.get("job") is None and not os.environ.get("GRIDCHASE_JOB") and self._function_name:
            options = {**options, "job": _NOT_OF_A_NAME.sub("_", self._function_name)[:64]}
        publisher = Publisher(**options)
        publisher.measure_without_iterations()
        return publisher


@overload
def track_energy(job: F, /) -> F: ...


@overload
def track_energy(job: str | None = None, /, **options: Unpack[PublisherOptions]) -> EnergyTracker: ...


def track_energy(job: Any = None, /, **options: Any) -> Any:
    """Return a decorator and context manager that tracks the energy of a function's calls or of a block, each a run.

    It does not raise, waits for 2 s at most, at the end, and then says in one line what the run was. Within it the same
    GPUs have no other publisher: for a loader use `publisher.iterations(loader)`.

    Args:
        job: the name under which it recurs, also as `job=`; else `GRIDCHASE_JOB`, else the name of the function. Of the
            decorator without arguments (`@track_energy`) it is the function.
        options: who publishes, and where to: as for `publish_iterations`.
    """
    if callable(job):
        return EnergyTracker({})(job)
    return EnergyTracker(cast("PublisherOptions", options if job is None else {**options, "job": job}))
