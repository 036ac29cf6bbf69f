"""Below `gridchase run` an import ends as it would without our finder, whatever other finders and loaders do."""

import importlib.util
import io
import itertools
import os
import runpy
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis.strategies as st
import pytest
import wrapt
from hypothesis import given, settings
from wrapt.importer import ImportHookFinder

import publishers.training.frameworks.bootstrap as package
from publishers.training.frameworks.bootstrap import sitecustomize

BOOTSTRAP = str(Path(package.__path__[0], "sitecustomize.py"))
numbers = itertools.count()


class Loader:
    """A loader with attributes, like Python's own."""

    def __init__(self, execute: Callable[[ModuleType], None]) -> None:
        self._execute = execute

    def create_module(self, _: ModuleSpec) -> None:
        """Leave it to Python."""

    def exec_module(self, module: ModuleType) -> None:
        """Execute it."""
        self._execute(module)


class Stubborn(Loader):
    """One whose attributes can be set, and not deleted."""

    def __delattr__(self, name: str) -> None:
        """Refuse."""
        raise TypeError(name)


class Frozen(Loader):
    """One that takes no attributes."""

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse all but its own."""
        if name != "_execute":
            raise TypeError(name)
        super().__setattr__(name, value)


class FrozenSpec(ModuleSpec):
    """One whose loader cannot be replaced: wrapt fails at that."""

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse another loader."""
        if name == "loader" and name in vars(self):
            raise TypeError(name)
        super().__setattr__(name, value)


def class_as_loader(execute: Callable[[ModuleType], None]) -> type:
    return type("Loader", (), {"create_module": Loader.create_module, "exec_module": staticmethod(execute)})


class Source:
    """Finds one module, whose executions are counted; asked twice, it may give the same spec."""

    kind: type[ModuleSpec] = ModuleSpec

    def __init__(self, name: str, loader: Callable[..., Any], *, is_cached: bool, fails: bool) -> None:
        self.n_executions = 0
        self._name, self._loader, self._is_cached, self._fails = name, loader, is_cached, fails
        self._spec: ModuleSpec | None = None

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Return the spec of the one module."""
        if name == self._name and (self._spec is None or not self._is_cached):
            self._spec = self.kind(name, self._loader(self._execute))
        return self._spec if name == self._name else None

    def _execute(self, _: ModuleType) -> None:
        self.n_executions += 1
        if self._fails:
            raise ImportError("no kernel image")


class Asking:
    """Asks the others anew, as tools do that change modules."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return what the others find."""
        others: list[Any] = [finder for finder in sys.meta_path if finder is not self]
        found = (finder.find_spec(name, path, target) for finder in others)
        return next((spec for spec in found if spec is not None), None)


class Patching(Asking):
    """Changes the loader that the others give, until it has loaded."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return what the others find, with its loader changed where it can be."""
        spec = super().find_spec(name, path, target)
        loader: Any = getattr(spec, "loader", None)
        if type(loader) is Loader:
            exec_module = loader.exec_module

            def exec_patched(module: ModuleType) -> None:
                vars(loader).pop("exec_module", None)
                exec_module(module)

            vars(loader)["exec_module"] = exec_patched
        return spec


class Raising:
    """A finder with a fault, which ends every import that comes as far."""

    def find_spec(self, name: str, *_: object) -> None:
        """Fail."""
        raise RuntimeError(f"a fault of another tool at {name}")


OTHERS: dict[str, Callable[[], Any]] = {
    "wrapt": ImportHookFinder,
    "asking": Asking,
    "patching": Patching,
    "raising": Raising,
}
orders = st.lists(st.sampled_from(["ours", "ours", *OTHERS]), max_size=5).filter(
    lambda order: order.count("asking") + order.count("patching") <= 1  # two would ask each other without end
)


def outcome(name: str, finders: list[Any], source: Source, *, is_asked_before: bool) -> str:
    """Import a module by these finders, and return how that ended."""
    before = sys.meta_path[:]
    sys.meta_path[:] = [*finders, *before, source]
    try:
        if is_asked_before:
            importlib.util.find_spec(name)
        module = importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 — which one is the outcome
        return f"{error!r}, {source.n_executions} executions"
    finally:
        sys.meta_path[:] = before
        sys.modules.pop(name, None)
    assert not hasattr(module.__loader__, "tells_gridchase")
    return f"imported, {source.n_executions} executions"


@settings(max_examples=200)
@given(
    order=orders,
    loader=st.sampled_from([Loader, Stubborn, Frozen, class_as_loader]),
    is_cached=st.booleans(),
    fails=st.booleans(),
    is_asked_before=st.booleans(),
)
def test_an_import_ends_as_it_would_without_ours(
    order: list[str], loader: Callable[..., Any], *, is_cached: bool, fails: bool, is_asked_before: bool
) -> None:
    told, outcomes, name = list[str](), list[tuple[str, int]](), f"framework_{next(numbers)}"
    bootstrap = runpy.run_path(BOOTSTRAP)
    scope = bootstrap["tell"].__globals__
    scope["FRAMEWORKS"], scope["tell"] = {name: "found"}, lambda function, _: told.append(function)
    for ours in ([], [bootstrap["FrameworkFinder"]] * order.count("ours")):
        notified = list[ModuleType]()
        wrapt.register_post_import_hook(notified.append, name)
        makers = iter(ours)
        finders = [next(makers)() if each == "ours" else OTHERS[each]() for each in order if each != "ours" or ours]
        source = Source(name, loader, is_cached=is_cached, fails=fails)
        how = outcome(name, finders, source, is_asked_before=is_asked_before)
        outcomes.append((how, len(notified)))
    assert outcomes[0] == outcomes[1]
    assert told == ["found"] * ("ours" in order and outcomes[1][0].startswith("imported"))


def test_a_module_whose_loader_cannot_be_replaced_is_imported_all_the_same() -> None:
    bootstrap, name = runpy.run_path(BOOTSTRAP), f"framework_{next(numbers)}"
    bootstrap["tell"].__globals__["FRAMEWORKS"] = {name: "found"}
    source = Source(name, Loader, is_cached=False, fails=False)
    source.kind = FrozenSpec
    assert outcome(name, [bootstrap["FrameworkFinder"]()], source, is_asked_before=False) == "imported, 1 executions"


def test_nothing_is_raised_where_stderr_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    runpy.run_path(BOOTSTRAP)["tell"]("no_such_framework", ModuleType("framework"))


def test_the_other_sitecustomize_is_run_where_the_folder_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, site = tmp_path / "gone", tmp_path / "site"
    gone.mkdir()
    site.mkdir()
    (site / "sitecustomize.py").write_text("import sys; sys.was_run_by_bootstrap = True")
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(sys, "path", ["src", os.path.dirname(BOOTSTRAP), str(site)])  # noqa: PTH120
    monkeypatch.setattr(sys, "was_run_by_bootstrap", False, raising=False)
    monkeypatch.delitem(sys.modules, "sitecustomize", raising=False)
    runpy.run_path(BOOTSTRAP)["run_other_sitecustomize"]()
    monkeypatch.delitem(sys.modules, "sitecustomize")
    assert vars(sys)["was_run_by_bootstrap"]
    assert sys.path == ["src", str(site)]


def test_a_mark_is_appended_to_a_file_and_never_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks, mine, link = tmp_path / "marks", tmp_path / "mine", tmp_path / "link"
    marks.write_text("p")
    mine.write_text("my work")
    link.symlink_to(mine)
    for path in (marks, link):
        monkeypatch.setenv("GRIDCHASE_MARKS_FILE", str(path))
        sitecustomize.note("r")
    assert (marks.read_text(), mine.read_text()) == ("pr", "my work")


def test_a_mark_that_cannot_be_made_makes_no_file_and_waits_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("nothing", "pipe", "."):
        monkeypatch.setenv("GRIDCHASE_MARKS_FILE", str(tmp_path / name))
        sitecustomize.note("r")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
