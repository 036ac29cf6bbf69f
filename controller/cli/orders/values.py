"""Limits and factors as people write them: `205W`, `0.2kW`; `1.08`."""

import argparse
import math

from controller.ports.orders import MAX_SLOWDOWN_RATIO
from controller.runtime import typed_values


def power_w(text: str) -> float:
    """Return a power [W].

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        return typed_values.power_w(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error


def slowdown_ratio(text: str) -> float:
    """Return how many times as long as at full speed a run may take.

    >>> slowdown_ratio("1.08")
    1.08

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        ratio = float(text)
    except ValueError:
        ratio = math.nan
    if not 1 <= ratio <= MAX_SLOWDOWN_RATIO:
        raise argparse.ArgumentTypeError(
            f"{text!r}: must be a factor from 1 (never slower) to {MAX_SLOWDOWN_RATIO:g}, as 1.08"
        )
    return ratio
