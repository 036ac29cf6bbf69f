"""Which batch size the next run of a job should use, and what is believed of each: one entry for every policy."""

import numpy as np

from policies.batch_size import zeus
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
    return Choice(batch_size=study.default, reason="default_first", detail="nothing is known yet")


def describe(study: Study, settings: LearningSettings) -> list[Belief]:
    """Return what is believed of each candidate, in their order."""
    if settings.policy == "zeus":
        return zeus.describe(study, settings)
    return []
