"""The house rules that no linter keeps: small files, short functions, a first line that tells what a file is for."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_LINES = 300
MAX_TEST_LINES = 400
MAX_FUNCTION_LINES = 40
"""Of the body alone: what takes many arguments, or is explained at length, is not long for that."""
MODULES = [
    path for top in ("publishers", "policies", "controller", "tests") for path in sorted((ROOT / top).rglob("*.py"))
]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _bodies(path: Path) -> Iterator[tuple[str, int]]:
    """Return the name of each function, and how many lines its body has."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[min(1, len(node.body) - 1)] if ast.get_docstring(node) else node.body[0]
            yield f"{_name(path)}: {node.name}", (node.end_lineno or 0) - first.lineno + 1


def test_every_module_of_the_house_is_looked_at() -> None:
    assert {"controller/gpu/power_limiter.py", "policies/planning/choose.py", "publishers/messages/codec.py"} <= set(
        map(_name, MODULES)
    )


def test_no_file_is_long() -> None:
    lengths = {_name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    limits = {name: MAX_TEST_LINES if name.startswith("tests/") else MAX_LINES for name in lengths}
    assert {name: length for name, length in lengths.items() if length > limits[name]} == {}


def test_every_module_tells_what_it_is_for() -> None:
    assert [_name(path) for path in MODULES if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))] == []


def test_no_function_is_long() -> None:
    lengths = dict(function for path in MODULES for function in _bodies(path))
    assert {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES} == {}
