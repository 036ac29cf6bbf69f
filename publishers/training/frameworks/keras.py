"""The callback of Keras 3, on any backend.

from gridchase import KerasCallback
model.fit(…, callbacks=[KerasCallback(job="resnet50")])
"""

import sys
import threading
from typing import Any, Final, Self, Unpack

from publishers.training.frameworks.fit import Fit, harmless, warn_fault
from publishers.training.settings import PublisherOptions, control_permissions

try:
    from keras.backend import backend
    from keras.callbacks import Callback
except ImportError:  # for whoever only reads or checks this package
    Callback = object


class KerasCallback(Callback):  # type: ignore[misc]  # it is not installed where types are checked
    """Publishes the steps of each `fit()`, with their total, epochs, validations and end.

    On most backends Keras waits for a step's results, and calls `on_train_batch_end`, in threads of its own, once for
    `steps_per_execution` steps. With another callback that is not `async_safe` it does not.

    Args:
        options: who publishes, and where to: as for `publish_iterations`.
    """

    async_safe = True
    """Else Keras would wait for each step's results before it begins the next."""

    def __init__(self, **options: Unpack[PublisherOptions]) -> None:
        super().__init__()
        self._options: Final = options
        self._fit: Final = Fit(options)
        if any(control_permissions(options)):
            self.async_safe = False  # it waits, and stops, in the training's own thread
        self._lock: Final = threading.Lock()
        self._is_first_epoch = False
        self._n_steps: int | None = None
        self._begun = -1  # the number of the first step of the last call of the compiled function
        self._n_ended = self._n_before = 0
        self._is_single = self._is_quick = self._is_pause_due = False
        self._recorder = self._fit.recorder

    @harmless
    def on_train_begin(self, logs: object = None) -> None:  # noqa: ARG002 — the framework's signature
        """Expect the first epoch, whose number says where a training is resumed."""
        self._is_first_epoch = True

    @harmless
    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:  # noqa: ARG002 — the framework's signature
        """Begin an epoch; the first one begins a run."""
        if self._is_first_epoch:
            self._is_first_epoch = False
            rank, world_size = _process()
            # The parameters are made anew for each fit, and are the same for all its callbacks.
            self._fit.begin(self.params, rank=rank, world_size=world_size, first_epoch=epoch, stop=self._stop)
        n_epochs, self._n_steps = self.params.get("epochs"), self.params.get("steps")
        with self._lock:
            self._is_single = self._is_quick = getattr(self.model, "steps_per_execution", None) == 1
            self._recorder = self._fit.recorder
            self._begun, self._n_ended, self._n_before = -1, 0, self._recorder.n_ended
            self._is_pause_due = False
        self._fit.begin_epoch(None if n_epochs is None else n_epochs - epoch - 1, self._n_steps)

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:  # noqa: ARG002 — the framework's signature
        """Begin an iteration after a pause: Keras is about to fetch its batch."""
        self._begun = batch
        if not self._fit.is_in_step:
            self._begin_step()

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:  # noqa: ARG002 — the framework's signature
        """End the iterations up to this one."""
        try:
            if self._is_quick:
                for _ in self._recorder.marking:  # the hot path
                    return
            self._end_steps(batch)
        except Exception as error:  # noqa: BLE001 — training goes on whatever it is
            warn_fault("on_train_batch_end", error)

    def _stop(self) -> None:
        self.model.stop_training = True

    def _end_steps(self, batch: int) -> None:
        """End the iterations up to this one; of steps executed at once the last numbers may be of none."""
        n_ended = batch + 1 if self._n_steps is None or batch < self._n_steps else self._n_steps
        with self._lock:
            if self._is_single:  # each call is one step, in whatever order they come
                self._fit.end_step()
            elif n_ended > self._n_ended:
                self._fit.end_steps(n_ended - self._n_ended)
                self._n_ended = n_ended
            if self._is_pause_due and self._has_ended:
                self._is_pause_due, self._is_quick = False, self._is_single
                self._fit.pause()

    @property
    def _has_ended(self) -> bool:
        """Return whether all steps that were begun in this epoch have ended."""
        n_ended = self._recorder.n_ended - self._n_before if self._is_single else self._n_ended
        return n_ended > self._begun

    @harmless
    def _begin_step(self) -> None:
        self._fit.begin_step()

    @harmless
    def on_test_begin(self, logs: object = None) -> None:  # noqa: ARG002 — the framework's signature
        """Leave out a validation, once the steps before it have ended."""
        self._is_quick = False  # the calls that are still to come look at what is due
        with self._lock:
            self._is_pause_due = not self._has_ended
            if not self._is_pause_due:
                self._is_quick = self._is_single
                self._fit.pause()

    @harmless
    def on_epoch_end(self, epoch: int, logs: object = None) -> None:  # noqa: ARG002 — the framework's signature
        """End the epoch; its last steps have ended, too."""
        self._fit.end_epoch()
        self._fit.log_live()

    @harmless
    def on_train_end(self, logs: object = None) -> None:  # noqa: ARG002 — the framework's signature
        """End the run."""
        self._fit.end()

    def __reduce__(self) -> tuple[Any, tuple[type[Self], PublisherOptions]]:
        """Copy and pickle the options alone."""
        return _new_callback, (type(self), self._options)


def _new_callback(kind: type[KerasCallback], options: PublisherOptions) -> KerasCallback:
    return kind(**options)


def _process() -> tuple[int | None, int | None]:
    """Return the number of this process and how many there are, where JAX has started several; else nothing."""
    if backend() != "jax":
        return None, None
    n_processes = sys.modules["jax"].process_count()
    return (sys.modules["jax"].process_index(), n_processes) if n_processes > 1 else (None, None)
