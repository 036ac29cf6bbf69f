"""The house rules that no linter keeps: few entries a folder, no import circle, short functions, readable names."""

import ast
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final, NamedTuple

import grimp
import pytest

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ("publishers", "gridchase", "policies", "controller")
MAX_FUNCTION_LINES: Final = 60
MAX_TEST_NAME: Final = 79
MAX_ENTRIES: Final = 12
MAX_ENTRIES_OF_ONE_KIND: Final = 16
OF_ONE_KIND: Final = {"controller", "controller/cli", "policies/providers/sources"}
"""Workers of the shell, verbs, and providers."""
NO_ENTRIES: Final = {"__init__.py", "__main__.py", "__pycache__", "py.typed", "pyproject.toml", "LICENSE", "build"}
MODULES: Final = [path for top in (*PACKAGES, "tests") for path in sorted((ROOT / top).rglob("*.py"))]
FOLDERS: Final = sorted({path.parent for path in MODULES if path.relative_to(ROOT).parts[0] in PACKAGES})

BOOTSTRAP: Final = "publishers.training.frameworks.bootstrap.sitecustomize"
FOUND: Final = "publishers.training.frameworks.found"
"""`gridchase run` has Python run the file of the first as a module of its own, `sitecustomize`. That one imports the
second when a framework has been imported; the module of this name, which others import, never does: no circle."""


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


class Outline(NamedTuple):
    """What a module shows: its docstring, each function and its lines without the docstring, imports by a text."""

    docstring: str | None
    functions: Sequence[tuple[str, int]]
    imported_by_name: AbstractSet[str]


@cache
def _outline(path: Path) -> Outline:
    """Return what a module shows; its tree, of a hundred times as many objects, is not kept."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    functions = [
        (node.name, (node.end_lineno or 0) - node.lineno + 1 - _n_docstring_lines(node))
        for node in _statements(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return Outline(ast.get_docstring(tree), functions, _imported_by_name(tree) if "import_module" in text else set())


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Return all statements in a node, at any depth; expressions, most of a tree, are left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield child
            yield from _statements(child)


def _n_docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    docstring = node.body[0] if ast.get_docstring(node, clean=False) else None
    return (docstring.end_lineno or 0) - docstring.lineno + 1 if docstring else 0


def _imported_by_name(tree: ast.Module) -> set[str]:
    """Return the modules of ours that a file imports by a text: `import_module("…")`."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = {
        call.args[0].value
        for call in calls
        if ast.unparse(call.func).endswith("import_module") and call.args and isinstance(call.args[0], ast.Constant)
    }
    return {str(name) for name in names if str(name).partition(".")[0] in PACKAGES}


def test_every_module_of_the_house_is_looked_at() -> None:
    assert {"controller/gpu/power_limiter.py", "publishers/messages/codec.py"} <= set(map(_name, MODULES))


def test_every_module_tells_what_it_is_for() -> None:
    assert [_name(path) for path in MODULES if not _outline(path).docstring] == []


def test_no_function_is_long() -> None:
    lengths = {f"{_name(path)}: {name}": length for path in MODULES for name, length in _outline(path).functions}
    assert {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES} == {}


def test_the_name_of_a_test_fits_a_line() -> None:
    tests = [name for path in MODULES for name, _ in _outline(path).functions if name.startswith("test_")]
    assert [name for name in tests if len(name) > MAX_TEST_NAME] == []


@pytest.mark.parametrize("folder", FOLDERS, ids=_name)
def test_a_folder_has_few_entries(folder: Path) -> None:
    entries = {path.name for path in folder.iterdir()} - NO_ENTRIES
    assert len(entries) <= (MAX_ENTRIES_OF_ONE_KIND if _name(folder) in OF_ONE_KIND else MAX_ENTRIES), sorted(entries)


def test_no_import_goes_in_a_circle() -> None:
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)
    imported = {name: set(graph.find_modules_directly_imported_by(name)) for name in graph.modules}
    for path in MODULES:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if module in imported:
            imported[module] |= _outline(path).imported_by_name
    imported[BOOTSTRAP].remove(FOUND)
    TopologicalSorter(imported).prepare()
