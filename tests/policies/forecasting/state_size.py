"""The size of a forecaster's state."""

import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import numpy as np
from numpy.typing import NDArray

from policies.forecasting import ForecasterState


def arrays(thing: object) -> Iterator[NDArray[np.generic]]:
    """Yield every array that a state holds."""
    if isinstance(thing, np.ndarray):
        yield thing
    elif is_dataclass(thing) and not isinstance(thing, type):
        for field in fields(thing):
            yield from arrays(getattr(thing, field.name))


def size(state: ForecasterState) -> int:
    """Return the size of the arrays of a state, including those that they are views of [bytes]."""
    held = [array if array.base is None else array.base for array in arrays(state)]
    return sum(sys.getsizeof(array) for array in held)
