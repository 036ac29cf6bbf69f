"""Where one training of a process ends and the next one begins, so that each is a run of its own.

A script may train several times: the folds of a cross-validation, a second fit, a notebook's cell that is run again.
Nobody says so, and wrapping a loader again says nothing: many loops do so in each epoch. It is another training

- where an optimizer makes its first step in a new pass over a loader and the one that counted before is gone, or makes
  no more steps since a loader was wrapped (see `optimizer_hook`);
- where a loader is wrapped with `epochs=` or `total_iterations=`, and what was announced before is done;
- where a loader is wrapped in another execution of a notebook's cell than the one before.

A run that the training has named is one run, whatever it does.
"""

import sys
import time
from collections.abc import Callable
from typing import Any, Final

from publishers.training.coerce import warn_once

SHORT_S: Final = 60.0
MAX_SHORT_RUNS: Final = 16
"""So many runs in a row may be shorter: beyond that they are the parts of one, such as the clients of a federation."""


class RunSplitter:
    """Decides whether the runs of one publisher are split; the training's thread asks.

    Attributes:
        is_on: whether they may be.
    """

    def __init__(self, *, is_on: bool) -> None:
        self.is_on = is_on
        self._began_s = time.monotonic()
        self._n_short = 0
        self._cell = notebook_cell()

    def begins_by_call(self, *, has_trained: bool, is_complete: bool, announces: bool) -> bool:
        """Return whether another training begins where a loader is wrapped.

        Args:
            has_trained: whether the present run has had iterations.
            is_complete: whether it has had all that it announced.
            announces: whether the call announces how long the training is.
        """
        before, self._cell = self._cell, notebook_cell()
        return has_trained and (before != self._cell or (is_complete and announces))

    def allows(self) -> bool:
        """Return whether another run may begin now, and take note that it does."""
        now_s = time.monotonic()
        is_short = now_s - self._began_s < SHORT_S
        if not self.is_on or (is_short and self._n_short >= MAX_SHORT_RUNS):
            if self.is_on:
                warn_once(
                    f"further trainings of this process belong to one run, since {MAX_SHORT_RUNS} in a row were "
                    f"shorter than {SHORT_S:g} s: make a Publisher for each, if they are to be runs of their own"
                )
            return False
        self._n_short = self._n_short + 1 if is_short else 0
        self._began_s = now_s
        return True


def notebook_cell() -> int | None:
    """Return which execution of a notebook's cell this is; None outside of a notebook."""
    ipython: Any = sys.modules.get("IPython")
    try:
        count = ipython.get_ipython().execution_count
    except Exception:  # noqa: BLE001 — there is no notebook, or it is another kind of shell
        return None
    return count if isinstance(count, int) else None


def after_each_cell(tell: Callable[..., None]) -> None:
    """Let a function be called after each cell of a notebook from now on, once; there is none elsewhere."""
    ipython: Any = sys.modules.get("IPython")
    try:
        ipython.get_ipython().events.register("post_run_cell", tell)
    except Exception:  # noqa: BLE001 — as above
        return


def is_data_worker() -> bool:
    """Return whether this process only loads data for a training, in a worker of PyTorch's loader."""
    data: Any = sys.modules.get("torch.utils.data")
    try:
        return data is not None and data.get_worker_info() is not None
    except Exception:  # noqa: BLE001 — a module that is only half imported
        return False
