"""Skips these tests where the frameworks are not installed, and gives them a broker."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.frameworks.bus import Bus, listening
from tests.live.conftest import Mosquitto, broker

__all__ = ["broker"]
FRAMEWORKS = ("torch", "transformers", "lightning", "pytorch_lightning", "accelerate", "keras", "jax", "flax")
MISSING = [name for name in FRAMEWORKS if find_spec(name) is None]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of this folder where there is nothing to test with; all of them are live."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.live)
            if MISSING:
                why = f"{', '.join(MISSING)} not installed: `make test-frameworks` sets up an environment that has them"
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture
def bus(broker: Mosquitto) -> Iterator[Bus]:
    """Listen to the broker."""
    with listening(broker.port) as heard:
        yield heard
