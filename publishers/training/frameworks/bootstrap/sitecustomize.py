"""Waits for a training framework to be imported, for `gridchase run`; a Python that imports none is left alone.

It is run by every Python below `gridchase run`, in whatever environment and version: it imports as little as it can,
and nothing of the training side until a framework is there. Another `sitecustomize` is run as if this one were not.
"""

import atexit
import importlib
import os
import sys
from _thread import get_ident  # `threading` would have to be imported

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
MARKS_FILE = "GRIDCHASE_MARKS_FILE"
"""The variable with the file in which processes note for `gridchase run` how far they have come."""
PYTHON, FRAMEWORK, RUN, FAILED = "p", "f", "r", "x"
"""What they note: that a Python has started, has imported a framework, has begun a run, was ended by an exception."""
HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 — `pathlib` would have to be imported


class FrameworkFinder:
    """Finds what the others find, and hears when a framework has been imported.

    Other tools have finders, too: they may ask all finders anew, know a loader already, or wrap it. Whatever they do,
    an import ends as it would without this finder.
    """

    def __init__(self) -> None:
        self._asking: set[tuple[int, str]] = set()
        """In which thread the others are asked for which module: they may ask this one again."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Return the spec of a framework's module, whose loader also tells us; None for any other module."""
        key = (get_ident(), name)
        if name not in FRAMEWORKS or key in self._asking:
            return None
        self._asking.add(key)
        try:
            others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
            specs = (finder.find_spec(name, path, target) for finder in others)
            spec = next((spec for spec in specs if spec is not None), None)
            loader: Any = getattr(spec, "loader", None)
            if hasattr(loader, "exec_module") and not hasattr(loader, "tells_gridchase"):
                setattr(spec, "loader", TellingLoader(name, loader))  # noqa: B010 — it has the methods of a loader
        except Exception:  # noqa: BLE001 — the import asks the others itself, and meets the same
            return None
        finally:
            self._asking.discard(key)
        return spec


class TellingLoader:
    """Loads a framework's module as its own loader does, steps aside, and tells that it was imported.

    The loader itself is not changed: it may be a class, take no attributes, or load other modules, too.
    """

    tells_gridchase = True

    def __init__(self, name: str, loader: "Any") -> None:  # noqa: ANN401
        self._name = name
        self._loader = loader

    def __getattr__(self, attribute: str) -> "Any":  # noqa: ANN401
        """Return what the loader has."""
        if attribute == "_loader":  # not there yet in a copy
            raise AttributeError(attribute)
        return getattr(self._loader, attribute)

    def exec_module(self, module: "ModuleType") -> None:
        """Execute the module, whose loader is from now on its own one."""
        for holder, attribute in ((module, "__loader__"), (getattr(module, "__spec__", None), "loader")):
            try:
                if getattr(holder, attribute, None) is self:
                    setattr(holder, attribute, self._loader)
            except Exception:  # noqa: BLE001, S110 — it takes no attributes: this one stays
                pass
        self._loader.exec_module(module)
        tell(FRAMEWORKS[self._name], module)


_told: "list[str]" = []
"""The interpreter, once it was told that what it trains is not published."""


def tell(function: str, module: "ModuleType") -> None:
    """Tell the training side that a framework has been imported; what goes wrong there does not reach the script."""
    note(FRAMEWORK)
    try:
        found = importlib.import_module("publishers.training.frameworks.found")
        getattr(found, function)(module)
    except Exception as error:  # noqa: BLE001 — training goes on whatever it is
        try:
            _warn_once(error)
        except Exception:  # noqa: BLE001 — stderr is closed, or cannot write it
            return


def note(mark: str) -> None:
    """Note how far this process has come, where `gridchase run` wants to know; never raises."""
    try:
        marks = os.environ[MARKS_FILE]
        try:
            fd = os.open(marks, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError:
            say_unreached(marks)
            return
        try:
            os.write(fd, mark.encode())
        finally:
            os.close(fd)
    except Exception:  # noqa: BLE001 — nobody wants to know, or any more
        return


def say_unreached(marks: str) -> None:
    """Tell `gridchase run` that this process does not reach the file."""
    import socket  # noqa: PLC0415 — hardly ever

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
        to.sendto(b"", socket.MSG_DONTWAIT, socket_of(marks))


def socket_of(marks: str) -> bytes:
    """Return the address, in Linux's abstract space, of who waits for the marks in a file."""
    return b"\0" + os.path.basename(marks).encode()  # noqa: PTH119 — `pathlib` would have to be imported


def note_failure() -> None:
    """Note, as this Python ends, that an exception has ended it."""
    if getattr(sys, "last_value", None) is not None:
        note(FAILED)


def _warn_once(error: Exception) -> None:
    is_off = os.environ.get("GRIDCHASE_DISABLED", "").strip().lower() not in {"", "0", "false", "no", "off"}
    if not (is_off or _told) and sys.stderr is not None:
        _told.append(sys.executable)
        what = f"what {sys.executable} trains is not published: {type(error).__name__}: {error}"
        sys.stderr.write(f"gridchase: {what}: is gridchase installed there?\n")


def is_here(entry: str) -> bool:
    """Return whether an entry of the path is the folder of this file."""
    try:
        return os.path.abspath(entry) == HERE  # noqa: PTH100 — as above
    except Exception:  # noqa: BLE001 — it is no string, or is relative to a folder that is gone
        return False


def run_other_sitecustomize() -> None:
    """Run the `sitecustomize` that would have run without this one, if there is one."""
    sys.path[:] = [entry for entry in sys.path if not is_here(entry)]
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
    note(PYTHON)
    if MARKS_FILE in os.environ:
        atexit.register(note_failure)
    sys.meta_path.insert(0, FrameworkFinder())
    run_other_sitecustomize()
