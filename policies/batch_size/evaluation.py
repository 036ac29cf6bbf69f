"""How good policies are on a workload: what each spends, beside an oracle and the default, over seeds in pairs."""

from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

import numpy as np

from policies.batch_size.simulation import Draws, History, Knowledge, Policy, common_draws, learning, simulate
from policies.batch_size.study import Floats, LearningSettings
from policies.batch_size.workload import Fixed, Workload, fixed, optimum

PolicyName = Literal["gridchase", "gridchase-probed", "zeus", "oracle", "default", "grid"]
Drift = Literal["mirror", "swap"]
POLICIES: Final[tuple[PolicyName, ...]] = get_args(PolicyName)
N_RECURRENCES_DRIFTING: Final = 100
LAST: Final = 5
"""The paper compares the last five recurrences (arXiv:2208.06102, fig. 6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """How a job recurs.

    Attributes:
        eta: the weight of energy in the cost.
        n_recurrences: how often; None: twice for each batch size and power limit, as in the paper; 100 with a drift.
        noise_ratio: run-to-run noise beyond that of the trace: the standard deviation of the logarithm of the epochs.
        drift: whether, half way, batch sizes exchange the epochs that they need: `mirror`: the smallest of those
            that always reach the target with the largest, and so on; `swap`: the best one with the default.
        concurrency: how many recurrences are submitted at a time.
    """

    eta: float = 0.5
    n_recurrences: int | None = None
    noise_ratio: float = 0.0
    drift: Drift | None = None
    concurrency: int = 1

    def horizon(self, workload: Workload) -> int:
        """Return how often a job recurs."""
        usual = 2 * len(workload.candidates) * len(workload.power_limits_w)
        return self.n_recurrences or (N_RECURRENCES_DRIFTING if self.drift else usual)

    def drifts_at(self, workload: Workload) -> int | None:
        """Return the recurrence from which on the job is another one, if there is one."""
        return self.horizon(workload) // 2 if self.drift else None

    def draws(self, workload: Workload, seed: int) -> Draws:
        """Return the training runs of a seed, from their beginning."""
        drifts_at = self.drifts_at(workload)
        later = None if drifts_at is None else (drifts_at, drifted(workload, self))
        return common_draws(workload, seed=seed, noise_ratio=self.noise_ratio, later=later)


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """What a workload costs under some conditions: for an oracle at each recurrence, and by default."""

    best: tuple[Fixed, ...]
    default: tuple[Fixed, ...]

    @property
    def costs(self) -> Floats:
        """Return the oracle's cost of each recurrence, shape (n_recurrences,) [J]."""
        return np.array([one.cost for one in self.best])


def yardstick(workload: Workload, conditions: Conditions) -> Yardstick:
    """Return what to measure with."""
    n, drifts_at = conditions.horizon(workload), conditions.drifts_at(workload)
    n_before = n if drifts_at is None else drifts_at
    best: list[Fixed] = []
    default: list[Fixed] = []
    for phase, n_phase in ((workload, n_before), (drifted(workload, conditions), n - n_before)):
        if not n_phase:
            continue
        eta, noise_ratio = conditions.eta, conditions.noise_ratio
        best += [optimum(phase, eta=eta, noise_ratio=noise_ratio)] * n_phase
        limit_w = phase.limits_of(phase.default)[0]
        default += [fixed(phase, phase.default, limit_w, eta=eta, noise_ratio=noise_ratio)] * n_phase
    return Yardstick(best=tuple(best), default=tuple(default))


def drifted(workload: Workload, conditions: Conditions) -> Workload:
    """Return what the job is after its drift."""
    before = tuple(size for size in workload.candidates if workload.always_reaches(size))
    if conditions.drift == "swap":
        before = (workload.default, optimum(workload, eta=conditions.eta).batch_size)
    paths = {size: workload.paths[other] for size, other in zip(before, reversed(before), strict=True)}
    return replace(workload, paths={**workload.paths, **paths})


def regrets(history: History, yard: Yardstick) -> Floats:
    """Return the regret up to each recurrence, in optimal runs, shape (n_recurrences,)."""
    return np.cumsum(history.costs / yard.costs - 1)


def play(workload: Workload, policy: Policy, conditions: Conditions, *, seed: int, knows: Knowledge) -> History:
    """Return what a policy does under some conditions, with the training runs of a seed."""
    return simulate(
        workload,
        policy,
        draws=conditions.draws(workload, seed),
        eta=conditions.eta,
        n_recurrences=conditions.horizon(workload),
        concurrency=conditions.concurrency,
        knows=knows,
    )


def play_learner(
    workload: Workload,
    settings: LearningSettings,
    conditions: Conditions,
    *,
    seed: int,
    knows: Knowledge = "learned",
) -> History:
    """Return what a policy of the service does."""
    return play(workload, learning(settings, seed=seed), conditions, seed=seed, knows=knows)
