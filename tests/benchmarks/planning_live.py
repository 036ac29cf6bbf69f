"""What a user gets: runs under the controller itself, `python -m tests.benchmarks.planning_live --data DIR [--write]`.

DIR as for `tests.benchmarks.planning`. ResNet-50 on ImageNet is simulated, as `gridchase replay plan
--live` does: told how long it is, not told, and blind to the grid, beside what knows the curve for nothing.

A day takes some seconds of CPU under each policy. With `--keep FOLDER` each result is kept there, and a page that was
broken off goes on where it was; `--every K` makes it of each K-th start alone. Results are of the program that made
them: keep those of another one elsewhere.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from controller.cli.replay.plan_inputs import Overhead, read_signals, scenario_of
from controller.cli.replay.processes import replay_each
from controller.demo.live_run.noise import H100, USUAL, RunNoise
from controller.demo.live_run.simulation import LiveRunSimulator, run_result
from policies.replay.power_limit.evaluation import Comparison, PolicyName, replay_variants, run_specs
from policies.replay.power_limit.scenario import RunSpec, Scenario
from policies.replay.power_limit.simulation import RunResult
from policies.vocabulary.power_curve import fit_curve
from policies.vocabulary.units import HOUR_S, Values
from publishers.shared.files.atomic_file import replace_file
from tests.benchmarks.pages import add_data, add_write, has_data, measured_on, show
from tests.benchmarks.planning import curves_of

TABLE: Final = Path(__file__).with_suffix(".md")
POLICIES: Final[tuple[PolicyName, ...]] = (
    "static-mix", "static-mix-live", "gridchase-forecast", "gridchase-live", "gridchase-live-open", "offline",
)  # fmt: skip
GPUS: Final = ["a40", "v100"]
USUAL_SLOWDOWNS: Final = [1.05]
NOISES: Final[Mapping[str, RunNoise]] = {"usual": USUAL, "h100": H100}
BLIND: Final[PolicyName] = "static-mix-live"
"""It decides alike whatever the signal is, and is simulated once for all."""
NAMES: Final = ("mix", "mix-live", "planner", "live", "live-open", "optimum")
SMOOTH_W: Final = 5.0
N_ENDS: Final = 30
MEDIAN_END_H: Final = 24.0
DAY_H: Final = 24
PROTOCOL: Final = """\
ResNet-50 on ImageNet, batch size 256. saved: the carbon saved against the highest limit [%], the mean over the signals.
mix: two limits that just use up the budget, blind to the signal; planner: gridchase's plan every hour with its own
forecast, told how long the run is; optimum: in hindsight. These three know the curve for nothing, which is straight
between measured limits, 25 W apart, or (smooth) a smooth one through them. mix-live, live and live-open are simulated
under the controller: first pass with noise, looks, refinement, reserve, limits every 5 W, plans every 5 min, each value
of the signal known when it has ended; live is told how long the run is, live-open is not.
usual: iterations as long as on the curve (V100 0.70 s, A40 0.77 s) scatter by 2 %, the power by 1 % from one 10 s to
the next; h100: iterations of 64 ms; they scatter by 0.03 %, and windows of rate and power as measured on an H100.
slower: how much longer than at the highest limit [%], the mean. share: of the optimum. captured: of what the grid
offers, (saved - mix) / (optimum - mix). Gains are in points of what the highest limit costs: mean, least zone (the mean
of its starts), worst run. over: the slowest run's points above its budget.
random ends: live-open, ended without warning (lognormal, median 24 h, sigma 1; those after an hour and before its end),
and over then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A run on a curve and a signal, with noise, at a budget; those of one seed have the same noise on all signals."""

    noise: str
    seed: int
    trace: str
    hours: int
    max_slowdown: float
    scenario: Scenario
    spec: RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """What a run comes to under each policy.

    Attributes:
        saved_ratios: the carbon saved against the highest limit, by policy.
        slowdown_ratios: the time over that at the highest limit, by policy.
        end_gains: what live-open gains over mix-live at random ends [points].
        end_over: how far it is above its budget then, at most [points].
    """

    saved_ratios: dict[str, float]
    slowdown_ratios: dict[str, float]
    end_gains: tuple[float, ...]
    end_over: float


def simulated(task: Task) -> SimulatedRun:
    """Simulate a run under all policies."""
    simulator = LiveRunSimulator(noise=NOISES[task.noise], seed=task.seed)
    policies = tuple(name for name in POLICIES if name != BLIND)
    comparison = Comparison(policies=policies, max_slowdowns=(task.max_slowdown,), live=simulator)
    runs = {variant.policy: run for variant, run in replay_variants(task.scenario, task.spec, comparison)}
    runs[BLIND] = _blind(task, simulator)
    gains, over = _at_ends(task, runs["gridchase-live-open"], runs[BLIND])
    return SimulatedRun(
        saved_ratios={name: 1 - runs[name].spent / runs["max"].spent for name in POLICIES},
        slowdown_ratios={name: runs[name].duration_s / task.spec.base_duration_s for name in POLICIES},
        end_gains=gains,
        end_over=over,
    )


_blind_runs: dict[tuple[str, int, str, int, float], tuple[Values, Values]] = {}


def _blind(task: Task, simulator: LiveRunSimulator) -> RunResult:
    """Return the run that is blind to the signal."""
    key = task.noise, task.seed, task.trace, task.hours, task.max_slowdown
    if key not in _blind_runs:
        run = simulator(BLIND, task.scenario, task.spec, task.max_slowdown)
        _blind_runs[key] = run.edges_s - task.spec.start_s, run.limits_w
    passed_s, limits_w = _blind_runs[key]
    return run_result(task.scenario, task.spec.start_s + passed_s, limits_w)


def kept(folder: Path, task: Task) -> SimulatedRun:
    """Return what a run comes to: what is kept of it, or else simulate and keep it."""
    zone, start_s = task.scenario.signal.zone, task.spec.start_s
    path = (
        folder
        / f"{task.noise}_{task.trace.replace(' ', '-')}_{zone}_{task.hours}h_{task.max_slowdown:g}_{start_s:.0f}.json"
    )
    if path.exists():
        return msgspec.json.decode(path.read_bytes(), type=SimulatedRun)
    run = simulated(task)
    replace_file(path, msgspec.json.encode(run))
    return run


def _at_ends(task: Task, ours: RunResult, mix: RunResult) -> tuple[tuple[float, ...], float]:
    """Return what a run gains over another where both end after the same work, and how slow it was then at most."""
    scenario = task.scenario
    ends_s = HOUR_S * MEDIAN_END_H * np.exp(np.random.default_rng(7).normal(0.0, 1.0, N_ENDS))
    ends_s = np.sort(ends_s[(ends_s > HOUR_S) & (ends_s < task.spec.base_duration_s)])
    (our_s, our_cost), (_, mix_cost) = (_until(scenario, run, ends_s) for run in (ours, mix))
    before, *after = scenario.integral_until(np.append(task.spec.start_s, task.spec.start_s + ends_s)).tolist()
    top_cost = float(scenario.power_w[-1]) * (np.array(after) - before)
    over = 100 * float((our_s / ends_s - task.max_slowdown).max()) if len(ends_s) else 0.0
    return tuple((100 * (mix_cost - our_cost) / top_cost).tolist()), over


def _until(scenario: Scenario, run: RunResult, work_s: Values) -> tuple[Values, Values]:
    """Return how long a run takes [s], and costs [unit·J], until some work is done [s at the highest limit]."""
    limits_w = scenario.profile.power_limits_w
    ratios = np.interp(run.limits_w, limits_w, scenario.iterations_per_s) / scenario.iterations_per_s[-1]
    done_s = np.append(0.0, np.cumsum(ratios * np.diff(run.edges_s)))
    times_s = np.interp(work_s, done_s, run.edges_s)
    costs = np.append(
        0.0,
        np.cumsum(np.interp(run.limits_w, limits_w, scenario.power_w) * np.diff(scenario.integral_until(run.edges_s))),
    )
    index = np.minimum(np.searchsorted(run.edges_s, times_s, side="right") - 1, len(run.limits_w) - 1)
    since = scenario.integral_until(times_s) - scenario.integral_until(run.edges_s[index])
    powers_w = np.interp(run.limits_w[index], limits_w, scenario.power_w)
    return times_s - run.edges_s[0], costs[index] + powers_w * since


def starts_of(hours: int, n_day_runs: int) -> int:
    """Return how many runs of a length start on each signal: as many hours in all as of runs of 24 h, at least one."""
    return max(1, n_day_runs * DAY_H // hours)


def tasks_of(options: argparse.Namespace) -> Iterator[Task]:
    """Yield every run there is to simulate."""
    faults: list[str] = []
    readings = read_signals(sorted((options.data / "carbon").glob("*.csv")), faults)
    if faults:
        raise SystemExit("\n".join(faults))
    for curve in (each for each in curves_of(options.data / "zeus") if each.name in options.gpus):
        name, profile = curve.name, curve.profile
        if options.smooth:
            name, profile = f"{name} smooth", fit_curve(profile, step_w=SMOOTH_W)
        for hours, max_slowdown in product(options.hours, options.max_slowdown):
            runs: list[tuple[int, Scenario, RunSpec]] = []
            for reading in readings:
                scenario = scenario_of(
                    replace(curve, profile=profile), reading.signal, Overhead(host_power_w=0.0, pue=1.0)
                )
                specs = run_specs(
                    scenario,
                    Comparison(policies=POLICIES, max_slowdowns=(max_slowdown,)),
                    base_duration_s=HOUR_S * hours,
                    n_starts=starts_of(hours, options.starts),
                    period_s=HOUR_S,
                )
                runs += [(n, scenario, spec) for n, spec in enumerate(specs) if n % options.every == 0]
            for noise, (n, scenario, spec) in product(options.noise, sorted(runs, key=itemgetter(0))):
                yield Task(
                    noise=noise,
                    seed=n,
                    trace=name,
                    hours=hours,
                    max_slowdown=max_slowdown,
                    scenario=scenario,
                    spec=spec,
                )


Cell = tuple[Task, SimulatedRun]


def saved_table(cells: dict[str, list[Cell]]) -> Iterator[str]:
    """Yield what is saved, and what part of the optimum and of the grid's offer that is."""
    yield "| runs | " + " | ".join(NAMES) + " | slower: mix-live | live | live-open |"
    yield f"|---|{'---:|' * (len(NAMES) + 3)}"
    for name, found in cells.items():
        saved = {policy: _mean(found, policy) for policy in POLICIES}
        live = [policy for policy in POLICIES if policy.endswith(("-live", "-open"))]
        slower = [100 * np.mean([run.slowdown_ratios[policy] - 1 for _, run in found]) for policy in live]
        yield f"| {name} | {' | '.join(f'{each:.2f}' for each in (*saved.values(), *slower))} |"
    yield "\n| runs | share: mix-live | planner | live | live-open | captured: mix-live | planner | live | live-open |"
    yield f"|---|{'---:|' * 8}"
    for name, found in cells.items():
        saved = {policy: _mean(found, policy) for policy in POLICIES}
        ours = [saved[policy] for policy in POLICIES[1:-1]]
        mix, best = saved["static-mix"], saved["offline"]
        shares = [f"{100 * each / best:.0f} %" for each in ours]
        captured = [f"{(each - mix) / (best - mix):+.2f}" if best - mix > LEAST else "none" for each in ours]
        yield f"| {name} | {' | '.join((*shares, *captured))} |"


LEAST: Final = 0.005
"""Where the grid offers fewer points, no share of them is told."""


def _mean(found: Sequence[Cell], policy: str) -> float:
    return 100 * float(np.mean([run.saved_ratios[policy] for _, run in found]))


def gains_table(cells: dict[str, list[Cell]]) -> Iterator[str]:
    """Yield what is gained over the two mixes, and how far budgets are overrun."""
    heads = [f"{ours} - {mix}: mean" for ours in ("live", "live-open") for mix in ("mix-live", "mix")]
    yield (
        "| runs | "
        + " | least zone | worst | ".join(heads)
        + " | least zone | worst | over: mix-live | live | live-open |"
    )
    yield f"|---|{'---:|' * 15}"
    for name, found in cells.items():
        texts = []
        for ours in ("gridchase-live", "gridchase-live-open"):
            for mix in ("static-mix-live", "static-mix"):
                texts += _spread([(t, 100 * (r.saved_ratios[ours] - r.saved_ratios[mix])) for t, r in found])
        for ours in ("static-mix-live", "gridchase-live", "gridchase-live-open"):
            texts.append(f"{100 * max(run.slowdown_ratios[ours] - task.max_slowdown for task, run in found):+.3f}")
        yield f"| {name} | {' | '.join(texts)} |"
    yield "\n| runs | random ends, live-open - mix-live: mean | least zone | worst | over |\n|---|---:|---:|---:|---:|"
    for name, found in cells.items():
        gains = [(task, gain) for task, run in found for gain in run.end_gains]
        over = max(run.end_over for _, run in found)
        yield f"| {name} | {' | '.join(_spread(gains))} | {over:+.3f} |"


def _spread(gains: Sequence[tuple[Task, float]]) -> list[str]:
    """Return the texts of the mean, of the least zone, and of the worst run [points]."""
    zones: dict[str, list[float]] = {}
    for task, gain in gains:
        zones.setdefault(task.scenario.signal.zone, []).append(gain)
    least = min(float(np.mean(each)) for each in zones.values())
    values = [gain for _, gain in gains]
    return [f"{np.mean(values):+.3f}", f"{least:+.3f}", f"{min(values):+.2f}"]


def zones_table(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield what is saved on each signal."""
    yield "| signal | " + " | ".join(NAMES) + " |"
    yield f"|---|{'---:|' * len(NAMES)}"
    for zone in dict.fromkeys(task.scenario.signal.zone for task, _ in cells):
        here = [cell for cell in cells if cell[0].scenario.signal.zone == zone]
        yield f"| {zone} | {' | '.join(f'{_mean(here, policy):.2f}' for policy in POLICIES)} |"


def page(options: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the page."""
    tasks = list(tasks_of(options))
    simulate = simulated if options.keep is None else partial(kept, options.keep)
    found = replay_each(simulate, tasks, n_processes=options.processes, what="runs")
    cells: dict[str, list[Cell]] = {}
    for task, each in zip(tasks, found, strict=True):
        name = f"{task.trace}, {task.hours} h, {100 * (task.max_slowdown - 1):.3g} %, {task.noise}"
        cells.setdefault(name, []).append((task, each))
    asked = f"--hours {_listed(options.hours)} --max-slowdown {_listed(options.max_slowdown)} --starts {options.starts}"
    if options.gpus != GPUS:
        asked += f" --gpus {' '.join(options.gpus)}"
    if options.noise != [*NOISES]:
        asked += f" --noise {' '.join(options.noise)}"
    if options.smooth:
        asked += " --smooth"
    if options.every != 1:
        asked += f" --every {options.every}"
    yield "# What a user gets: runs under the controller itself\n"
    yield f"{measured_on()}; `python -m tests.benchmarks.planning_live --data DIR --write {asked}`.\n"
    n_starts = {hours: starts_of(hours, options.starts) for hours in options.hours}
    starts = ", ".join(f"{-(-n // options.every)} of {hours} h" for hours, n in n_starts.items())
    yield f"Runs on each signal: {starts}.\n\n{PROTOCOL}\n"
    yield "## Saved [%]\n"
    yield from saved_table(cells)
    yield "\n## Beside the two mixes [points]\n"
    yield from gains_table(cells)
    for name, here in cells.items():
        yield f"\n### {name}: saved on each signal [%]\n"
        yield from zones_table(here)


def _listed(values: Sequence[float]) -> str:
    return " ".join(f"{value:g}" for value in values)


def main() -> None:
    """Simulate and print; with `--write` into a page beside this file, other lengths and bounds into one of theirs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", nargs="+", type=int, default=[24], help="how long runs are at the highest limit")
    parser.add_argument("--max-slowdown", nargs="+", type=float, default=USUAL_SLOWDOWNS, help="their budgets of time")
    parser.add_argument(
        "--starts", type=int, default=1, metavar="N", help="runs of 24 h on each signal; others as long in all"
    )
    parser.add_argument("--every", type=int, default=1, metavar="K", help="each K-th start alone, of the first one on")
    parser.add_argument(
        "--noise", nargs="+", choices=[*NOISES], default=[*NOISES], help="as the simulation has it else; an H100's"
    )
    parser.add_argument(
        "--smooth", action="store_true", help="smooth curves through the measured limits, instead of straight lines"
    )
    parser.add_argument("--gpus", nargs="+", choices=GPUS, default=GPUS, help="whose curves")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="so many runs at a time")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep each result here, and use those kept before")
    add_data(parser)
    add_write(parser, TABLE)
    options = parser.parse_args()
    if has_data(options.data):
        table = TABLE
        if options.hours != [DAY_H]:
            table = table.with_stem(f"{table.stem}_{'_'.join(map(str, options.hours))}h")
        if options.max_slowdown != USUAL_SLOWDOWNS:
            percents = (f"{100 * (ratio - 1):.3g}" for ratio in options.max_slowdown)
            table = table.with_stem(f"{table.stem}_{'_'.join(percents)}_percent")
        if options.smooth:
            table = table.with_stem(f"{table.stem}_smooth")
        show(page(options), table, write=options.write)


if __name__ == "__main__":
    main()
