"""Which batch size the next run of a job should use, and what is believed of each: one entry for every policy."""

import numpy as np

from policies.batch_size import beliefs, knowledge_gradient, zeus
from policies.batch_size.study import Belief, Choice, LearningSettings, Study


def choose_batch_size(study: Study, settings: LearningSettings, *, rng: np.random.Generator) -> Choice:
    """Return the batch size of the next run.

    Args:
        study: what is known of the job.
        settings: how it is learned.
        rng: the dice, for policies that need them.
    """
    if settings.policy == "zeus":
        return zeus.choose(study, settings, rng=rng)
    return knowledge_gradient.choose(study, settings)


def describe(study: Study, settings: LearningSettings) -> list[Belief]:
    """Return what is believed of each candidate, in their order."""
    if settings.policy == "zeus":
        return zeus.describe(study, settings)
    return beliefs.describe(study, settings)
