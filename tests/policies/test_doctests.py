"""The examples in the docstrings are true."""

import doctest
from types import ModuleType

import numpy as np
import pytest

from policies import forecasting, planning, profiling
from policies.vocabulary import cost, profile, signal, units

MODULES = [cost, forecasting, planning, profile, profiling, signal, units]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_examples_are_true(module: ModuleType) -> None:
    assert doctest.testmod(module, extraglobs={"np": np}).failed == 0
