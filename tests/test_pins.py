"""Every package of this environment is pinned, and has the version that is pinned."""

import re
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

PINNED_WITH = (3, 11)
OURS = {"gridchase", "gridchase-controller", "pip"}


def normalized(name: str) -> str:
    """Return the one spelling of a package's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(file: Path) -> dict[str, str]:
    """Return the pinned version of each package of a constraints file."""
    pairs = (line.split("==") for line in file.read_text().split())
    return {normalized(name): version for name, version in pairs}


@pytest.mark.skipif(sys.version_info[:2] != PINNED_WITH, reason=f"the pins are those of Python {PINNED_WITH}")
def test_what_is_installed_is_what_is_pinned() -> None:
    here = Path(__file__).parent
    file = (
        here / "frameworks" / "constraints.txt" if "frameworks" in Path(sys.prefix).name else here / "constraints.txt"
    )
    installed = {normalized(one.name): one.version.partition("+")[0] for one in distributions()}
    expected = pins(file)
    assert {
        name: version for name, version in installed.items() if expected.get(name) != version and name not in OURS
    } == {}
