"""Zeus's own batch size optimizer (zeus-ml) behind our interface, the reference of the policy `zeus`."""

from typing import Final

from zeus._legacy.job import Job
from zeus._legacy.policy.optimizer import PruningGTSBatchSizeOptimizer

from policies.batch_size.study import Choice, Observation, Study
from policies.replay.batch_size.simulation import MAX_TRIES

NEVER_RAN: Final = 100.0
"""What Zeus's simulator charges for a run that never ran, in bounds."""


class Reference:
    """Asks and tells the optimizer as Zeus's simulator does; while an exploration is out, as its server does.

    The optimizer may end with an error, as when it has pruned everything, and the simulator does where a recurrence has
    failed 20 times; then its user is left with the default, and
    `error` says why, and `n_reached` after how many recurrences.
    """

    def __init__(self, *, candidates: tuple[int, ...], default: int, seed: int, beta: float = 2.0) -> None:
        self.error: Exception | None = None
        self.n_reached: int | None = None
        self._beta = beta
        self._job = Job("dataset", "network", "optimizer", 0.5, 100, default)
        self._optimizer = PruningGTSBatchSizeOptimizer(seed=seed, concurrency=True, verbose=False)
        self._optimizer.register_job(self._job, list(candidates))
        self._n_told = 0
        self._n_failures = 0
        self._is_exploring = False
        self._best, self._min_cost, self._failures_cost = default, float("inf"), 0.0

    def __call__(self, study: Study) -> Choice:
        """Return the optimizer's choice."""
        for seen in study.observations[self._n_told :]:
            self._tell(seen)
        self._n_told = len(study.observations)
        if self.error is None and self._n_failures >= MAX_TRIES:
            self._end(RuntimeError("Job did not reach the target metric in 20 tries."), study)
        bound = self._beta * self._min_cost if self._min_cost < float("inf") else None
        if self.error is not None:
            return Choice(batch_size=study.default, reason="default_first", detail="Zeus has ended with an error")
        if self._is_exploring:
            return Choice(batch_size=self._best, reason="concurrent", detail="", cost_bound=bound)
        try:
            size = int(self._optimizer.predict(self._job))
        except (ValueError, AssertionError) as error:
            self._end(error, study)
            return self(study)
        self._is_exploring = self._job not in self._optimizer.mabs
        return Choice(batch_size=size, reason="reference", detail="", cost_bound=bound)

    def _end(self, error: Exception, study: Study) -> None:
        self.error = error
        self.n_reached = sum(seen.outcome == "reached" for seen in study.observations)

    def _tell(self, seen: Observation) -> None:
        """Report the end of a run; the least cost is that of a whole recurrence, as in the simulator."""
        cost = seen.cost or 0.0
        self._n_failures = 0 if seen.outcome == "reached" else self._n_failures + 1
        if not seen.epochs:
            cost = NEVER_RAN * self._beta * self._min_cost
        elif seen.outcome == "reached":
            if cost + self._failures_cost < self._min_cost:
                self._best, self._min_cost = seen.batch_size, cost + self._failures_cost
            self._failures_cost = 0.0
        else:
            self._failures_cost += cost
        if self.error is None:
            is_explored = self._is_exploring and self._optimizer.exp_manager[self._job].expecting == seen.batch_size
            self._optimizer.observe(self._job, seen.batch_size, cost, seen.outcome == "reached")
            self._is_exploring = self._is_exploring and not is_explored
