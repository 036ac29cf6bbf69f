"""Waits for a training framework to be imported, for `gridchase run`; a Python that imports none is left alone.

It is run by every Python below `gridchase run`, in whatever environment and version: it imports as little as it can,
and nothing of the training side until a framework is there. Another `sitecustomize` is run as if this one were not.
"""

import importlib
import os
import sys

TYPE_CHECKING = False  # as in `typing`, which would have to be imported
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

FRAMEWORKS = {
    "keras.src.callbacks.callback_list": "keras_imported",
    "torch.optim.optimizer": "torch_optimizers_imported",
    "torch.utils.data.dataloader": "torch_loaders_imported",
    "transformers.trainer": "transformers_imported",
}
"""What to call in `publishers.training.frameworks.found`, by the module that a framework has when it is imported."""
HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 — `pathlib` would have to be imported


class FrameworkFinder:
    """Finds what the others find, and hears when a framework has been imported."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Return the spec of a framework's module, whose loader also tells us; None for any other module."""
        if name not in FRAMEWORKS:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others if hasattr(finder, "find_spec"))
        spec = next((spec for spec in specs if spec is not None), None)
        loader: Any = getattr(spec, "loader", None)
        exec_module = getattr(loader, "exec_module", None)
        if exec_module is None:
            return spec

        def exec_and_tell(module: "ModuleType") -> None:
            del loader.exec_module  # that of the class is there again
            exec_module(module)
            tell(FRAMEWORKS[name], module)

        try:
            loader.exec_module = exec_and_tell
        except AttributeError:  # a loader that takes no attributes
            return spec
        return spec


_told: "list[str]" = []
"""The interpreter, once it was told that what it trains is not published."""


def tell(function: str, module: "ModuleType") -> None:
    """Tell the training side that a framework has been imported; what goes wrong there does not reach the script."""
    try:
        found = importlib.import_module("publishers.training.frameworks.found")
        getattr(found, function)(module)
    except Exception as error:  # noqa: BLE001 — training goes on whatever it is
        is_off = os.environ.get("GRIDCHASE_DISABLED", "").strip().lower() not in {"", "0", "false", "no", "off"}
        if not (is_off or _told) and sys.stderr is not None:
            _told.append(sys.executable)
            what = f"what {sys.executable} trains is not published: {type(error).__name__}: {error}"
            sys.stderr.write(f"gridchase: {what}: is gridchase installed there?\n")


def run_other_sitecustomize() -> None:
    """Run the `sitecustomize` that would have run without this one, if there is one."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != HERE]  # noqa: PTH100 — as above
    ours = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


if __name__ == "sitecustomize":  # and not where somebody imports this file to look at it
    sys.meta_path.insert(0, FrameworkFinder())
    run_other_sitecustomize()
