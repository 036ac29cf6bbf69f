"""The batch size of a recurring job: observations of its runs, the posterior of each size, and the next choice."""

from policies.batch_size.choose import choose_batch_size, describe, late_cost_bound
from policies.batch_size.study import (
    Belief,
    Choice,
    LearningSettings,
    Observation,
    Outcome,
    Study,
    best_reached,
)

__all__ = [
    "Belief",
    "Choice",
    "LearningSettings",
    "Observation",
    "Outcome",
    "Study",
    "best_reached",
    "choose_batch_size",
    "describe",
    "late_cost_bound",
]
