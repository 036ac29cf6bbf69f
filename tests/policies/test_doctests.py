"""The examples in the docstrings are true."""

import doctest
from types import ModuleType

import numpy as np
import pytest

from policies import forecasting, planning, profiling
from policies.providers import series
from policies.providers.sources import entsoe, generation_mix, mqtt, mqtt_payload
from policies.vocabulary import cost, profile, signal, units
from publishers.shared import secret_file

VOCABULARY = [cost, profile, signal, units]
DECISIONS = [forecasting, planning, profiling]
PROVIDERS = [entsoe, generation_mix, mqtt, mqtt_payload, secret_file, series]
MODULES = [*VOCABULARY, *DECISIONS, *PROVIDERS]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_examples_are_true(module: ModuleType) -> None:
    assert doctest.testmod(module, extraglobs={"np": np}).failed == 0
