"""Skips these tests where the frameworks are not installed, gives them a broker, and lets the frameworks warn."""

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.frameworks.bus import Bus, listening
from tests.live.conftest import Mosquitto, broker

__all__ = ["broker"]
FRAMEWORKS = ("torch", "transformers", "lightning", "pytorch_lightning", "accelerate", "keras", "jax", "flax")
WARNINGS = (
    "default",
    "error:::(controller|gridchase|policies|publishers|tests)",
    "error:Dynamo",
    "error::pytest.PytestUnhandledThreadExceptionWarning",
    "error::pytest.PytestUnraisableExceptionWarning",
)
"""Frameworks may warn of their own code and of each other's, and some do so on their first import only.

A test fails on a warning from a line of ours, on one of PyTorch's compiler about what it traces, and on an exception
that nobody catches.
"""
MISSING = [name for name in FRAMEWORKS if find_spec(name) is None]
if not MISSING:
    import_module("tests.frameworks.quick_start.sitecustomize")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of this folder where there is nothing to test with; all of them are live."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.live)
            item.add_marker(pytest.mark.filterwarnings(*WARNINGS))
            if MISSING:
                why = f"{', '.join(MISSING)} not installed: `make test-frameworks` sets up an environment that has them"
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture
def bus(broker: Mosquitto) -> Iterator[Bus]:
    """Listen to the broker."""
    with listening(broker.port) as heard:
        yield heard
