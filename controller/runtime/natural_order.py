"""Natural order of names: `job-2` before `job-10`."""

import re
from typing import Final

_DIGITS: Final = re.compile(r"(\d{1,18})")


def natural_key(name: str) -> tuple[tuple[str, int], ...]:
    """Return what names are sorted by: their text, and the numbers in it by their size.

    >>> sorted(["job-10", "job-2", "job", "a/9"], key=natural_key)
    ['a/9', 'job', 'job-2', 'job-10']
    """
    parts = iter([*_DIGITS.split(name), ""])
    return tuple((text, int(digits or 0)) for text, digits in zip(parts, parts, strict=True))
