"""Evaluates policies on a workload: their costs against an oracle and the default, with common seeds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

import numpy as np

from policies.batch_size.choose import late_cost_bound
from policies.batch_size.study import LearningSettings
from policies.replay.batch_size.baselines import grid_search, replay_fixed
from policies.replay.batch_size.simulation import (
    EpochSampler,
    JobHistory,
    LateBound,
    Policy,
    PriorKnowledge,
    common_random_epochs,
    learning_policy,
    no_late_bound,
    simulate,
)
from policies.replay.batch_size.workload import FixedChoice, Workload, fixed_choice, optimum
from policies.vocabulary.units import Values

PolicyName = Literal["gridchase", "gridchase-untimed", "gridchase-profiled", "zeus", "oracle", "default", "grid"]
DEFAULTS: Final = LearningSettings()
Drift = Literal["mirror", "swap"]
POLICIES: Final[tuple[PolicyName, ...]] = get_args(PolicyName)
KNOWLEDGE: Final[dict[PolicyName, PriorKnowledge]] = {"gridchase": "timed", "gridchase-profiled": "probed"}
"""What a policy knows of the epochs before the first run; it pays for that. The others learn it."""
N_RECURRENCES_DRIFTING: Final = 100
LAST: Final = 5
"""The number of last recurrences that the paper compares (arXiv:2208.06102, fig. 6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """How a job recurs.

    Attributes:
        eta: the weight of energy in the cost.
        n_recurrences: how often; None: twice for each batch size and power limit, as in the paper; 100 with a drift.
        noise_ratio: run-to-run noise beyond that of the trace: the standard deviation of the logarithm of the epochs.
        drift: half way, batch sizes exchange the epochs that they need. `mirror`: the smallest of those that always
            reach the target with the largest, and so on; `swap`: the best one with the default; None: no drift.
        concurrency: the number of recurrences submitted at a time.
    """

    eta: float = 0.5
    n_recurrences: int | None = None
    noise_ratio: float = 0.0
    drift: Drift | None = None
    concurrency: int = 1

    def horizon(self, workload: Workload) -> int:
        """Return the number of recurrences."""
        usual = 2 * len(workload.candidates) * len(workload.power_limits_w)
        return self.n_recurrences or (N_RECURRENCES_DRIFTING if self.drift else usual)

    def drifts_at(self, workload: Workload) -> int | None:
        """Return the recurrence at which the job drifts, or None."""
        return self.horizon(workload) // 2 if self.drift else None

    def sampler(self, workload: Workload, seed: int) -> EpochSampler:
        """Return a new sampler of the training runs of a seed."""
        drifts_at = self.drifts_at(workload)
        later = None if drifts_at is None else (drifts_at, drifted(workload, self))
        return common_random_epochs(workload, seed=seed, noise_ratio=self.noise_ratio, later=later)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceCosts:
    """The choices of an oracle and of the default in each recurrence, with their costs."""

    best: tuple[FixedChoice, ...]
    default: tuple[FixedChoice, ...]

    @property
    def costs(self) -> Values:
        """Return the oracle's cost of each recurrence, shape (n_recurrences,) [J]."""
        return np.array([one.cost for one in self.best])


def reference_costs(workload: Workload, conditions: Conditions) -> ReferenceCosts:
    """Return the reference costs of a workload under some conditions."""
    n, drifts_at = conditions.horizon(workload), conditions.drifts_at(workload)
    n_before = n if drifts_at is None else drifts_at
    best: list[FixedChoice] = []
    default: list[FixedChoice] = []
    for phase, n_phase in ((workload, n_before), (drifted(workload, conditions), n - n_before)):
        if not n_phase:
            continue
        eta, noise_ratio = conditions.eta, conditions.noise_ratio
        best += [optimum(phase, eta=eta, noise_ratio=noise_ratio)] * n_phase
        limit_w = phase.limits_of(phase.default)[0]
        default += [fixed_choice(phase, phase.default, limit_w, eta=eta, noise_ratio=noise_ratio)] * n_phase
    return ReferenceCosts(best=tuple(best), default=tuple(default))


def drifted(workload: Workload, conditions: Conditions) -> Workload:
    """Return the workload after its drift."""
    before = tuple(size for size in workload.candidates if workload.always_reaches(size))
    if conditions.drift == "swap":
        before = (workload.default, optimum(workload, eta=conditions.eta).batch_size)
    recorded_epochs = {
        size: workload.recorded_epochs[other] for size, other in zip(before, reversed(before), strict=True)
    }
    return replace(workload, recorded_epochs={**workload.recorded_epochs, **recorded_epochs})


def regrets(history: JobHistory, reference: ReferenceCosts) -> Values:
    """Return the cumulative regret, in runs of the oracle, shape (n_recurrences,)."""
    return np.cumsum(history.costs / reference.costs - 1)


def replay_named_policy(
    workload: Workload,
    name: PolicyName,
    conditions: Conditions,
    *,
    seed: int,
    settings: LearningSettings = DEFAULTS,
) -> JobHistory:
    """Simulate a policy under some conditions, with the training runs of a seed."""
    if name in {"oracle", "default"}:
        reference = reference_costs(workload, conditions)
        return replay_fixed(
            workload,
            reference.best if name == "oracle" else reference.default,
            sampler=conditions.sampler(workload, seed),
            eta=conditions.eta,
        )
    if name == "grid":
        n = conditions.horizon(workload)
        return grid_search(workload, sampler=conditions.sampler(workload, seed), eta=conditions.eta, n_recurrences=n)
    learned = replace(settings, policy="zeus" if name == "zeus" else "gridchase")
    return replay_policy(
        workload,
        learning_policy(learned, seed=seed),
        conditions,
        seed=seed,
        knowledge=KNOWLEDGE.get(name, "learned"),
        late_bound=lambda study: late_cost_bound(study, learned),
    )


def replay_policy(
    workload: Workload,
    policy: Policy,
    conditions: Conditions,
    *,
    seed: int,
    knowledge: PriorKnowledge = "learned",
    late_bound: LateBound = no_late_bound,
) -> JobHistory:
    """Simulate any policy under some conditions, with the training runs of a seed."""
    return simulate(
        workload,
        policy,
        sampler=conditions.sampler(workload, seed),
        eta=conditions.eta,
        n_recurrences=conditions.horizon(workload),
        concurrency=conditions.concurrency,
        knowledge=knowledge,
        late_bound=late_bound,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchSizeEvaluation:
    """How good a policy is on a workload.

    Attributes:
        workload, policy: the names.
        n_seeds, n_recurrences: the number of histories, and of recurrences in each.
        regret: the cost beyond an oracle's, in runs of the oracle; mean over seeds.
        regret_sd: its standard deviation over seeds.
        regret_by_recurrence: the cumulative regret, shape (n_recurrences,).
        energy_ratio, duration_ratio: energy and time of all recurrences over those of the default batch size at the
            highest power limit; None where that never reaches the target.
        last_energy_ratio, last_duration_ratio: the same for the last five recurrences.
        n_stopped: the runs that missed their target, mean over seeds.
        n_unreached: the recurrences that were given up, in all seeds.
    """

    workload: str
    policy: str
    n_seeds: int
    n_recurrences: int
    regret: float
    regret_sd: float
    regret_by_recurrence: Values
    energy_ratio: float | None
    duration_ratio: float | None
    last_energy_ratio: float | None
    last_duration_ratio: float | None
    n_stopped: float
    n_unreached: int


def evaluate(
    workload: Workload,
    name: PolicyName,
    conditions: Conditions,
    *,
    n_seeds: int,
    settings: LearningSettings = DEFAULTS,
) -> BatchSizeEvaluation:
    """Evaluate a policy over seeds from 0 on; a seed has the same training runs for every policy."""
    histories = [
        replay_named_policy(workload, name, conditions, seed=seed, settings=settings) for seed in range(n_seeds)
    ]
    return summarize_histories(workload, name, conditions, histories)


def summarize_histories(
    workload: Workload, name: str, conditions: Conditions, histories: Sequence[JobHistory]
) -> BatchSizeEvaluation:
    """Return the evaluation of histories, one for each seed."""
    reference = reference_costs(workload, conditions)
    each = np.array([regrets(history, reference) for history in histories])
    energies_j, durations_s = (
        np.mean([history.energies_j for history in histories], axis=0),
        np.mean([history.durations_s for history in histories], axis=0),
    )
    default_j = np.array([one.mean.energy_j for one in reference.default])
    default_s = np.array([one.mean.duration_s for one in reference.default])
    return BatchSizeEvaluation(
        workload=workload.name,
        policy=name,
        n_seeds=len(histories),
        n_recurrences=each.shape[1],
        regret=float(each[:, -1].mean()),
        regret_sd=float(each[:, -1].std(ddof=1)) if len(histories) > 1 else 0.0,
        regret_by_recurrence=each.mean(axis=0),
        energy_ratio=_ratio(energies_j, default_j),
        duration_ratio=_ratio(durations_s, default_s),
        last_energy_ratio=_ratio(energies_j[-LAST:], default_j[-LAST:]),
        last_duration_ratio=_ratio(durations_s[-LAST:], default_s[-LAST:]),
        n_stopped=float(np.mean([sum(not run.reached for run in history.runs) for history in histories])),
        n_unreached=sum(history.n_unreached for history in histories),
    )


def by_workload(results: Sequence[BatchSizeEvaluation]) -> dict[str, list[BatchSizeEvaluation]]:
    """Return the evaluations by workload."""
    groups: dict[str, list[BatchSizeEvaluation]] = {}
    for result in results:
        groups.setdefault(result.workload, []).append(result)
    return groups


def _ratio(ours: Values, theirs: Values) -> float | None:
    total = float(theirs.sum())
    return float(ours.sum()) / total if np.isfinite(total) else None
