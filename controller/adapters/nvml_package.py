"""Whether `import pynvml` gives NVIDIA's own bindings, nvidia-ml-py, or the other package that carries that name.

Up to version 11, the package called pynvml on PyPI brings a `pynvml/` of its own, which hides NVIDIA's `pynvml.py`
where both are installed. From version 12 on it only depends on nvidia-ml-py and is harmless. So the question is not
which packages are installed, but which one the module comes from.
"""

from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from controller.errors import BackendError

_MEND = "pip uninstall pynvml, then pip install --force-reinstall nvidia-ml-py"


def check_package(module_file: str | None) -> None:
    """Check that the module `pynvml`, loaded from `module_file` (None: it is not there), is NVIDIA's.

    Raises:
        BackendError: it is missing, or it is another one.
    """
    if module_file is None:
        raise BackendError("the Python package nvidia-ml-py is not installed: pip install 'gridchase[controller]'")
    official = _installed("nvidia-ml-py")
    if official is not None and _path(official.locate_file("pynvml.py")) == _path(module_file):
        return
    other = _installed("pynvml")
    origin = f"the unofficial package pynvml {other.version}" if other is not None else "a package of unknown origin"
    raise BackendError(f"`import pynvml` gives {module_file}, from {origin}; NVIDIA's is needed: {_MEND}")


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _path(file: object) -> Path:
    return Path(str(file)).resolve()
