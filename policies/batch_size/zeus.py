"""The policy of the Zeus paper: exploration that prunes, then Gaussian Thompson sampling (arXiv:2208.06102, section 4).

First two rounds of exploration: from the default downwards, then upwards; a batch size that misses the target ends its
direction, and what reached it goes on to the next round, which starts from the cheapest. Then each batch size that is
left has a normal posterior of its mean cost, N(mean, variance / n) of what was observed there, variance taken as known;
each run draws from all of them and takes the least. A run is stopped at `beta` times the least cost of a recurrence so
far. All of it is a function of the observations; the choices are those of the reference implementation (Zeus 0.3,
`PruningGTSBatchSizeOptimizer`; while runs are in flight, those of its server).

Where the reference fails, or ends in an infinite precision, this one continues:

- costs that are all equal, or a single one, have the run-to-run deviation that is usual in the paper's traces;
- where every batch size was pruned, or cannot run, those that have ever reached the target are left, else all of them;
- of runs beside the exploration, one with the batch size that is explored next counts as that exploration;
- a batch size that turns out not to fit the memory is left out; an unmeasured run counts, but without a cost.
"""

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from policies.batch_size.study import Belief, Choice, LearningSettings, Study

N_ROUNDS: Final = 2
NEVER_RAN: Final = 100.0
"""A run whose bound is below its first epoch is charged so many times that bound (`Simulator` of Zeus 0.3)."""
USUAL_SD_RATIO: Final = 0.1
"""The coefficient of variation of the epochs to the target is 0 to 0.27 in the paper's traces, 0.1 on average."""
LEAST_SD_RATIO: Final = 1e-9
"""Below it costs differ by rounding."""
Z_90: Final = 1.6448536269514722
"""The 95th percentile of the normal distribution."""


class _Seen(NamedTuple):
    """An observation as the policy counts it: infinite if there is no cost."""

    batch_size: int
    cost: float
    reached: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExplorationState:
    """The state that follows from the observations.

    Attributes:
        seen: the observations.
        best: the batch size of the cheapest recurrence; the default before there is one.
        best_cost: its cost, with its failures; infinite before there is one.
        exploring: the batch size to explore, or None if exploration is over.
        arms: the batch sizes that it left, ascending.
    """

    seen: tuple[_Seen, ...]
    best: int
    best_cost: float
    exploring: int | None
    arms: tuple[int, ...]


def choose(study: Study, settings: LearningSettings, *, rng: np.random.Generator) -> Choice:
    """Return the batch size of the next run, by the paper's rules.

    Args:
        study: what is known of the job; the costs of epochs do not matter to this policy.
        settings: its `beta`.
        rng: the generator; if one is kept from the first choice on, the choices are the reference's.
    """
    state = _exploration_state(study, settings.beta)
    bound = settings.beta * state.best_cost if math.isfinite(state.best_cost) else None
    if state.exploring is None:
        size, detail = _draw(state, rng)
        return Choice(batch_size=size, reason="thompson", detail=detail, cost_bound=bound)
    if state.exploring not in study.in_flight:
        detail = (
            f"{state.exploring} is explored; two rounds try the batch sizes down and up from the best until one fails"
        )
        return Choice(batch_size=state.exploring, reason="pruning", detail=detail, cost_bound=bound)
    size = _beside(state, study)
    detail = f"{state.exploring} is being explored by another run; {size} is the best so far"
    return Choice(batch_size=size, reason="concurrent", detail=detail, cost_bound=bound)


def describe(study: Study, settings: LearningSettings) -> list[Belief]:
    """Return the posterior of each candidate, in their order.

    The normal posterior of a mean cost is given as the log-normal of the same mean and variance, which is positive. The
    policy has no posterior of epochs: theirs is the plain mean, without bounds.
    """
    state = _exploration_state(study, settings.beta)
    costs = _costs(state.seen)
    return [_belief(size, study, costs[size]) for size in study.candidates]


def _exploration_state(study: Study, beta: float) -> _ExplorationState:
    seen: list[_Seen] = []
    best, best_cost, failures_cost = study.default, math.inf, 0.0
    for one in study.observations:
        never_ran = one.outcome == "stopped" and not one.epochs and not one.cost
        cost = math.inf if one.cost is None else one.cost
        if never_ran:
            cost = NEVER_RAN * beta * best_cost
        elif one.outcome == "reached":
            if cost + failures_cost < best_cost:
                best, best_cost = one.batch_size, cost + failures_cost
            failures_cost = 0.0
        else:
            failures_cost += one.cost or 0.0
        seen.append(_Seen(one.batch_size, cost, one.outcome == "reached"))
    exploring, arms = _explored(study, seen)
    return _ExplorationState(
        seen=tuple(seen),
        best=best,
        best_cost=best_cost,
        exploring=exploring,
        arms=_usable(arms, study) if exploring is None else (),
    )


def _explored(study: Study, seen: Sequence[_Seen]) -> tuple[int | None, tuple[int, ...]]:
    """Return the batch size to explore next, or None and those that exploration has left.

    A size that is known to fail needs no run, whichever run has found it.
    """
    walk, pruned = _walk(study.candidates, study.default), study.pruned
    try:
        exploring = _skip_pruned(walk, next(walk), pruned)
        for one in seen:
            if one.batch_size == exploring:  # else a run beside the exploration
                exploring = _skip_pruned(walk, walk.send(one), pruned)
    except StopIteration as end:
        arms: tuple[int, ...] = end.value
        return None, arms
    return exploring, ()


def _skip_pruned(walk: Generator[int, _Seen, tuple[int, ...]], size: int, pruned: Collection[int]) -> int:
    while size in pruned:
        size = walk.send(_Seen(size, math.inf, reached=False))
    return size


def _walk(sizes: Sequence[int], start: int) -> Generator[int, _Seen, tuple[int, ...]]:
    """Yield the batch sizes to explore, each for what was seen there; return those that reached the target, ascending.

    Where two rounds leave none, or the first one does, there is nothing to return.
    """
    left = list(sizes)
    for _ in range(N_ROUNDS):
        here = min(bisect_left(left, start), len(left) - 1)
        reached: list[int] = []
        best_cost = math.inf
        for direction in (left[here::-1], left[here + 1 :]):
            for size in direction:
                seen = yield size
                if not seen.reached:
                    break
                reached.append(size)
                if seen.cost < best_cost:
                    best_cost, start = seen.cost, size
        left = sorted(reached)
        if not left:
            break
    return tuple(left)


def _usable(arms: Sequence[int], study: Study) -> tuple[int, ...]:
    """Return the arms without those that cannot run; where none is left, what has ever reached the target, or all."""
    candidates = study.open_candidates
    reached = {one.batch_size for one in study.observations if one.outcome == "reached"}
    left = tuple(size for size in arms if size in candidates)
    return left or tuple(size for size in candidates if size in reached) or candidates


def _beside(state: _ExplorationState, study: Study) -> int:
    """Return the batch size of a run beside the exploration: the best so far, or the nearest that can run."""
    candidates = study.open_candidates
    if state.best in candidates:
        return state.best
    reached = [one for one in state.seen if one.reached and one.batch_size in candidates]
    if reached:
        return min(reached, key=lambda one: one.cost).batch_size
    return min(candidates, key=lambda size: (abs(math.log(size / state.best)), size))


def _draw(state: _ExplorationState, rng: np.random.Generator) -> tuple[int, str]:
    """Return the batch size of Thompson sampling, and why; random numbers are drawn in the reference's order."""
    counts = Counter(one.batch_size for one in state.seen)
    for size in map(int, rng.choice(np.array(state.arms), len(state.arms), replace=False)):
        if counts[size] < N_ROUNDS:
            return size, f"{size} has run {counts[size]} times, which is too seldom to compare it"
    drawn: dict[int, float] = {}
    costs = _costs(state.seen)
    for size in state.arms:
        posterior = _posterior(costs[size])
        if posterior is not None:
            drawn[size] = -float(rng.normal(-posterior[0], posterior[1]))
    if not drawn:
        size = state.best if state.best in state.arms else state.arms[0]
        return size, f"no run has a measured cost; {size} is as good as any other"
    size = min(drawn, key=drawn.__getitem__)
    return size, f"{size} drew a cost of {drawn[size]:.4g}, the least of {len(drawn)} batch sizes"


def _costs(seen: Sequence[_Seen]) -> Mapping[int, list[float]]:
    costs: defaultdict[int, list[float]] = defaultdict(list)
    for size, cost, _ in seen:
        if cost < math.inf:
            costs[size].append(cost)
    return costs


def _posterior(costs: Sequence[float]) -> tuple[float, float] | None:
    """Return mean and standard deviation of the posterior of a mean cost (flat prior, known variance), or None."""
    if not costs:
        return None
    values = np.array(costs)
    mean, sd = float(values.mean()), float(values.std())
    if sd <= LEAST_SD_RATIO * mean:
        sd = USUAL_SD_RATIO * mean if mean > 0 else 1.0
    return mean, sd / math.sqrt(len(values))


def _belief(size: int, study: Study, costs: Sequence[float]) -> Belief:
    own = [one for one in study.observations if one.batch_size == size]
    epochs = [one.epochs for one in own if one.outcome == "reached"]
    posterior = _posterior(costs)
    sd_ratio = posterior[1] / posterior[0] if posterior and posterior[0] > 0 else None
    log_sd = None if sd_ratio is None else math.sqrt(math.log1p(sd_ratio**2))
    cost = None if posterior is None or log_sd is None else posterior[0]
    return Belief(
        batch_size=size,
        n_reached=len(epochs),
        n_stopped=sum(one.outcome == "stopped" for one in own),
        is_pruned=size in study.pruned,
        epochs=float(np.mean(epochs)) if epochs else None,
        epochs_lower=None,
        epochs_upper=None,
        epoch_cost=study.epoch_costs.get(size),
        epoch_cost_is_known=size in study.epoch_costs,
        cost=cost,
        cost_lower=None if cost is None or log_sd is None else cost * math.exp(-Z_90 * log_sd),
        cost_upper=None if cost is None or log_sd is None else cost * math.exp(Z_90 * log_sd),
        log_cost_sd=log_sd,
    )
