"""What publishing costs trainings on a real GPU, which is only read: `python -m tests.device.cost [--turns 40]`.

Each training runs in turns, with the publisher's hook and without, through a real broker: how much longer the same
steps take, and how much more of the CPU its thread needs for one.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import NamedTuple

from tests.benchmarks.publisher import mosquitto
from tests.benchmarks.publisher_training import publishing, unhooked
from tests.device.record import about, skips
from tests.device.trainings import KINDS, STEP_S, Training, trainings


class Turn(NamedTuple):
    """Of one turn: time, and CPU time of the thread, for each step [s]."""

    step_s: float
    thread_s: float


def turn(training: Training, turn_s: float) -> Turn:
    """Train for a turn [s]."""
    training.finish()
    begin_s, thread_s, n = time.monotonic(), time.thread_time(), 0
    for number in training.steps(turn_s):
        n = number + 1
    training.finish()
    return Turn((time.monotonic() - begin_s) / n, (time.thread_time() - thread_s) / n)


def row(training: Training, url: str, *, n_turns: int, turn_s: float) -> str:
    """Return what was measured of a training, as a row of the table."""
    without, published = list[Turn](), list[Turn]()
    with publishing(url, training.name) as publisher:
        turn(training, turn_s)
        for _ in range(n_turns):
            with unhooked():
                without.append(turn(training, turn_s))
            published.append(turn(training, turn_s))
        n_seen = publisher.recorder.n_ended
    ratios = [one.step_s / other.step_s for one, other in zip(published, without, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    added_us = 1e6 * (
        statistics.median(one.thread_s for one in published) - statistics.median(one.thread_s for one in without)
    )
    step_ms = 1e3 * statistics.median(one.step_s for one in without)
    longer = f"{statistics.median(ratios) - 1:+.2%} ({low - 1:+.2%} to {high - 1:+.2%})"
    return f"| {KINDS[training.name]} | {step_ms:.2f} | {longer} | {added_us:+.2f} | {n_seen} |"


def table(device: str, kinds: list[str], *, n_turns: int, turn_s: float, step_s: float) -> Iterator[str]:
    """Yield the lines of the table."""
    yield f"{about(device)}\n"
    yield f"{n_turns} turns of {turn_s:g} s each; longer: the median of pairs of turns (quartiles).\n"
    yield "| training | ms a step | longer | thread's CPU for a step [µs] | iterations seen |"
    yield "|---|---:|---:|---:|---:|"
    with mosquitto() as url:
        for training in trainings(device, kinds, step_s=step_s):
            yield row(training, url, n_turns=n_turns, turn_s=turn_s)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=40, help="of each kind, two or more")
    parser.add_argument("--turn-s", type=float, default=1.0, help="how long each is")
    parser.add_argument("--step-s", type=float, default=STEP_S, help="how long a step is, where the device is busy")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try the script itself")
    options = parser.parse_args()
    if not skips(options.device):
        for line in table(
            options.device, options.kinds, n_turns=options.turns, turn_s=options.turn_s, step_s=options.step_s
        ):
            print(line, flush=True)


if __name__ == "__main__":
    main()
