"""How many of our own functions and files one event passes through: `python -m tests.benchmarks.call_trace [--list]`.

A whole controller runs on virtual time (fake GPUs, a bus in one process; router, runs, limiters and meters are real).
When its plan has settled, `sys.setprofile` counts the calls of functions below controller/, policies/ and publishers/
for one `iterations` message that changes no limit, and for one tick without any message. Comprehensions, lambdas,
generator expressions and resumed coroutines are not counted.
"""

import argparse
import asyncio
import platform
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType

import async_solipsism

from tests.scenarios.site import Site, Training, prior_gpu

ROOT = Path(__file__).parents[2]
OURS = tuple(str(ROOT / package) + "/" for package in ("controller", "policies", "publishers"))
SETTLED_S = 6 * 3_600.0
TICK_S = 5.0
N_ITERATIONS = 6


class Trace:
    """The calls of one trip, in their order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self._seen: set[int] = set()
        self._kept: list[FrameType] = []  # so that no identity is used twice

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Count one call of ours."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(OURS) or _is_inline(code) or id(frame) in self._seen:
            return
        self._seen.add(id(frame))
        self._kept.append(frame)
        self.calls.append((code.co_filename.removeprefix(f"{ROOT}/"), code.co_qualname))

    def row(self, trip: str) -> str:
        """Return a row of the table."""
        files = [file for file, _ in self.calls]
        switches = sum(a != b for a, b in pairwise(files))
        return f"| {trip} | {len(files)} | {len(set(files))} | {len(set(self.calls))} | {switches} |"


def _is_inline(code: CodeType) -> bool:
    return code.co_name in {"<listcomp>", "<lambda>", "<genexpr>", "<dictcomp>", "<setcomp>", "<module>"}


@contextmanager
def traced() -> Iterator[Trace]:
    """Trace the calls of the body."""
    trace = Trace()
    sys.setprofile(trace)
    try:
        yield trace
    finally:
        sys.setprofile(None)


def _hold_back(epoch: int = 0) -> None:
    """Publish nothing yet."""
    del epoch


async def _trips(state_dir: Path) -> dict[str, Trace]:
    site = Site(state_dir, [prior_gpu()], "profiler.n_blocks=3")
    training = Training(site)
    async with site.controlled():
        await training.train(SETTLED_S)
        n_written = len(site.gpus[0].history)
        flush = training.flush
        training.flush = _hold_back  # type: ignore[method-assign]
        await training.train(N_ITERATIONS / 0.45)
        with traced() as message:
            flush()
            for _ in range(20):
                await asyncio.sleep(0)
        with traced() as tick:
            await site.clock.sleep_until(site.clock.now_s() + TICK_S)
            for _ in range(20):
                await asyncio.sleep(0)
        assert len(site.gpus[0].history) == n_written, "a limit was written during the trip"
    return {"one iterations message, no new limit": message, f"one tick of {TICK_S:g} s without a message": tick}


def main() -> None:
    """Print the table, and each call with --list."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print every call in its order")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        loop = async_solipsism.EventLoop()
        trips = loop.run_until_complete(_trips(Path(directory)))
        loop.close()
    print(f"Python {platform.python_version()}, own functions only\n")
    print("| trip | calls | files | functions | file switches |")
    print("|---|---:|---:|---:|---:|")
    for trip, trace in trips.items():
        print(trace.row(trip))
    for trip, trace in trips.items() if arguments.list else ():
        print(f"\n{trip}")
        for (file, function), n in Counter(trace.calls).items():
            print(f"{n:5} {file}:{function}")


if __name__ == "__main__":
    main()
