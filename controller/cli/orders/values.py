"""Limits and factors as people write them: `205W`, `0.2kW`; `1.08`."""

import argparse
import math
import re
from typing import Final

from controller.ports.orders import MAX_SLOWDOWN_RATIO

_POWER: Final = re.compile(r"(\d+(?:\.\d+)?) ?(W|kW|)\Z")


def power_w(text: str) -> float:
    """Return a power [W].

    >>> power_w("205W"), power_w("205"), power_w("0.2 kW")
    (205.0, 205.0, 200.0)

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    found = _POWER.match(text)
    if found is None or not 0 < float(found[1]) < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a power above 0, as 205W or 0.2kW")
    return float(found[1]) * (1_000.0 if found[2] == "kW" else 1.0)


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
