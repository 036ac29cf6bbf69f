"""One thing that `gridchase check` looked at."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Finding:
    """What was looked at, what was found, and what is wrong with it; nothing where `fault` is empty."""

    what: str
    found: str
    fault: str = ""
