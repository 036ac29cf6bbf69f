"""Trainings whose steps differ in length, counted by their work and by iterations.

`python -m tests.benchmarks.work [--write]`. The trainings are simulated: a step takes as long as it has tokens, and of
several ranks as long as the longest; lengths are normal.
"""

import argparse
import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from controller.accounting.iteration_log import IterationLog, n_together
from policies.vocabulary.units import Values
from tests.benchmarks.pages import add_write, measured_on, show
from tests.controller.messages import iterations, ns
from tests.scenarios.site import (
    DRAW_S,
    FINE,
    HOUR_S,
    POWER_RATIO,
    PRIOR_W,
    Site,
    energy_j,
    prior_gpu,
    rate_per_s,
)
from tests.scenarios.work import MEAN_TOKENS, LanguageTraining
from tests.virtual_time import VirtualTimeLoop

TABLE: Final = Path(__file__).with_suffix(".md")
STEP_S: Final = 0.25
WINDOWS_S: Final = (0.5, 2.0, 5.0, 10.0, 30.0)
N_STEPS: Final = 20_000
PER_MESSAGE: Final = 8
SEEDS: Final = range(1, 7)
RUN_H: Final = 1.0
MAX_SLOWDOWN: Final = 1.03
SCATTERS: Final = (0.18, 0.36)
SETTINGS: Final = (FINE, "profiler.settle_s=2", "profiler.window_s=10", "profiler.block_s=20", "profiler.n_blocks=24")

HEAD: Final = """\
# Steps of unequal length: by work, and by iterations

{measured_on}; `python -m tests.benchmarks.work --write`.

A simulated training: a step takes as long as it has tokens, {step_ms:.0f} ms on average, but for a part that is
fixed; of several ranks, each with its own lengths, as long as the longest. *By work*: each rank tells its tokens.
Scatter: the standard deviation of the rate in a window, relative to its mean, through the wire's messages and the log
of iterations."""

RUNS: Final = """\
Whole runs of {hours:g} h under the controller itself, on virtual time: one GPU, {rate:g} steps of mean length a
second at the top, nothing of them fixed, {slowdown:.0%} slower allowed, {n} runs each with other lengths, mean
(worst). Curve: how far the ratio of a rate to that at the top is off, at the worst limit from 145 W on. Told: how far
the slowdown that is published at the end is off, in points; a run says nothing where the evidence is too little.
Over: how much slower than allowed the work was done, in points; below 0: time that was not used. Saved: energy that
was really saved, of that of the same work at the top."""


def fast_rate_per_s(power_limit_w: float) -> float:
    """Return how many steps of mean length a second are done at a limit."""
    return rate_per_s(power_limit_w) / (STEP_S * rate_per_s(PRIOR_W))


def scatter_ratios(n_ranks: int, fixed_ratio: float, *, by_work: bool) -> list[float]:
    """Return the scatter of the rate in each window."""
    dice = np.random.default_rng(n_ranks)
    lengths = dice.normal(1.0, SCATTERS[0], (n_ranks, N_STEPS)).clip(0.1)
    times_s = STEP_S * (fixed_ratio + (1 - fixed_ratio) * lengths.max(axis=0))
    ends_s = list(accumulate(times_s.tolist(), initial=10.0))
    logs = [log_of(ends_s, MEAN_TOKENS * one if by_work else None, is_alone=n_ranks == 1) for one in lengths]
    begin_s, end_s = ends_s[1_000], ends_s[-1]
    found = []
    for window_s in WINDOWS_S:
        counts = []
        for since_s in np.arange(begin_s, end_s - window_s, window_s).tolist():
            activities = [log.activity(ns(since_s), ns(since_s + window_s)) for log in logs]
            counts.append(n_together(logs, activities))
        found.append(float(np.std(counts) / np.mean(counts)))
    return found


def log_of(ends_s: list[float], work: Values | None, *, is_alone: bool) -> IterationLog:
    """Return the log of a rank."""
    log = IterationLog(is_alone=is_alone)
    for seq, first in enumerate(range(0, N_STEPS, PER_MESSAGE)):
        some_s = ends_s[first + 1 : first + 1 + PER_MESSAGE]
        told = None if work is None else work[first : first + PER_MESSAGE].tolist()
        requests_s = [ends_s[first], *some_s[:-1]]
        message = iterations(ends_s[first], some_s, seq=seq, first=first, requests_s=requests_s, work=told)
        log.append(message, now_ns=ns(1e6))
    return log


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What came of a run; all but the last are how far something is off."""

    curve_ratio: float
    told_ratio: float
    over_ratio: float
    saved_ratio: float


def train(scatter_ratio: float, by_work: bool, seed: int) -> Found:
    """Train on virtual time."""
    logging.disable(logging.WARNING)
    with TemporaryDirectory() as folder, asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(_train(Path(folder), scatter_ratio, by_work=by_work, seed=seed))


async def _train(folder: Path, scatter_ratio: float, *, by_work: bool, seed: int) -> Found:
    gpu = prior_gpu()
    site = Site(folder, [gpu], *SETTINGS, f"plan.max_slowdown={MAX_SLOWDOWN}")
    training = LanguageTraining(site, scatter_ratio=scatter_ratio, tells=by_work, seed=seed, rate=fast_rate_per_s)
    async with site.controlled():
        await training.train(RUN_H * HOUR_S)
        training.publish_status("finished")
        await asyncio.sleep(30)
    begin_s = training.begin_s or 0.0
    top_s = training.n_tokens / MEAN_TOKENS / fast_rate_per_s(PRIOR_W) + training.n_iterations * DRAW_S
    slowdown_ratio = (training.end_s - begin_s) / top_s
    (*points, top) = sorted(site.profiles()[-1].points, key=lambda point: point.power_limit_w)
    top_step_s = 1 / fast_rate_per_s(top.power_limit_w) + DRAW_S
    off = [
        point.iterations_per_s / top.iterations_per_s * (1 / fast_rate_per_s(point.power_limit_w) + DRAW_S) / top_step_s
        for point in points
        if point.power_limit_w >= 145.0
    ]
    return Found(
        curve_ratio=max((abs(ratio - 1) for ratio in off), default=np.nan),
        told_ratio=(site.energies()[-1].slowdown_ratio or np.nan) - slowdown_ratio,
        over_ratio=slowdown_ratio - MAX_SLOWDOWN,
        saved_ratio=1 - energy_j(gpu, begin_s, training.end_s) / (POWER_RATIO * PRIOR_W * top_s),
    )


def page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield HEAD.format(measured_on=measured_on(), step_ms=1_000 * STEP_S)
    yield ""
    yield (
        "| ranks | lengths scatter by | fixed | counted by | " + " | ".join(f"{each:g} s" for each in WINDOWS_S) + " |"
    )
    yield "|---:|---:|---:|---|" + "---:|" * len(WINDOWS_S)
    for n_ranks, fixed_ratio in ((1, 0.0), (1, 0.2), (2, 0.2), (8, 0.2)):
        for by_work in (False, True):
            cells = [f"{100 * ratio:.2f} %" for ratio in scatter_ratios(n_ranks, fixed_ratio, by_work=by_work)]
            name = "work" if by_work else "iterations"
            yield f"| {n_ranks} | {SCATTERS[0]:.0%} | {fixed_ratio:.0%} | {name} | {' | '.join(cells)} |"
    yield ""
    rate = fast_rate_per_s(PRIOR_W)
    yield RUNS.format(hours=RUN_H, rate=rate, slowdown=MAX_SLOWDOWN - 1, n=len(SEEDS))
    yield ""
    yield "| lengths scatter by | counted by | curve | told | over | saved |"
    yield "|---:|---|---:|---:|---:|---:|"
    with ProcessPoolExecutor(max_workers=1) as pool:
        for scatter_ratio in SCATTERS:
            for by_work in (False, True):
                n = len(SEEDS)
                found = list(pool.map(train, [scatter_ratio] * n, [by_work] * n, SEEDS))
                name = "work" if by_work else "iterations"
                yield f"| {scatter_ratio:.0%} | {name} | {' | '.join(cells_of(found))} |"


def cells_of(found: list[Found]) -> list[str]:
    """Return a row's cells."""
    curve, told, over, saved = (
        100 * np.array([getattr(each, name) for each in found])
        for name in ("curve_ratio", "told_ratio", "over_ratio", "saved_ratio")
    )
    known = np.abs(told[np.isfinite(told)])
    off = f"{known.mean():.2f} ({known.max():.2f})" if len(known) else "never told"
    return [
        f"{curve.mean():.2f} % ({curve.max():.2f})",
        off if len(known) in {0, len(told)} else f"{off}, told {len(known)} times",
        f"{over.mean():+.2f} ({over.max():+.2f})",
        f"{saved.mean():.1f} % ({saved.min():.1f})",
    ]


def main() -> None:
    """Print the page; with `--write`, write it too."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_write(parser, TABLE)
    show(page(), TABLE, write=parser.parse_args().write)


if __name__ == "__main__":
    main()
