"""How well batch sizes are learned: `python -m tests.benchmarks.batch_size --train FILE --power FILE… [--write]`.

The protocol is that of the Zeus paper (arXiv:2208.06102, section 6) on traces in the format of Zeus's. Beside ours, on
the same training runs (seeds in pairs): Zeus's own optimizer (zeus-ml) in the same simulation, our policy `zeus`, the
default and a grid search. First the simulation itself is checked: with Zeus's optimizer, and with our policy `zeus`, it
must give entry by entry the histories of Zeus's own simulator, with its random numbers. `before` is our policy as it
was before it knew that a batch size may never reach its target, and that a second run beside another teaches less.
"""

import argparse
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np

from controller.demo.recurrences.trace_files import read_workloads
from policies.batch_size import LearningSettings, Study, knowledge_gradient
from policies.batch_size.concept_drift import NOISE_LOG
from policies.batch_size.knowledge_gradient import FARTHEST_FIRST
from policies.batch_size.posterior import prior
from policies.replay.batch_size.evaluation import (
    DEFAULTS,
    KNOWLEDGE,
    BatchSizeEvaluation,
    Conditions,
    reference_costs,
    regrets,
    replay_named_policy,
    replay_policy,
    summarize_histories,
)
from policies.replay.batch_size.simulation import JobHistory, learning_policy
from policies.replay.batch_size.workload import Workload
from policies.vocabulary.units import Values
from tests.benchmarks.batch_size_original import MismatchError, compare_with_original
from tests.benchmarks.pages import add_write, measured_on, show
from tests.policies.batch_size.reference import Reference

TABLE: Final = Path(__file__).with_suffix(".md")
LEARNERS: Final = ("gridchase", "before", "Zeus")
OTHERS: Final = ("gridchase-untimed", "gridchase-profiled", "zeus", "oracle", "default", "grid")
CONDITIONS: Final = {
    "η = 0.5": Conditions(),
    "η = 0 (time alone)": Conditions(eta=0.0),
    "η = 1 (energy alone)": Conditions(eta=1.0),
    "run-to-run noise + 0.25 (log)": Conditions(noise_ratio=0.25),
    "drift, mirrored": Conditions(drift="mirror"),
    "drift, best and default swapped": Conditions(drift="swap"),
    "8 at a time": Conditions(concurrency=8),
}
MAIN: Final = "η = 0.5"
CONCURRENT: Final = "8 at a time"
LARGEST: Final = 128
"""Of a small GPU: imagenet's next smaller batch size, half of it, never reaches the target."""

Task = tuple[Workload, str, str, int]
"""Workload, policy, conditions, seeds."""


class Outcome:
    """An evaluation, and how it ended where the reference does with an error: how many jobs, and what until then."""

    def __init__(self, task: Task) -> None:
        workload, policy, condition, n_seeds = task
        conditions = CONDITIONS[condition]
        reference = reference_costs(workload, conditions)
        self.condition = condition
        histories, until_error, began_s = [], [], time.process_time()
        self.n_errors = 0
        for seed in range(n_seeds):
            history, n_before = _history(workload, policy, conditions, seed)
            self.n_errors += n_before < history.n_recurrences
            until_error.append(float(regrets(history, reference)[max(n_before - 1, 0)]))
            histories.append(history)
        self.cpu_s = time.process_time() - began_s
        self.regret_until_error = fmean(until_error)
        self.found: BatchSizeEvaluation = summarize_histories(workload, policy, conditions, histories)


def _spread(study: Study, settings: LearningSettings) -> int | None:
    """Return the size near the default that teaches most, once all of them run the least used, as `before` did."""
    near = [size for size in study.open_candidates if 1 / FARTHEST_FIRST <= size / study.default <= FARTHEST_FIRST]
    used = Counter(study.in_flight)
    if all(used[size] for size in near):
        return min(near, key=lambda size: (used[size], abs(math.log(size / study.default)), size), default=None)
    belief = knowledge_gradient.in_flight(prior(study), NOISE_LOG**2, study)
    total = knowledge_gradient.score(belief, NOISE_LOG**2, study, settings).total
    return min(near, key=lambda size: float(total[study.candidates.index(size)]))


def _whole_horizon(study: Study, settings: LearningSettings) -> Values:
    return np.full(len(study.candidates), settings.horizon)


@contextmanager
def former_policy() -> Iterator[None]:
    """Let our policy decide as before while the body runs."""
    former = {"UNREACHED_RATIO": 0.0, "_worth": _whole_horizon, "_beside": _spread}
    own = {name: getattr(knowledge_gradient, name) for name in former}
    for name, value in former.items():
        setattr(knowledge_gradient, name, value)
    try:
        yield
    finally:
        for name, value in own.items():
            setattr(knowledge_gradient, name, value)


def _up_to(workload: Workload, largest: int) -> Workload:
    """Return a workload without its larger batch sizes, as on a GPU with less memory."""
    sizes = tuple(size for size in workload.candidates if size <= largest)
    return replace(
        workload,
        name=f"{workload.name}, up to {largest}",
        candidates=sizes,
        default=min(workload.default, sizes[-1]),
        recorded_epochs={size: workload.recorded_epochs[size] for size in sizes},
        time_per_epoch_s={key: value for key, value in workload.time_per_epoch_s.items() if key[0] in sizes},
        average_power_w={key: value for key, value in workload.average_power_w.items() if key[0] in sizes},
    )


def _history(workload: Workload, policy: str, conditions: Conditions, seed: int) -> tuple[JobHistory, int]:
    """Return what a policy does, and how many recurrences it had finished when Zeus would have ended with an error."""
    if policy == "before":
        with former_policy():
            learned = learning_policy(DEFAULTS, seed=seed)
            history = replay_policy(workload, learned, conditions, seed=seed, knowledge=KNOWLEDGE["gridchase"])
        return history, history.n_recurrences
    if policy != "Zeus":
        history = replay_named_policy(workload, policy, conditions, seed=seed)  # type: ignore[arg-type]
        return history, history.n_recurrences
    reference = Reference(candidates=workload.candidates, default=workload.default, seed=seed)
    history = replay_policy(workload, reference, conditions, seed=seed)
    ended = history.n_recurrences if reference.n_reached is None else reference.n_reached
    return history, ended


def page(workloads: Sequence[Workload], n_seeds: int, files: tuple[Path, Sequence[Path]]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield f"# How well batch sizes are learned, {n_seeds} seeds in pairs\n"
    yield (
        f"{measured_on('zeus-ml', 'pandas')}; `python -m tests.benchmarks.batch_size --train "
        f"{files[0].name} --power {' '.join(path.name for path in files[1])} --write` on the traces of Zeus v0.3 "
        "(github.com/SymbioticLab/Zeus, `trace/`, Apache-2.0).\n"
    )
    yield PROTOCOL
    with ProcessPoolExecutor(2) as pool:
        yield from check(workloads, pool)
        tasks: list[Task] = [
            (workload, policy, condition, n_seeds if condition == MAIN else max(n_seeds // 2, 1))
            for condition, workload, policy in product(CONDITIONS, workloads, (*LEARNERS, *OTHERS))
            if condition == MAIN or policy in LEARNERS
        ]
        small = [_up_to(workload, LARGEST) for workload in workloads if workload.name.startswith("imagenet")]
        n_tasks = len(tasks)
        tasks += [(workload, name, CONCURRENT, max(n_seeds // 2, 1)) for workload in small for name in LEARNERS]
        every = list(pool.map(Outcome, tasks))
    outcomes, smaller = every[:n_tasks], every[n_tasks:]
    yield from summary(outcomes)
    yield from by_workload([one for one in outcomes if one.condition == MAIN])
    yield from pairs(outcomes, smaller)


PROTOCOL: Final = """\
**Protocol.** The six jobs of the Zeus paper with its targets, default batch sizes and limits of epochs, each 2 · batch
sizes · power limits times; β = 2; a run takes a recorded training path of its batch size at the best power limit, which
the first run there finds in its first epoch. *Regret*: what was paid beyond an oracle that knows the best batch size
and power limit, in runs of that oracle: 5 is five optimal runs wasted. `gridchase` has timed 30 iterations (3 s at
most) of each batch size first, as `Publisher.batch_size(…, probe=…)` does; `gridchase-untimed` learns what an epoch
costs by running alone; `gridchase-profiled` has measured the energy of those iterations, too. All pay for what they
do. `Zeus` is Zeus's own optimizer, `zeus` our policy by the same rules. `before` is `gridchase` as it was: all batch
sizes are expected to reach the target, concurrent first runs are spread evenly and never bound, and what a second run
beside another teaches counts in full.
Seeds are paired: the k-th run of a batch size is the same for every policy. With a drift, a job recurs 100 times; half
way the batch sizes that always reach the target exchange their epochs, the smallest with the largest and so on
(*mirrored*), or the best with the default (*swapped*). *8 at a time*: results come in after 8 runs are out; those that
failed are tried again, together. Zeus decides then as its server does: one explores, the others take the best.
η = 0.5 is simulated with all seeds that were asked for, the other conditions with half of them."""


def check(workloads: Sequence[Workload], pool: ProcessPoolExecutor) -> Iterator[str]:
    """Yield what the comparison with Zeus's own simulator says."""
    tasks = list(product(workloads, (0.5, 1.0)))
    counts = list(pool.map(compare_with_original, *zip(*tasks, strict=True)))
    n_entries = sum(counts)
    yield (
        f"\n**The simulation is Zeus's.** Histories of Zeus's own simulator (`zeus._legacy.simulate.Simulator`), for "
        f"{len(workloads)} workloads at η = 0.5 and 1: {n_entries:,} entries, and every one is reproduced by this "
        "simulation with Zeus's optimizer, and with our policy `zeus`: batch size, power limit, whether it reached the "
        "target; energy and time to 1e-9.\n"
    )


def summary(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the means over the workloads, for each of the conditions."""
    yield "\n## Regret, mean over the workloads\n"
    yield f"| | {' | '.join(LEARNERS)} | Zeus: errors | until then | no worse | ms a choice |"
    yield f"|---|{'---:|' * (len(LEARNERS) + 4)}"
    for condition in CONDITIONS:
        rows = {name: _of(outcomes, condition, name) for name in LEARNERS}
        means = [f"{fmean(one.found.regret for one in rows[name]):.2f}" for name in LEARNERS]
        errors = sum(one.n_errors for one in rows["Zeus"])
        n_jobs = sum(one.found.n_seeds for one in rows["Zeus"])
        until = fmean(one.regret_until_error for one in rows["Zeus"])
        pairs = zip(rows["gridchase"], rows["Zeus"], strict=True)
        n_won = sum(ours.found.regret <= theirs.found.regret for ours, theirs in pairs)
        ms = 1e3 * sum(one.cpu_s for one in rows["gridchase"]) / sum(_n_choices(one) for one in rows["gridchase"])
        yield (
            f"| {condition} | {' | '.join(means)} | {errors} of {n_jobs} jobs | {until:.1f} | "
            f"{n_won} of {len(rows['Zeus'])} | {ms:.2f} |"
        )
    yield (
        "\n*Errors*: Zeus's simulator ends with one where a recurrence has failed 20 times, its optimizer where it has "
        "pruned every batch size; here the job goes on with the default batch size, without a bound; *until then* is "
        "Zeus's regret up to that error, or the end. *No worse*: workloads on which `gridchase` regrets no more than "
        "Zeus. A choice of `gridchase` is timed with the simulation around it."
    )


def _of(outcomes: Sequence[Outcome], condition: str, policy: str) -> list[Outcome]:
    return [one for one in outcomes if one.condition == condition and one.found.policy == policy]


def _n_choices(one: Outcome) -> float:
    """Return how many runs were chosen."""
    return one.found.n_seeds * (one.found.n_recurrences + one.found.n_stopped)


def by_workload(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield regret, energy and time of each policy on each workload."""
    policies = list(dict.fromkeys(one.found.policy for one in outcomes))
    workloads = dict.fromkeys(one.found.workload for one in outcomes)
    cell = {(one.found.workload, one.found.policy): one.found for one in outcomes}
    columns = [(name, [cell[name, policy] for policy in policies]) for name in workloads]
    yield f"\n## Regret at {MAIN}, mean ± standard deviation over seeds\n"
    yield f"| workload | recurrences | {' | '.join(policies)} |\n|---|---:|{'---:|' * len(policies)}"
    for name, found in columns:
        cells = " | ".join(f"{one.regret:.2f} ± {one.regret_sd:.2f}" for one in found)
        yield f"| {name} | {found[0].n_recurrences} | {cells} |"
    for title, field in (
        ("Energy of all recurrences", "energy_ratio"),
        ("Time of all recurrences", "duration_ratio"),
        ("Energy of the last five recurrences (the paper's figure 6)", "last_energy_ratio"),
        ("Time of the last five recurrences", "last_duration_ratio"),
    ):
        yield f"\n## {title} against the default at the highest limit, {MAIN}\n"
        yield f"| workload | {' | '.join(policies)} |\n|---|{'---:|' * len(policies)}"
        for name, found in columns:
            yield f"| {name} | {' | '.join(f'{100 * (getattr(one, field) - 1):+.1f} %' for one in found)} |"


def pairs(outcomes: Sequence[Outcome], smaller: Sequence[Outcome]) -> Iterator[str]:
    """Yield the regrets of each workload under the other conditions, and of smaller ones where they were simulated."""
    for condition in CONDITIONS:
        if condition == MAIN:
            continue
        rows = {name: [*_of(outcomes, condition, name), *_of(smaller, condition, name)] for name in LEARNERS}
        yield f"\n## Regret, {condition}\n\n| workload | {' | '.join(LEARNERS)} |\n|---|{'---:|' * len(LEARNERS)}"
        for each in zip(*rows.values(), strict=True):
            yield f"| {each[0].found.workload} | {' | '.join(f'{one.found.regret:.2f}' for one in each)} |"


def main() -> None:
    """Measure and print; with `--write` into the page beside this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=Path, metavar="FILE", help="CSV of training runs")
    parser.add_argument("--power", nargs="+", type=Path, metavar="FILE", help="CSV of power, one a kind of GPU")
    parser.add_argument("--seeds", type=int, default=20)
    add_write(parser, TABLE)
    options = parser.parse_args()
    if options.train is None or options.power is None:
        print("skipped: there are no traces; name them with --train FILE --power FILE…")
        return
    try:
        show(
            page(read_workloads(options.train, options.power), options.seeds, (options.train, options.power)),
            TABLE,
            write=options.write,
        )
    except MismatchError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
