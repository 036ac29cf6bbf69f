"""The data on a recurring job from which its next batch size is chosen."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

Outcome = Literal["reached", "stopped", "failed"]

NO_COSTS: Final[Mapping[int, float]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The end of a run.

    Attributes:
        batch_size: samples an iteration, as the training code counts them.
        outcome: `reached` its target; `stopped` before, or out of epochs; `failed`: this batch size cannot run at all,
            because memory ran out.
        epochs: the trained epochs: to the target, if it was reached; 0 if it was stopped within the first, or failed.
        cost: its cost, in the unit of the objective (joules for energy and time); None if it was not measured.
    """

    batch_size: int
    outcome: Outcome
    epochs: float = 0.0
    cost: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A recurring job, as far as it is known.

    Attributes:
        candidates: the batch sizes to choose from, ascending and distinct.
        default: the user's own choice, one of them.
        observations: the ends of its runs, in their order.
        epoch_costs: the measured cost of an epoch, by batch size.
        epoch_times: the measured time of an epoch in any one unit, by batch size: a guide to costs before any run ends.
        in_flight: the batch sizes of the runs that have not ended.
        n_stopped: how often the recurrence that is to run now has been stopped already.
    """

    candidates: tuple[int, ...]
    default: int
    observations: tuple[Observation, ...] = ()
    epoch_costs: Mapping[int, float] = field(default_factory=lambda: NO_COSTS)
    epoch_times: Mapping[int, float] = field(default_factory=lambda: NO_COSTS)
    in_flight: tuple[int, ...] = ()
    n_stopped: int = 0

    def __post_init__(self) -> None:
        """Check the candidates.

        Raises:
            ValueError: there is none, they are not ascending and distinct, the default is not among them, or a cost or
                time of an epoch is not above 0.
        """
        if not self.candidates or list(self.candidates) != sorted(set(self.candidates)) or self.candidates[0] < 1:
            raise ValueError(f"candidates = {list(self.candidates)}: must be ascending, distinct and at least 1")
        if self.default not in self.candidates:
            raise ValueError(f"default = {self.default}: must be one of {list(self.candidates)}")
        for what, values in (("epoch_costs", self.epoch_costs), ("epoch_times", self.epoch_times)):
            if wrong := {size: value for size, value in values.items() if not 0 < value < math.inf}:
                raise ValueError(f"{what} = {wrong}: must be above 0 and finite")

    @property
    def pruned(self) -> frozenset[int]:
        """Return the batch sizes that cannot run: those that failed, and all above them that never ran.

        A failure counts until a run of that size, or of a larger one, trains.
        """
        failed: set[int] = set()
        ran: set[int] = set()
        for seen in self.observations:
            if seen.outcome == "failed":
                failed.add(seen.batch_size)
            else:
                ran.add(seen.batch_size)
                failed = {size for size in failed if size > seen.batch_size}
        least = min(failed, default=None)
        if least is None:
            return frozenset()
        return frozenset(size for size in self.candidates if size in failed or (size > least and size not in ran))

    @property
    def open_candidates(self) -> tuple[int, ...]:
        """Return the batch sizes that can run, as far as is known; all of them if none can."""
        pruned = self.pruned
        return tuple(size for size in self.candidates if size not in pruned) or self.candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningSettings:
    """How batch sizes are learned.

    Attributes:
        policy: `gridchase`: the knowledge gradient on a Gaussian posterior; `zeus`: the paper's pruning exploration and
            Gaussian Thompson sampling (arXiv:2208.06102).
        beta: a run is stopped when it costs this many times the expected cost of the best batch size; above 1.
        horizon: the number of recurrences that benefit from a finding: the weight of exploration.
        forgetting_ratio: the weight of an observation after each further recurrence, 0 to 1; None: the best predictor
            so far.
    """

    policy: Literal["gridchase", "zeus"] = "gridchase"
    beta: float = 2.0
    horizon: float = 50.0
    forgetting_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A batch size and why.

    Attributes:
        batch_size: samples an iteration.
        reason: a stable code: `none_can_run`, `only_candidate`, `default_first`, `best_so_far`, `knowledge_gradient`,
            `review`, `job_changed`; `pruning`, `thompson`, `concurrent` of the policy `zeus`.
        detail: a sentence.
        cost_bound: the cost at which the run is to be stopped; None: there is no bound yet.
    """

    batch_size: int
    reason: str
    detail: str
    cost_bound: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """The posterior of a batch size. Costs and epochs are medians and bounds of log-normal distributions.

    Attributes:
        batch_size: samples an iteration.
        n_reached, n_stopped: the number of runs with this outcome.
        is_pruned: whether it cannot run.
        epochs, epochs_lower, epochs_upper: expected epochs to the target, and their 90 % credible interval.
        epoch_cost: the cost of an epoch; `epoch_cost_is_known`: measured rather than inferred from its neighbours.
        cost, cost_lower, cost_upper: the expected cost of a run to the target, and its 90 % credible interval.
        log_cost_sd: the standard deviation of the logarithm of that mean cost; finite and positive.
        score: what the policy compares, lowest chosen, in the unit of the cost; None for a policy without scores.
    """

    batch_size: int
    n_reached: int
    n_stopped: int
    is_pruned: bool
    epochs: float | None
    epochs_lower: float | None
    epochs_upper: float | None
    epoch_cost: float | None
    epoch_cost_is_known: bool
    cost: float | None
    cost_lower: float | None
    cost_upper: float | None
    log_cost_sd: float | None
    score: float | None = None


def best_reached(beliefs: Iterable[Belief]) -> Belief | None:
    """Return that of least expected cost among the batch sizes that have reached the target and can run; None: none."""
    seen = [belief for belief in beliefs if belief.n_reached and not belief.is_pruned and belief.cost is not None]
    return min(seen, key=lambda belief: belief.cost or 0.0, default=None)
