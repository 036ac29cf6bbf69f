"""The batch size of a recurring job: what its runs tell, what is believed of each size, and which one is next."""

from policies.batch_size.choose import choose_batch_size, describe
from policies.batch_size.study import Belief, Choice, LearningSettings, Observation, Outcome, Study

__all__ = [
    "Belief",
    "Choice",
    "LearningSettings",
    "Observation",
    "Outcome",
    "Study",
    "choose_batch_size",
    "describe",
]
