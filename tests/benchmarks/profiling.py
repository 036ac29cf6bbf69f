"""How soon a job's limit and curve are found, beside Zeus: `python -m tests.benchmarks.profiling --data DIR --write`.

First on a stub GPU: ours and Zeus's own optimizer (zeus-ml) drive the same `libnvidia-ml.so.1`, each in a process of
its own, with the same noise of iterations. Then the replay of `gridchase replay profile` over the power traces in a
folder (`summary_power_*.csv` of github.com/SymbioticLab/Zeus, v0.3, `trace/`); without one it says that it skips them.
Then the same curves under the controller itself, as it runs by default. It needs a C compiler, and half an hour.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np

from controller.cli.replay.processes import replay_each
from controller.demo.live_run.profile import MAX_SLOWDOWN, simulate_curve
from controller.demo.recurrences.trace_files import read_power
from controller.gpu.simulation.measured_curve import load_curve
from policies.replay.profiling.curves import GRID_W, CurveShape, TrueCurve, true_curves
from policies.replay.profiling.evaluation import (
    ProfilingEvaluation,
    ProfilingRow,
    curve_errors,
    evaluate,
    profiling_rows,
    summary_rows,
)
from policies.replay.profiling.noise import LEVELS, NoiseName
from policies.replay.profiling.policies import POLICIES, PolicyName
from policies.replay.profiling.slowdown import SlowdownRow, slowdown_summaries
from policies.vocabulary.profile import PowerProfile, ProfilePoint
from tests.benchmarks.pages import add_write, measured_on, show
from tests.live.nvml_stub.fixtures import compile_stub
from tests.live.nvml_stub.machine import StubMachine

TABLE: Final = Path(__file__).with_suffix(".md")
ALL: Final = "all"
ETA: Final = 0.5
SPEEDUP_RATIO: Final = 10.0
"""Iterations of the stub are a tenth as long as they were measured: 77 ms at 300 W."""
COUNTER_S: Final = 0.05
LIVE_SEEDS: Final = 2
"""Of the runs under the controller, which take the longest to simulate."""
TIMEOUT_S: Final = 900.0
NEAR_RATIO: Final = 0.01
QUIET: Final = {"OPENBLAS_NUM_THREADS": "1"}

_Task = tuple[TrueCurve, PolicyName, NoiseName, int]


def stub_curve() -> TrueCurve:
    """Return what the stub does, every 5 W: linear in power and in the time of an iteration."""
    curve = load_curve()
    limits_w, powers_w, speeds_per_s = (
        np.array(column) for column in (curve.power_limits_w, curve.powers_w, curve.speeds_per_s)
    )
    grid_w = np.arange(limits_w[0], limits_w[-1] + 1, GRID_W)
    rates_per_s = SPEEDUP_RATIO / np.interp(grid_w, limits_w, 1 / speeds_per_s)
    rows = zip(grid_w.tolist(), np.interp(grid_w, limits_w, powers_w).tolist(), rates_per_s.tolist(), strict=True)
    points = (ProfilePoint(power_limit_w=w, power_w=power_w, iterations_per_s=rate) for w, power_w, rate in rows)
    return TrueCurve(name="stub", profile=PowerProfile(tuple(points)), is_assumed=False)


class StubRun:
    """What a policy did on the stub."""

    def __init__(self, policy: str, seed: int, library: Path, folder: Path) -> None:
        machine = StubMachine.create(
            library, folder / f"{policy}-{seed}", speedup_ratio=SPEEDUP_RATIO, counter_period_s=COUNTER_S
        )
        child = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.profiling_child", policy, str(seed), str(ETA)],
            env=os.environ | machine.environment() | QUIET,
            check=True,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        told = next(line for line in reversed(child.stdout.splitlines()) if line.startswith("{"))
        self._diary: dict[str, Any] = json.loads(told)
        self._truth = stub_curve()

    @property
    def to_plan(self) -> int:
        """Return how many steps there were before the first plan."""
        return int(self._diary["known"][0]["n"])

    def steps_to_limit(self) -> int | None:
        """Return after how many steps the limit that is planned costs at most 1 % more than the best, for good."""
        return self._first([self._truth.cost_ratio(one["choice_w"], ETA) - 1 for one in self._diary["known"]])

    def steps_to_curve(self) -> int | None:
        """Return after how many steps time and power are within 1 %, on the mean over the useful limits, for good."""
        return self._first([max(self.errors(one)[:2]) for one in self._diary["known"]])

    def errors(self, known: dict[str, Any] | None = None) -> tuple[float, float, float]:
        """Return how far off the curve is; in the end where nothing else is said."""
        points = (known or self._diary["known"][-1])["curve"]
        curve = PowerProfile.from_rows((w, power_w, rate) for w, power_w, rate in points)
        return curve_errors(self._truth, curve)

    def energy_j(self, n_steps: int) -> float:
        """Return the energy of the first steps [J]."""
        return float(sum(self._truth.profile.at(limit_w)[0] * s for limit_w, s in self._diary["steps"][:n_steps]))

    def excess_iterations(self, n_steps: int) -> float:
        """Return what the first steps cost beyond the optimum, in iterations of the optimum."""
        return math.fsum(self._truth.cost_ratio(limit_w, ETA) - 1 for limit_w, _ in self._diary["steps"][:n_steps])

    def _first(self, errors: Sequence[float]) -> int | None:
        first = len(errors)
        while first and errors[first - 1] <= NEAR_RATIO:
            first -= 1
        return None if first == len(errors) else int(self._diary["known"][first]["n"])


def page(data: Path | None, n_stub_seeds: int, n_seeds: int) -> Iterator[str]:
    """Yield the lines of the page."""
    where = f"--data {data.name} " if data else ""
    yield "# How soon a job's power limit and curve are found\n"
    yield f"{measured_on('zeus-ml')}; `python -m tests.benchmarks.profiling {where}--write`.\n"
    with tempfile.TemporaryDirectory() as folder:
        yield from stub_section(Path(folder), n_stub_seeds)
    paths = sorted(data.glob("summary_power_*.csv")) if data else []
    if not paths:
        yield "\nThe replay on measured traces is skipped: there are none; name their folder with `--data DIR`."
        return
    curves = true_curves_of(paths)
    yield from replay_section(paths, curves, n_seeds)
    yield from live_section(curves, min(n_seeds, LIVE_SEEDS))


def true_curves_of(paths: Sequence[Path], *, shape: CurveShape = "linear") -> list[TrueCurve]:
    """Return the curves of traces of power."""
    faults: list[str] = []
    traces = [trace for path in paths if (trace := read_power(path, faults)) is not None]
    if faults:
        raise SystemExit("\n".join(faults))
    return [curve for trace in traces for curve in true_curves(trace, shape=shape)]


def stub_section(folder: Path, n_seeds: int) -> Iterator[str]:
    """Yield the comparison on the stub GPU."""
    library = compile_stub(folder)
    yield "## On the same stub GPU\n"
    yield (
        "ResNet-50 on ImageNet at batch size 256 as Zeus measured it on an A40 (100 to 300 W), ten times as fast "
        "(77 ms an iteration at 300 W), behind a `libnvidia-ml.so.1` whose counter of energy moves every 50 ms. "
        "Iterations scatter by 5 %, one in 200 stalls, blocks of 2 s differ by 0.8 %; the same for both. "
        "*gridchase*: the controller's profiler, NVML adapter and account, in their order, without the bus between "
        "them. *Zeus*: `GlobalPowerLimitOptimizer` with its defaults and `ZeusMonitor`, from PyPI. η = 0.5. *Within "
        "1 %*: from there on, for good; the limit by its true cost; the curve by its mean error in time and in power "
        "over the limits from the one of the least energy up. *Excess*: cost beyond the best limit, in iterations of "
        "that.\n"
    )
    yield (
        "| | seed | steps to the first plan | steps to a limit within 1 % | energy [kJ] | excess | steps to a curve "
        "within 1 % | energy [kJ] | excess | time, power of the curve, in the end |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for seed, policy in product(range(n_seeds), ("gridchase", "zeus")):
        run = StubRun(policy, seed, library, folder)
        to_limit, to_curve, (time_ratio, power_ratio, _) = run.steps_to_limit(), run.steps_to_curve(), run.errors()
        yield (
            f"| {'Zeus' if policy == 'zeus' else policy} | {seed} | {run.to_plan:,} | {_count(to_limit)} | "
            f"{_spent(run, to_limit)} | {_count(to_curve)} | {_spent(run, to_curve)} | "
            f"{100 * time_ratio:.2f}, {100 * power_ratio:.2f} % |"
        )


def _count(n_steps: int | None) -> str:
    return "never" if n_steps is None else f"{n_steps:,}"


def _spent(run: StubRun, n_steps: int | None) -> str:
    if n_steps is None:
        return "- | -"
    return f"{run.energy_j(n_steps) / 1_000:.1f} | {run.excess_iterations(n_steps):.1f}"


def replay_section(paths: Sequence[Path], curves: Sequence[TrueCurve], n_seeds: int) -> Iterator[str]:
    """Yield the replay over traces of power, at each level of noise."""
    yield f"\n## On measured curves: {', '.join(path.name for path in paths)}, {n_seeds} seeds\n"
    yield (
        f"All {len(curves)} curves of the traces of Zeus v0.3 (Apache-2.0), as `gridchase replay profile` does; "
        "η = 0.5; means, but for the median of the iterations to the first plan. *1,000* and so on: what a job of so "
        "many iterations costs beyond the best limit of a 5 W grid, profiling included, in iterations of that. "
        "*Error*: of the limit that is kept; *good*: within 1 %, by curve and seed. *Against Zeus*: on the worst "
        "curve, by how much the limit that is kept costs more than the one of Zeus's sweep. Between measured limits, "
        "every 25 W, the true curves are linear in power and time, which is how neither policy sees them: Zeus's sweep "
        "tries the measured limits themselves, ours interpolates by monotone cubics in logarithms."
    )
    for noise in LEVELS:
        yield f"\n### {noise.capitalize()} noise\n"
        yield from _table(curves, noise, n_seeds)
    yield "\n### Realistic noise, every point as measured\n"
    yield (
        "The same, but points of the trace that contradict one another are not pooled: at some limits a job that no "
        "limit slows is faster, or draws less, by luck (by up to 14 %, in short epochs), and there its best limit is. "
        "Ours takes for granted that more power makes no job slower.\n"
    )
    yield from _table(true_curves_of(paths, shape="as_measured"), "realistic", n_seeds)
    yield "\n### Realistic noise, smooth curves\n"
    yield (
        "The curves of the second table, but smooth between the measured limits, as ours sees them: until 23 November "
        "2026 this page had no others. The profiler is the same. Where curves are linear between corners, cost is "
        "least at a corner, which is a limit that Zeus's sweep tries. Ours misses the best limit by some watts on "
        "both, and beside a corner that costs more.\n"
    )
    yield from _table(true_curves_of(paths, shape="smooth"), "realistic", n_seeds)


def _table(curves: Sequence[TrueCurve], noise: NoiseName, n_seeds: int) -> Iterator[str]:
    """Yield the replay at a level of noise."""
    tasks: list[_Task] = [(curve, policy, noise, n_seeds) for curve, policy in product(curves, POLICIES)]
    rows = profiling_rows(replay_each(_evaluate, tasks, n_processes=os.cpu_count() or 1, what=noise))
    yield (
        "| curves | policy | to plan | 1,000 | 5,000 | 20,000 | error | good | time, power of the curve | "
        "against Zeus |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    for name in (*dict.fromkeys(_trace_of(row.curve) for row in rows), ALL):
        yield from _summary(name, [row for row in rows if name in (ALL, _trace_of(row.curve))])


def live_section(curves: Sequence[TrueCurve], n_seeds: int) -> Iterator[str]:
    """Yield what the controller's default costs on the same curves."""
    tasks = [(curve, n_seeds) for curve in curves]
    rows = replay_each(_simulate, tasks, n_processes=os.cpu_count() or 1, what="live runs")
    yield f"\n## The default: at most {100 * (MAX_SLOWDOWN - 1):g} % slower, {n_seeds} seeds\n"
    yield (
        "The same curves as `gridchase replay profile --live` runs them: the controller itself on simulated time, as "
        "it runs by default, without a signal; nothing says how long a run is. *Slower*: than at the highest limit. "
        "*Excess*: energy beyond the least with which any mix of two limits does the work in that time, in iterations "
        "of that mix: the first pass, the limits that were tried, the looks at the highest one, and what is not known "
        "in the end. *Over the mix*: energy beyond the best mix that takes the whole budget; it contains the price of "
        "time that was left. *At the top*: share of the time at the highest limit.\n"
    )
    yield "| curves | iterations | slower | excess | over the mix | at the top |\n|---|---:|---:|---:|---:|---:|"
    for name in (*dict.fromkeys(_trace_of(row.curve) for row in rows), ALL):
        for mean in slowdown_summaries([row for row in rows if name in (ALL, _trace_of(row.curve))]):
            for length, slower_ratio in mean.slowdown_ratio.items():
                yield (
                    f"| {name}, {mean.curve.removeprefix('mean over ')} ({mean.n_curves}) | {int(length):,} | "
                    f"{100 * slower_ratio:.2f} % | {mean.excess_iterations[length]:.1f} | "
                    f"{100 * mean.excess_ratio[length]:+.2f} % | {100 * mean.highest_ratio[length]:.0f} % |"
                )


def _trace_of(curve: str) -> str:
    """Return the trace that a curve is of."""
    return curve.rsplit("@", 1)[-1]


def _simulate(task: tuple[TrueCurve, int]) -> SlowdownRow:
    curve, n_seeds = task
    return simulate_curve(curve, n_seeds=n_seeds)


def _evaluate(task: _Task) -> ProfilingEvaluation:
    curve, policy, noise, n_seeds = task
    return evaluate(curve, policy, noise, eta=ETA, n_seeds=n_seeds)


def _summary(name: str, rows: Sequence[ProfilingRow]) -> Iterator[str]:
    """Yield a line for each policy over the power-bound curves, and over all."""
    summaries = {(row.curve, row.policy): row for row in summary_rows(rows)}
    for over, policy in product(("power-bound", "all"), POLICIES):
        mean, median = summaries[f"mean over {over}", policy], summaries[f"median over {over}", policy]
        excess = " | ".join(f"{value:.1f}" for value in mean.excess_iterations.values())
        against = mean.selection_against_zeus_ratio
        yield (
            f"| {name}, {over} ({mean.n_curves}) | {policy} | {median.iterations_to_plan:.0f} | {excess} | "
            f"{100 * mean.selection_error_ratio:.2f} % | {100 * mean.good_selections_ratio:.0f} % | "
            f"{100 * mean.curve_time_error_ratio:.2f}, {100 * mean.curve_power_error_ratio:.2f} % | "
            f"{'-' if against is None or policy == 'zeus' else f'{100 * against:+.2f} %'} |"
        )


def main() -> None:
    """Measure and print; with `--write` into the page beside this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of summary_power_*.csv")
    parser.add_argument("--stub-seeds", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=5)
    add_write(parser, TABLE)
    options = parser.parse_args()
    os.environ.update(QUIET)
    show(page(options.data, options.stub_seeds, options.seeds), TABLE, write=options.write)


if __name__ == "__main__":
    main()
