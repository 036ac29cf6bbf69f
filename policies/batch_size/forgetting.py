"""How much an old observation still weighs: jobs drift, as their data do."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.batch_size.study import Floats

RATES: Final = (1.0, 0.97, 0.9)


def observation_weights(
    index: NDArray[np.intp], log_epochs: Floats, reached: NDArray[np.bool_], forgetting_ratio: float | None
) -> Floats:
    """Return the weight of each observation, shape (n_observations,), in the order in which they were made.

    Args:
        index: which candidate each is of, shape (n_observations,).
        log_epochs: the logarithm of its epochs, where it reached its target, shape (n_observations,).
        reached: where it did, shape (n_observations,).
        forgetting_ratio: what an observation weighs after each further one; None: as predicts best.
    """
    del index, log_epochs
    ratio = 1.0 if forgetting_ratio is None else forgetting_ratio
    weights: Floats = ratio ** np.arange(len(reached) - 1, -1, -1, dtype=np.float64)
    return weights
