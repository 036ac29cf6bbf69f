"""What a forecast is: the best estimate of a signal, and the band in which it will probably lie."""

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from policies.vocabulary.signal import Signal

Values: TypeAlias = NDArray[np.float64]
"""Values of a signal, in its unit; NaN where missing."""

MAX_LAG_S: Final = 86_400.0
"""Nothing is forecast from a last value that ceased to hold longer ago than this."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forecast:
    """A forecast.

    Attributes:
        signal: the best estimate, from where the last known value ceases to hold.
        lower: the lower end of the 90 % prediction band, shape (n,), in the signal's unit; NaN where not known yet.
        upper: the upper end, the same.
    """

    signal: Signal
    lower: Values
    upper: Values
