"""Publishes a training in plain PyTorch below `gridchase run`: from its first optimizer step on.

Only then is it known that this process trains. So the first pass over a loader is not seen, and without the requests
for its batches nobody knows where it pauses; the passes after it are.
"""

import threading
from typing import Any, Final

from publishers.training.frameworks.fit import warn_fault
from publishers.training.iterations.published_loader import published, publisher_behind
from publishers.training.publisher import Publisher
from publishers.training.run.run_end import open_worker
from publishers.training.worker import PublisherWorker

_worker: PublisherWorker | None = None
"""That of whoever publishes here: this module, a callback, or the training itself."""
_publisher: Publisher | None = None
"""Ours."""
_beginning: Final = threading.Lock()
"""Held by the thread that begins to publish: two that train at once must not begin a run each."""


def before_step() -> None:
    """Begin to publish, unless somebody does; PyTorch calls this before each step of any optimizer."""
    global _worker, _publisher  # noqa: PLW0603 — one training at a time
    if (_worker is not None and not _worker.closed) or not _beginning.acquire(blocking=False):
        return
    try:
        _worker = open_worker()
        if _worker is None:
            _publisher = Publisher()
            _worker = open_worker()
    except Exception as error:  # noqa: BLE001 — it would go through the optimizer into the training
        warn_fault("gridchase run", error)
    finally:
        _beginning.release()


def takes_loader(loader: Any) -> bool:  # noqa: ANN401 — a `DataLoader`
    """Let a loader publish its passes, where the training is published by us; return whether it does so only now."""
    try:
        if _publisher is None or _publisher.closed or publisher_behind(loader) is not None:
            return False
        published(loader, _publisher)
        return publisher_behind(loader) is not None
    except Exception as error:  # noqa: BLE001 — training goes on whatever it is
        warn_fault("gridchase run", error)
        return False
