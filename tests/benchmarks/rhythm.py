"""What the rules for bursts, pauses and steadiness say of random loops: `python -m tests.benchmarks.rhythm [--write]`.

Mixtures of training loops (`tests.policies.profiling.mixtures`), each seen by four kinds of marks, judged by
`policies.profiling.rhythm`. Once within the ranges that the rules were made with, and once with another seed within
other ranges, which nothing was tuned to. Then the time that a message of iterations costs.
"""

import argparse
import time
import timeit
from array import array
from collections import Counter
from pathlib import Path
from typing import Final

import numpy as np

from controller.accounting.iteration_log import IterationLog
from policies.profiling.rhythm import SKIPPED, UNUSABLE, Intervals, judge_rhythm
from publishers.messages.training import Iterations, pack_ends
from tests.benchmarks.pages import measured_on
from tests.policies.profiling.mixtures import ROWS, UNSEEN, USUAL, VIEWS, Marks, Ranges, View, mixture

TABLE: Final = Path(__file__).with_suffix(".md")
N: Final = 400
SEEDS: Final = {"usual": 1, "unseen": 20_261_123}
TOLERANCE_RATIO: Final = 0.02
MESSAGE_N: Final = 100
WARM_UP_N: Final = 10

HEAD: Final = """\
# What an iteration is: verdicts on random training loops

{measured_on}; `python -m tests.benchmarks.rhythm --write`.

{n} mixtures a row, judged by 120 to 600 steps without the first {n_skipped} marks. Each cell: *right* / *wrong* / *no
claim* / *not profiled*, in %. Right and wrong are claims to know the time of an iteration: within 2 % of the true one
(the mean that the steps were drawn from, where they have one), or not. No claim: too few steps for their scatter, or
not steady; such a run is profiled, with wider intervals. Not profiled: it is not known what an iteration is. *Loader*:
when the next batch was requested; *receipts*: and when it was received. The last column: how often the mean of all
marks is right."""
UNSEEN_HEAD: Final = """\
## Within other ranges, with another seed: nothing was tuned to these

150 to 900 steps of 3 ms to 5 s, cv 0.2 to 25 %; pauses of 4 to 600 steps; stalls of 1.5 to 50 steps after 0.1 to 3 %;
drift up to 50 %; up to 24 workers; and so on (`UNSEEN` in `mixtures.py`)."""
COST: Final = """\
## Cost

In the log of a rank, a message of {n} plain iterations takes {0:.0f} µs from a loader, {1:.0f} µs from an optimizer
with requests; and a judgement, every 128 iterations and 10 s at most, {2:.0f} µs. Each is the least of repetitions."""


def verdict(marks: Marks) -> str:
    """Return what the rules say of a mixture: `right`, `wrong`, `no claim`, or `not profiled`."""
    rhythm = judge_rhythm(marks.seen.without_first(SKIPPED))
    if rhythm.not_profiled_reason is not None:
        return "not profiled" if rhythm.not_profiled_reason in UNUSABLE else "no claim"
    return "right" if abs(rhythm.iteration_time_s / marks.iteration_time_s - 1) <= TOLERANCE_RATIO else "wrong"


def counts_of(row: str, seed: int, ranges: Ranges, n: int) -> dict[View, Counter[str]]:
    """Return how often each verdict was given, by kind of marks."""
    counts: dict[View, Counter[str]] = {view: Counter() for view in VIEWS}
    for index in range(n):
        loop = mixture(row, seed, index, ranges)
        for view in VIEWS:
            counts[view][verdict(loop.marks(view))] += 1
        plain = loop.marks("loader")
        off = float(plain.seen.times_s[SKIPPED:].mean()) / plain.iteration_time_s - 1
        counts["loader"]["plain mean"] += abs(off) <= TOLERANCE_RATIO
    return counts


def table_of(name: str, ranges: Ranges, n: int) -> list[str]:
    """Return the table of one set of ranges."""
    lines = [
        "| mixture | " + " | ".join(VIEWS) + " | plain mean of the loader's marks |",
        "|---|" + "---:|" * (len(VIEWS) + 1),
    ]
    for row in ROWS:
        counts = counts_of(row, SEEDS[name], ranges, n)
        cells = [
            " / ".join(f"{100 * counts[view][what] / n:.3g}" for what in ("right", "wrong", "no claim", "not profiled"))
            for view in VIEWS
        ]
        lines.append(f"| {row} | {' | '.join(cells)} | {100 * counts['loader']['plain mean'] / n:.3g} |")
        print(lines[-1], flush=True)
    return lines


def message_us(*, counts_steps: bool, n_messages: int = 500) -> float:
    """Return what the log takes for a message of plain iterations, judgements included [µs]."""
    ends_ns = np.cumsum(1e5 * np.exp(0.05 * np.random.default_rng(1).standard_normal(n_messages * MESSAGE_N)))
    messages: list[Iterations] = []
    for seq in range(n_messages):
        whole = ends_ns[seq * MESSAGE_N : (seq + 1) * MESSAGE_N].astype(np.int64).tolist()
        begin_ns = messages[-1].ends_ns()[-1] if messages else 0
        requests_ns = [at_ns + 100 for at_ns in (begin_ns, *whole[:-1])]
        messages.append(
            Iterations(
                run="r",
                seq=seq,
                first=seq * MESSAGE_N,
                begin_ns=begin_ns,
                end_ns=pack_ends(array("q", whole)),
                epoch=0,
                dropped=0,
                counted_by="optimizer" if counts_steps else "loader",
                request_ns=pack_ends(array("q", requests_ns)) if counts_steps else b"",
            )
        )
    return min(_log_us(messages) for _ in range(10))


def _log_us(messages: list[Iterations]) -> float:
    """Return what the log of a rank takes for each of these messages, without the first ones [µs]."""
    log, now_ns = IterationLog(), messages[-1].ends_ns()[-1]
    for message in messages[:WARM_UP_N]:
        log.append(message, now_ns=now_ns)
    begin_s = time.perf_counter()
    for message in messages[WARM_UP_N:]:
        log.append(message, now_ns=now_ns)
        log.forget_before(message.begin_ns)
    return (time.perf_counter() - begin_s) / len(messages[WARM_UP_N:]) * 1e6


def judgement_us(n: int) -> float:
    """Return what one judgement of so many plain intervals takes [µs]."""
    times_s = 0.01 * np.exp(0.05 * np.random.default_rng(1).standard_normal(n))
    seen = Intervals(times_s=times_s, loose_s=times_s, counts_steps=False)
    return min(timeit.repeat(lambda: judge_rhythm(seen), number=10, repeat=20)) / 10 * 1e6


def main() -> None:
    """Judge all mixtures, and write the tables beside this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=N)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    costs_us = [message_us(counts_steps=False), message_us(counts_steps=True), judgement_us(512)]
    parts = [
        HEAD.format(measured_on=measured_on(), n=options.n, n_skipped=SKIPPED),
        "## Within the ranges that the rules were made with",
        "\n".join(table_of("usual", USUAL, options.n)),
        UNSEEN_HEAD,
        "\n".join(table_of("unseen", UNSEEN, options.n)),
        COST.format(*costs_us, n=MESSAGE_N),
    ]
    text = "\n\n".join(parts) + "\n"
    print(parts[-1])
    if options.write:
        TABLE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
