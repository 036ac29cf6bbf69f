"""Quantiles of the normal distribution, and of Student's t for what is known from few samples."""

from typing import Final

import numpy as np

NORMAL_QUANTILE_95: Final = 1.645
"""Of the normal distribution, at 95 %."""


def student_quantile(n_degrees: float) -> float:
    """Return the 95 % quantile of Student's t distribution, by the Cornish-Fisher expansion.

    It is right to 0.2 % from 3 degrees of freedom on, and 1.2 % too low at 2.

    Args:
        n_degrees: the degrees of freedom, at least 2.
    """
    q, n = NORMAL_QUANTILE_95, n_degrees
    terms = np.array(
        [
            q,
            (q**3 + q) / 4,
            (5 * q**5 + 16 * q**3 + 3 * q) / 96,
            (3 * q**7 + 19 * q**5 + 17 * q**3 - 15 * q) / 384,
        ]
    )
    return float((terms / n ** np.arange(4.0)).sum())
