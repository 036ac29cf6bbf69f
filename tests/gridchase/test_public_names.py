"""The public names: each is found at its module, and importing the package imports nothing else of ours."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import gridchase

TREE = ast.parse(Path(gridchase.__file__).read_text(encoding="utf-8"))


def test_a_type_checker_sees_the_names_that_are_imported_when_they_are_used() -> None:
    seen = {
        alias.name: node.module for node in ast.walk(TREE) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    ours = {name: module for name, module in seen.items() if module is not None and module.startswith("publishers")}
    assert ours == gridchase._MODULES
    assert sorted(ours) == sorted(gridchase.__all__)


@pytest.mark.parametrize("name", gridchase.__all__)
def test_a_public_name_is_that_of_its_module(name: str) -> None:
    assert getattr(gridchase, name) is getattr(importlib.import_module(gridchase._MODULES[name]), name)
    assert name in dir(gridchase)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'gridchase' has no attribute 'publish_iteration'"):
        vars(gridchase)["__getattr__"]("publish_iteration")


def test_importing_the_package_imports_nothing_else_of_ours() -> None:
    script = "import sys, gridchase; print([name for name in sys.modules if name.startswith('publishers')])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout == "[]\n"
