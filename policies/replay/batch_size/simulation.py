"""Simulates a recurring job on measurements: each policy gets the same training runs and pays for every attempt.

The rules are those of the Zeus paper's trace-driven evaluation (arXiv:2208.06102, section 6; `Simulator` of Zeus 0.3):
a run follows one of the recorded training runs of its batch size, at the best power limit of that size. The first run
at a batch size profiles the limits, so its first epoch is the mean of an epoch at every limit. A run stops before the
epoch that would exceed its cost bound, as in the policy service; where not even one fits, it never runs and costs
nothing, here alone. Of concurrent runs without a bound, those that end last get one from those that ended before, if
the policy has such a thing: when they have cost β times as much, the others have ended. A recurrence is repeated until
it reaches its target, at most 20 times, and pays for every attempt.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

import numpy as np

from policies.batch_size.choose import choose_batch_size
from policies.batch_size.study import Choice, LearningSettings, Observation, Outcome, Study
from policies.replay.batch_size.workload import Consumption, Workload
from policies.vocabulary.units import Values

MAX_TRIES: Final = 20
N_PROBE_ITERATIONS: Final = 30
PROBE_S: Final = 3.0
"""The cost of an epoch is measured for so many iterations, or for so long if that is shorter."""

Policy = Callable[[Study], Choice]
LateBound = Callable[[Study], float | None]
"""Returns the bound of a run that was chosen before there was one."""
EpochSampler = Callable[[int, int], float | None]
"""Returns the epochs that the next run at a batch size needs in a recurrence; None: it never reaches the target."""
PriorKnowledge = Literal["learned", "timed", "probed"]
"""What is known of the cost of epochs: `learned`: once a batch size has run; `timed`: also their times at the highest
limit, from the start; `probed`: all costs from the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """A run that trained at least one epoch."""

    recurrence: int
    batch_size: int
    power_limit_w: float
    n_epochs: float
    spent: Consumption
    cost: float
    reached: bool


@dataclass(frozen=True, kw_only=True)
class JobHistory:
    """The history of a job under a policy.

    Attributes:
        runs: the runs that trained, by their end.
        n_recurrences: the number of recurrences.
        n_unreached: how many of them were given up.
        probes, probes_cost: what measuring the epochs before the first run took.
    """

    runs: tuple[SimulatedRun, ...]
    n_recurrences: int
    n_unreached: int
    probes: Consumption
    probes_cost: float

    @cached_property
    def costs(self) -> Values:
        """Return the cost of each recurrence, shape (n_recurrences,); the first includes the probes [J]."""
        costs = np.zeros(self.n_recurrences)
        np.add.at(costs, [run.recurrence for run in self.runs], [run.cost for run in self.runs])
        costs[0] += self.probes_cost
        return costs

    @cached_property
    def energies_j(self) -> Values:
        """Return the energy of each recurrence, the same way [J]."""
        energies_j = np.zeros(self.n_recurrences)
        np.add.at(energies_j, [run.recurrence for run in self.runs], [run.spent.energy_j for run in self.runs])
        energies_j[0] += self.probes.energy_j
        return energies_j

    @cached_property
    def durations_s(self) -> Values:
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
    epochs_needed: float | None,
    max_epochs: float,
    eta: float,
    first: Consumption | None = None,
) -> SimulatedRun:
    """Return a run that needs so many epochs to its target (None: it never gets there), and may train `n_most`.

    `first` is what its first epoch takes, where that is not what the others take.
    """
    reached = epochs_needed is not None and epochs_needed <= max_epochs
    n_epochs = epochs_needed if epochs_needed is not None and reached else max_epochs
    epoch = workload.epoch(batch_size, power_limit_w)
    # A target within the first epoch takes that share of it.
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


def learning_policy(settings: LearningSettings, *, seed: int) -> Policy:
    """Return the policy that the service runs, with its own random numbers."""
    rng = np.random.default_rng(seed)
    return lambda study: choose_batch_size(study, settings, rng=rng)


def no_late_bound(_: Study) -> None:
    """Return None: a run keeps the bound that it was chosen with."""


def common_random_epochs(
    workload: Workload, *, seed: int, noise_ratio: float = 0.0, later: tuple[int, Workload] | None = None
) -> EpochSampler:
    """Return a sampler whose k-th run of a batch size is the same whatever the policy did before.

    Args:
        workload: the job.
        seed: of the random numbers.
        noise_ratio: the standard deviation of the logarithm of a factor on the epochs of each run.
        later: a drift: a recurrence, and the workload from that one on.
    """
    rngs = {size: np.random.default_rng([seed, size]) for size in workload.candidates}

    def n_epochs_of(batch_size: int, recurrence: int) -> float | None:
        share, noise = rngs[batch_size].random(), rngs[batch_size].standard_normal()
        now = later[1] if later is not None and recurrence >= later[0] else workload
        recorded_epochs = now.recorded_epochs[batch_size]
        epochs = recorded_epochs[int(share * len(recorded_epochs))]
        return epochs if epochs is None or not noise_ratio else epochs * float(np.exp(noise_ratio * noise))

    return n_epochs_of


def simulate(
    workload: Workload,
    policy: Policy,
    *,
    sampler: EpochSampler,
    eta: float,
    n_recurrences: int,
    concurrency: int = 1,
    knowledge: PriorKnowledge = "learned",
    late_bound: LateBound = no_late_bound,
) -> JobHistory:
    """Simulate the recurrences of a job under a policy.

    Args:
        workload: the job.
        policy: chooses the batch size of each run.
        sampler: the epochs that each run needs to its target.
        eta: the weight of energy in the cost, 0 to 1; time has the rest.
        n_recurrences: the number of recurrences.
        concurrency: the number of recurrences submitted at a time: each is chosen while those before it are in
            flight, then the results arrive in the same order; those that failed are repeated together.
        knowledge: which costs of epochs the policy knows.
        late_bound: bounds runs that were chosen before there was a bound.
    """
    simulation = _JobSimulation(workload, sampler=sampler, eta=eta, knowledge=knowledge)
    n_unreached = 0
    for first in range(0, n_recurrences, concurrency):
        waiting = list(range(first, min(first + concurrency, n_recurrences)))
        for n_stopped in range(MAX_TRIES):
            choices: list[Choice] = []
            for _recurrence in waiting:
                choices.append(policy(simulation.study(choices, n_stopped)))
            tried, waiting = [*zip(waiting, choices, strict=True)], []
            for recurrence, choice in tried:
                bound = choice.cost_bound
                if bound is None:
                    bound = late_bound(simulation.study([], n_stopped))
                if not simulation.train(recurrence, replace(choice, cost_bound=bound)):
                    waiting.append(recurrence)
            if not waiting:
                break
        n_unreached += len(waiting)
    probes = simulation.probes()
    return JobHistory(
        runs=tuple(simulation.runs),
        n_recurrences=n_recurrences,
        n_unreached=n_unreached,
        probes=probes,
        probes_cost=probes.cost(eta, workload.max_power_w),
    )


class _JobSimulation:
    """Runs the policy's choices and keeps the observations, as the service does."""

    def __init__(self, workload: Workload, *, sampler: EpochSampler, eta: float, knowledge: PriorKnowledge) -> None:
        self.runs: list[SimulatedRun] = []
        self._workload, self._sampler, self._eta = workload, sampler, eta
        self._knowledge = knowledge if len(workload.candidates) > 1 else "learned"  # nothing to choose
        self._limits_w = {size: workload.best_limit_w(size, eta) for size in workload.candidates}
        self._costs = {
            size: workload.epoch(size, limit_w).cost(eta, workload.max_power_w)
            for size, limit_w in self._limits_w.items()
        }
        self._known: Mapping[int, float] = dict(self._costs) if self._knowledge == "probed" else {}
        timed = workload.candidates if self._knowledge == "timed" else ()
        self._times = {size: workload.time_per_epoch_s[size, workload.limits_of(size)[0]] for size in timed}
        self._profiled: set[int] = set()
        self._seen: tuple[Observation, ...] = ()

    def study(self, in_flight: list[Choice], n_stopped: int) -> Study:
        """Return the present observations."""
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
        """Simulate a run; return whether it reached its target."""
        size = choice.batch_size
        epochs_needed = self._sampler(size, recurrence)
        first = self._first_epoch(size)
        max_epochs = float(self._workload.max_epochs)
        if choice.cost_bound is not None:
            max_epochs = min(choice.cost_bound // self._costs[size], max_epochs)
        if max_epochs == 0:
            self._seen += (Observation(batch_size=size, outcome="stopped", epochs=0.0, cost=0.0),)
            return False
        run = simulate_run(
            self._workload,
            recurrence=recurrence,
            batch_size=size,
            power_limit_w=self._limits_w[size],
            epochs_needed=epochs_needed,
            max_epochs=max_epochs,
            eta=self._eta,
            first=first,
        )
        outcome: Outcome = "reached" if run.reached else "stopped"
        self._seen += (Observation(batch_size=size, outcome=outcome, epochs=run.n_epochs, cost=run.cost),)
        self.runs.append(run)
        return run.reached

    def _first_epoch(self, size: int) -> Consumption | None:
        """Return the consumption of a first epoch that profiles the limits; None: they are known.

        A run that its bound kept from running counts as profiled, because its epoch cost is known.
        """
        if size in self._profiled:
            return None
        self._profiled.add(size)
        self._known = {**self._known, size: self._costs[size]}
        return self._workload.profiling_epoch(size)

    def probes(self) -> Consumption:
        """Return the consumption of measuring all batch sizes at the highest limit."""
        workload, spent = self._workload, Consumption(energy_j=0.0, duration_s=0.0)
        if self._knowledge == "learned":
            return spent
        for size in workload.candidates:
            epoch = workload.epoch(size, workload.limits_of(size)[0])
            share = min(N_PROBE_ITERATIONS * size / workload.n_samples, PROBE_S / epoch.duration_s, 1.0)
            spent = spent.plus(epoch.times(share))
        return spent
