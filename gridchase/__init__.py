"""The public API of the training side: one line around the training loop; it needs no privilege.

from gridchase import publish_iterations
for batch in publish_iterations(loader, job="resnet50"):
    ...

Each name is imported when it is first used: `import gridchase` costs nothing, and what needs a framework may be absent.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from publishers.training.frameworks.accelerate import AccelerateTracker
    from publishers.training.frameworks.keras import KerasCallback
    from publishers.training.frameworks.lightning import LightningCallback
    from publishers.training.frameworks.transformers import TransformersCallback
    from publishers.training.publish_iterations import publish_iterations, publisher_of
    from publishers.training.publisher import Publisher
    from publishers.training.reporting.run_summary import RunSummary
    from publishers.training.reporting.track_energy import track_energy
    from publishers.training.trial.policy_client import BatchSizeTrial

__all__ = [
    "AccelerateTracker",
    "BatchSizeTrial",
    "KerasCallback",
    "LightningCallback",
    "Publisher",
    "RunSummary",
    "TransformersCallback",
    "publish_iterations",
    "publisher_of",
    "track_energy",
]

_MODULES: Final = {
    "AccelerateTracker": "publishers.training.frameworks.accelerate",
    "BatchSizeTrial": "publishers.training.trial.policy_client",
    "KerasCallback": "publishers.training.frameworks.keras",
    "LightningCallback": "publishers.training.frameworks.lightning",
    "Publisher": "publishers.training.publisher",
    "RunSummary": "publishers.training.reporting.run_summary",
    "TransformersCallback": "publishers.training.frameworks.transformers",
    "publish_iterations": "publishers.training.publish_iterations",
    "publisher_of": "publishers.training.publish_iterations",
    "track_energy": "publishers.training.reporting.track_energy",
}
"""The module of each public name."""

if not TYPE_CHECKING:  # a type checker would take any name for one that exists

    def __getattr__(name: str) -> object:
        """Import a public name."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    return sorted({*globals(), *__all__})
