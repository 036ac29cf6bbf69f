"""A recurring job replayed on measurements: each policy meets the same training runs, and pays for what it tries.

The rules are those of the Zeus paper's trace-driven evaluation (arXiv:2208.06102, section 6; `Simulator` of Zeus 0.3):
a run takes one of the recorded training paths of its batch size, at the best power limit of that size. The first run
at a batch size finds the limit, so its first epoch is the mean of an epoch at every limit. A run stops before the
epoch that would cross its cost bound; where not even one fits it never runs, and costs nothing. A recurrence is tried
until it reaches its target, at most 20 times, and pays for every try.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np

from policies.batch_size.choose import choose_batch_size
from policies.batch_size.study import Choice, Floats, LearningSettings, Observation, Outcome, Study
from policies.replay.batch_size.workload import Consumption, Workload

MAX_TRIES: Final = 20
N_PROBE_ITERATIONS: Final = 30
PROBE_S: Final = 3.0
"""A batch size is run for so many iterations, or so long where that is shorter, to learn what an epoch costs there."""

Policy = Callable[[Study], Choice]
EpochSampler = Callable[[int, int], float | None]
"""Gives, of a batch size and the number of a recurrence, the epochs that the next run there needs; None: no end."""
PriorKnowledge = Literal["learned", "timed", "probed"]
"""What is known of epochs: their cost once a batch size has run; beside that the times of all of them from the
beginning, at the highest limit; or the costs of all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """A run that trained at least an epoch: what it was given, what it took, and whether it reached its target."""

    recurrence: int
    batch_size: int
    power_limit_w: float
    n_epochs: float
    spent: Consumption
    cost: float
    reached: bool


@dataclass(frozen=True, kw_only=True)
class JobHistory:
    """What a policy did: its runs, in the order of their ends, and what it paid before them to know the epochs' costs.

    A run that never ran is not among them; `n_unreached` recurrences were given up.
    """

    runs: tuple[SimulatedRun, ...]
    n_recurrences: int
    n_unreached: int
    probes: Consumption
    probes_cost: float

    @cached_property
    def costs(self) -> Floats:
        """Return the cost of each recurrence, shape (n_recurrences,); the first pays for the probes [J]."""
        costs = np.zeros(self.n_recurrences)
        np.add.at(costs, [run.recurrence for run in self.runs], [run.cost for run in self.runs])
        costs[0] += self.probes_cost
        return costs

    @cached_property
    def energies_j(self) -> Floats:
        """Return the energy of each recurrence, the same way [J]."""
        energies_j = np.zeros(self.n_recurrences)
        np.add.at(energies_j, [run.recurrence for run in self.runs], [run.spent.energy_j for run in self.runs])
        energies_j[0] += self.probes.energy_j
        return energies_j

    @cached_property
    def durations_s(self) -> Floats:
        """Return the time of each recurrence, the same way [s]."""
        durations_s = np.zeros(self.n_recurrences)
        np.add.at(durations_s, [run.recurrence for run in self.runs], [run.spent.duration_s for run in self.runs])
        durations_s[0] += self.probes.duration_s
        return durations_s


def simulate_run(
    workload: Workload,
    *,
    recurrence: int,
    batch_size: int,
    power_limit_w: float,
    n_needed: float | None,
    n_most: float,
    eta: float,
    first: Consumption | None = None,
) -> SimulatedRun:
    """Return a run that needs so many epochs to its target (None: it never gets there), and may train `n_most`.

    `first` is what its first epoch takes, where that is not what the others take.
    """
    reached = n_needed is not None and n_needed <= n_most
    n_epochs = n_needed if n_needed is not None and reached else n_most
    epoch = workload.epoch(batch_size, power_limit_w)
    # A target within the first epoch takes a share of it.
    spent = (first or epoch).times(min(n_epochs, 1.0)).plus(epoch.times(max(n_epochs - 1, 0.0)))
    return SimulatedRun(
        recurrence=recurrence,
        batch_size=batch_size,
        power_limit_w=power_limit_w,
        n_epochs=n_epochs,
        spent=spent,
        cost=spent.cost(eta, workload.max_power_w),
        reached=reached,
    )


def learning(settings: LearningSettings, *, seed: int) -> Policy:
    """Return the policy that the service runs, with dice of its own."""
    rng = np.random.default_rng(seed)
    return lambda study: choose_batch_size(study, settings, rng=rng)


def common_random_epochs(
    workload: Workload, *, seed: int, noise_ratio: float = 0.0, later: tuple[int, Workload] | None = None
) -> EpochSampler:
    """Return draws by which the k-th run of a batch size is the same whatever the policy did before.

    Args:
        workload: the job.
        seed: which of all the possible histories.
        noise_ratio: the standard deviation of the logarithm of a factor on the epochs of each run.
        later: a drift: a recurrence, and what the job is from that one on.
    """
    rngs = {size: np.random.default_rng([seed, size]) for size in workload.candidates}

    def n_epochs_of(batch_size: int, recurrence: int) -> float | None:
        share, noise = rngs[batch_size].random(), rngs[batch_size].standard_normal()
        now = later[1] if later is not None and recurrence >= later[0] else workload
        paths = now.paths[batch_size]
        epochs = paths[int(share * len(paths))]
        return epochs if epochs is None or not noise_ratio else epochs * float(np.exp(noise_ratio * noise))

    return n_epochs_of


def simulate(
    workload: Workload,
    policy: Policy,
    *,
    draws: EpochSampler,
    eta: float,
    n_recurrences: int,
    concurrency: int = 1,
    knows: PriorKnowledge = "learned",
) -> JobHistory:
    """Return what a policy does, and pays, over the recurrences of a job.

    Args:
        workload: the job.
        policy: chooses the batch size of each run.
        draws: how long each run takes to its target.
        eta: the weight of energy in the cost, 0 to 1; time has the rest.
        n_recurrences: how often the job recurs.
        concurrency: recurrences are submitted so many at a time: each is chosen while those before it are in
            flight, then their results come in, in the same order; those that failed are tried again, together.
        knows: which costs of epochs the policy is told of.
    """
    bench = _Bench(workload, draws=draws, eta=eta, knows=knows)
    n_unreached = 0
    for first in range(0, n_recurrences, concurrency):
        waiting = list(range(first, min(first + concurrency, n_recurrences)))
        for n_stopped in range(MAX_TRIES):
            choices: list[Choice] = []
            for _recurrence in waiting:
                choices.append(policy(bench.study(choices, n_stopped)))
            tried = zip(waiting, choices, strict=True)
            waiting = [recurrence for recurrence, choice in tried if not bench.train(recurrence, choice)]
            if not waiting:
                break
        n_unreached += len(waiting)
    probes = bench.probes()
    return JobHistory(
        runs=tuple(bench.runs),
        n_recurrences=n_recurrences,
        n_unreached=n_unreached,
        probes=probes,
        probes_cost=probes.cost(eta, workload.max_power_w),
    )


class _Bench:
    """Runs what it is told to, and remembers it as the service would."""

    def __init__(self, workload: Workload, *, draws: EpochSampler, eta: float, knows: PriorKnowledge) -> None:
        self.runs: list[SimulatedRun] = []
        self._workload, self._draws, self._eta = workload, draws, eta
        self._knows = knows if len(workload.candidates) > 1 else "learned"  # there is nothing to choose from
        self._limits_w = {size: workload.best_limit_w(size, eta) for size in workload.candidates}
        self._costs = {
            size: workload.epoch(size, limit_w).cost(eta, workload.max_power_w)
            for size, limit_w in self._limits_w.items()
        }
        self._known: Mapping[int, float] = dict(self._costs) if self._knows == "probed" else {}
        timed = workload.candidates if self._knows == "timed" else ()
        self._times = {size: workload.time_per_epoch_s[size, workload.limits_of(size)[0]] for size in timed}
        self._profiled: set[int] = set()
        self._seen: tuple[Observation, ...] = ()

    def study(self, in_flight: list[Choice], n_stopped: int) -> Study:
        """Return what is known now."""
        return Study(
            candidates=self._workload.candidates,
            default=self._workload.default,
            observations=self._seen,
            epoch_costs=self._known,
            epoch_times=self._times,
            in_flight=tuple(choice.batch_size for choice in in_flight),
            n_stopped=n_stopped,
        )

    def train(self, recurrence: int, choice: Choice) -> bool:
        """Run once; return whether it reached its target."""
        size = choice.batch_size
        n_needed = self._draws(size, recurrence)
        first = self._first_epoch(size)
        n_most = float(self._workload.max_epochs)
        if choice.cost_bound is not None:
            n_most = min(choice.cost_bound // self._costs[size], n_most)
        if n_most == 0:
            self._seen += (Observation(batch_size=size, outcome="stopped", epochs=0.0, cost=0.0),)
            return False
        run = simulate_run(
            self._workload,
            recurrence=recurrence,
            batch_size=size,
            power_limit_w=self._limits_w[size],
            n_needed=n_needed,
            n_most=n_most,
            eta=self._eta,
            first=first,
        )
        outcome: Outcome = "reached" if run.reached else "stopped"
        self._seen += (Observation(batch_size=size, outcome=outcome, epochs=run.n_epochs, cost=run.cost),)
        self.runs.append(run)
        return run.reached

    def _first_epoch(self, size: int) -> Consumption | None:
        """Return what the first epoch of a run takes where the limits are still to be profiled, else None.

        Even a run that never runs has been profiled: it is known that not one of its epochs fits its bound.
        """
        if size in self._profiled:
            return None
        self._profiled.add(size)
        self._known = {**self._known, size: self._costs[size]}
        return self._workload.profiling_epoch(size)

    def probes(self) -> Consumption:
        """Return what it takes to time all batch sizes, or to learn their costs, at the highest limit."""
        workload, spent = self._workload, Consumption(energy_j=0.0, duration_s=0.0)
        if self._knows == "learned":
            return spent
        for size in workload.candidates:
            epoch = workload.epoch(size, workload.limits_of(size)[0])
            share = min(N_PROBE_ITERATIONS * size / workload.n_samples, PROBE_S / epoch.duration_s, 1.0)
            spent = spent.plus(epoch.times(share))
        return spent
