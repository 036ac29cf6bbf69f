"""What frameworks find by the entry points of this distribution: they call it in every process that uses them.

So it imports nothing, and returns nothing, where no job is named.
"""

import logging
import os
from typing import Any


def lightning_callbacks() -> list[Any]:
    """Return the callback for a trainer of `lightning.pytorch`."""
    return _lightning_callbacks("lightning.pytorch")


def pytorch_lightning_callbacks() -> list[Any]:
    """Return the callback for a trainer of `pytorch_lightning`."""
    return _lightning_callbacks("pytorch_lightning")


def _lightning_callbacks(package: str) -> list[Any]:
    if not os.environ.get("GRIDCHASE_JOB"):
        return []
    try:
        from publishers.training.frameworks.lightning import callback_class  # noqa: PLC0415 — see above

        return [callback_class(package)()]
    except Exception as error:  # noqa: BLE001 — training goes on whatever it is
        logging.getLogger("publishers").warning(
            "trainings of %s are not published: %s: %s", package, type(error).__name__, error
        )
        return []
