"""The examples in the docstrings are true: of every module that has one."""

import doctest
import importlib
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for package in ("controller", "gridchase", "policies", "publishers")
    for path in sorted((ROOT / package).rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_are_true(module: str) -> None:
    results = doctest.testmod(importlib.import_module(module), extraglobs={"np": np})
    assert results.attempted > 0
    assert results.failed == 0
