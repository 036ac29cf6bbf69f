"""The callback of Lightning, for the packages `lightning` and `pytorch_lightning`.

Both find it by its entry point: where `GRIDCHASE_JOB` names a job, each trainer has it without a line in the script.
Else:

from gridchase import LightningCallback
Trainer(…, callbacks=[LightningCallback(job="resnet50")])
"""

import contextlib
import functools
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, Unpack

from publishers.training.frameworks.fit import Fit, harmless, warn_fault
from publishers.training.iterations.data_loader import batch_size_of
from publishers.training.settings import PublisherOptions

Trainer = Any
"""A trainer of either package; neither is needed to import this module."""
_PACKAGES: Final = ("lightning.pytorch", "pytorch_lightning")


class FitHooks:
    """The hooks of a callback for either package.

    Args:
        options: who publishes, and where to: as for `publish_iterations`; the batch size is the trainer's.
    """

    package: str | None
    """To find the class again in a copy."""

    def __init__(self, **options: Unpack[PublisherOptions]) -> None:
        self._options: Final = options
        self._fit: Final = Fit(options)
        self._read_n_steps: Callable[[], int] = int
        self._n_steps = 0

    @harmless
    def on_train_start(self, trainer: Trainer, *_: object) -> None:
        """Begin a run; of a resumed training with what is left of it. The sanity check is over."""
        self._read_n_steps = _step_reader(trainer)
        self._n_steps = self._read_n_steps()
        batch_size = batch_size_of(trainer.train_dataloader)
        self._fit.begin(
            trainer,
            batch_size=None if batch_size is None else batch_size * trainer.accumulate_grad_batches,
            total_iterations=_n_steps_left(trainer),
            first_epoch=trainer.current_epoch,
        )

    def on_train_batch_start(self, *_: object) -> None:
        """Begin an iteration after a pause: its first batch is there."""
        try:
            self._fit.begin_step()
        except Exception as error:  # noqa: BLE001 — training goes on whatever it is
            warn_fault("on_train_batch_start", error)

    def on_train_batch_end(self, *_: object) -> None:
        """End an iteration where the batch ended with an optimizer step: gradients may be accumulated."""
        try:
            self._end_step()
        except Exception as error:  # noqa: BLE001 — training goes on whatever it is
            warn_fault("on_train_batch_end", error)

    @harmless
    def on_validation_start(self, *_: object) -> None:
        """Leave out a validation."""
        self._end_step()
        self._fit.pause()

    @harmless
    def on_save_checkpoint(self, *_: object) -> None:
        """Leave out a checkpoint; another callback may write it before we hear that the batch has ended."""
        self._end_step()
        self._fit.pause()

    @harmless
    def on_train_epoch_end(self, *_: object) -> None:
        """End the epoch."""
        self._end_step()
        self._fit.end_epoch()

    def _end_step(self) -> None:
        n_steps = self._read_n_steps()
        if n_steps != self._n_steps:
            self._n_steps = n_steps
            self._fit.end_step()

    @harmless
    def on_train_end(self, *_: object) -> None:
        """End the run."""
        self._fit.end()

    @harmless
    def on_exception(
        self,
        trainer: Trainer,  # noqa: ARG002 — the framework's signature
        pl_module: object,  # noqa: ARG002 — the framework's signature
        exception: BaseException,
    ) -> None:
        """End the run with what has broken the training off."""
        self._fit.fail(exception)

    def __reduce__(self) -> tuple[Callable[..., "FitHooks"], tuple[str | None, PublisherOptions]]:
        """Copy and pickle the options alone; the class exists only here."""
        return _new_callback, (self.package, self._options)


def _loaded_package() -> str | None:
    """Return the package that is loaded, else one that can be; None for whoever only reads or checks this one."""
    for package in sorted(_PACKAGES, key=lambda package: package not in sys.modules):
        with contextlib.suppress(ImportError):
            import_module(package)
            return package
    return None


_PACKAGE: Final = _loaded_package()


class LightningCallback(FitHooks, import_module(_PACKAGE).Callback if _PACKAGE else object):  # type: ignore[misc]
    """The callback for trainers of `lightning.pytorch` or, where only that is loaded, of `pytorch_lightning`.

    Publishes the optimizer steps of each `fit()`, with their total, epochs, validations, checkpoints and end.
    """

    package = _PACKAGE


@functools.cache
def callback_class(package: str) -> type[FitHooks]:
    """Return the callback for the trainers of one package: in a process that has loaded both there are two."""
    if package == _PACKAGE:
        return LightningCallback
    base = import_module(package).Callback
    return type("LightningCallback", (FitHooks, base), {"__doc__": LightningCallback.__doc__, "package": package})


def _new_callback(package: str | None, options: PublisherOptions) -> FitHooks:
    return (callback_class(package) if package else LightningCallback)(**options)


def _step_reader(trainer: Trainer) -> Callable[[], int]:
    """Return what tells how many steps the optimizers have made: `global_step` costs more than all the rest."""
    loop = trainer.fit_loop.epoch_loop
    try:
        automatic = trainer.lightning_module.automatic_optimization
        counts = (
            loop.automatic_optimization.optim_progress.optimizer.step.total
            if automatic
            else loop.manual_optimization.optim_step_progress.total
        )
        return functools.partial(getattr, counts, "completed")
    except AttributeError:  # another version
        return lambda: int(trainer.global_step)


def _n_steps_left(trainer: Trainer) -> float | None:
    """Return how many optimizer steps this fit will make; None where a module optimizes by itself."""
    if not trainer.lightning_module.automatic_optimization:
        return None
    n_steps = trainer.estimated_stepping_batches
    return None if n_steps is None or n_steps < 0 else n_steps - trainer.global_step
