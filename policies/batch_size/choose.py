"""Chooses the batch size of the next run, and describes the posterior, by either policy."""

import numpy as np

from policies.batch_size import knowledge_gradient, zeus
from policies.batch_size.study import Belief, Choice, LearningSettings, Study


def choose_batch_size(study: Study, settings: LearningSettings, *, rng: np.random.Generator) -> Choice:
    """Return the batch size of the next run.

    Args:
        study: the job.
        settings: the policy and its settings.
        rng: the random generator, for policies that sample.
    """
    if settings.policy == "zeus":
        return zeus.choose(study, settings, rng=rng)
    return knowledge_gradient.choose(study, settings)


def late_cost_bound(study: Study, settings: LearningSettings) -> float | None:
    """Return the bound of a run in flight that got none, once another has reached the target; None: there is none yet.

    Zeus's policy has no such bound: a run keeps what it got.
    """
    return None if settings.policy == "zeus" else knowledge_gradient.cost_bound(study, settings)


def describe(study: Study, settings: LearningSettings) -> list[Belief]:
    """Return the posterior of each candidate, in their order."""
    if settings.policy == "zeus":
        return zeus.describe(study, settings)
    return knowledge_gradient.describe(study, settings)
