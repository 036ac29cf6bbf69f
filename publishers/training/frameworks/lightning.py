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
from types import SimpleNamespace
from typing import Any, Final, Unpack

from publishers.training.frameworks.fit import Fit, harmless, warn_fault
from publishers.training.iterations.data_loader import batch_size_of
from publishers.training.settings import PublisherOptions

Trainer = Any
"""A trainer of either package; neither is needed to import this module."""
_PASSED: Final = ("TensorBoardLogger", "AimLogger", "MLFlowLogger")
_PACKAGES: Final = ("lightning.pytorch", "pytorch_lightning")


_NO_STEPS: Final = SimpleNamespace(completed=0)
"""The counter before a fit: the sanity check validates, too."""


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
        self._counter: Any = _NO_STEPS
        self._n_steps = 0
        self._log_every_n_steps = 1

    @harmless
    def on_train_start(self, trainer: Trainer, *_: object) -> None:
        """Begin a run; of a resumed training with what is left of it. The sanity check is over."""
        self._counter = _step_counter(trainer)
        self._n_steps = self._counter.completed
        self._log_every_n_steps = max(1, trainer.log_every_n_steps)
        batch_size = batch_size_of(trainer.train_dataloader)
        self._fit.begin(
            trainer,
            batch_size=None if batch_size is None else batch_size * trainer.accumulate_grad_batches,
            total_iterations=_n_steps_left(trainer),
            first_epoch=trainer.current_epoch,
            stop=lambda: setattr(trainer, "should_stop", True),
        )

    def on_train_batch_start(  # its arguments as the framework has them: that is cheaper than `*_`
        self,
        trainer: Trainer,  # noqa: ARG002
        pl_module: object,  # noqa: ARG002
        batch: object,  # noqa: ARG002
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        """Begin an iteration after a pause: its first batch is there."""
        if not self._fit.is_in_step:
            self._begin_step()

    def on_train_batch_end(  # its arguments as the framework has them: that is cheaper than `*_`
        self,
        trainer: Trainer,
        pl_module: object,  # noqa: ARG002
        outputs: object,  # noqa: ARG002
        batch: object,  # noqa: ARG002
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        """End an iteration where the batch ended with an optimizer step: gradients may be accumulated."""
        try:
            n_steps = self._counter.completed
            if n_steps != self._n_steps:
                self._n_steps = n_steps
                self._fit.end_step()
                if n_steps % self._log_every_n_steps == 0:
                    self._fit.log_live(*_writers(trainer))
        except Exception as error:  # noqa: BLE001 — training goes on whatever it is
            warn_fault("on_train_batch_end", error)

    @harmless
    def on_validation_start(self, trainer: Trainer, *_: object) -> None:
        """Leave out a validation."""
        self._end_step(trainer)
        self._fit.pause()

    @harmless
    def on_save_checkpoint(self, trainer: Trainer, *_: object) -> None:
        """Leave out a checkpoint; another callback may write it before we hear that the batch has ended."""
        self._end_step(trainer)
        self._fit.pause()

    @harmless
    def on_train_epoch_end(self, trainer: Trainer, *_: object) -> None:
        """End the epoch."""
        self._end_step(trainer)
        self._fit.end_epoch()

    @harmless
    def _begin_step(self) -> None:
        self._fit.begin_step()

    def _end_step(self, trainer: Trainer) -> None:
        self.on_train_batch_end(trainer, None, None, None, 0)

    @harmless
    def on_train_end(self, trainer: Trainer, *_: object) -> None:
        """End the run."""
        self._fit.end(*_writers(trainer))

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


def _writers(trainer: Trainer) -> list[object]:
    """Return the loggers that live values are passed to; the runs of other libraries are found."""
    return [logger for logger in trainer.loggers if type(logger).__name__ in _PASSED]


class _GlobalStep:
    """Counts steps as any trainer does."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    @property
    def completed(self) -> int:
        """Return how many steps the optimizers have made."""
        return int(self._trainer.global_step)


def _step_counter(trainer: Trainer) -> Any:  # noqa: ANN401 — the loop's own counter
    """Return what `global_step` reads `completed` of: the way there costs more than all the rest."""
    loop = trainer.fit_loop.epoch_loop
    try:
        if trainer.lightning_module.automatic_optimization:
            counter = loop.automatic_optimization.optim_progress.optimizer.step.total
        else:
            counter = loop.manual_optimization.optim_step_progress.total
        return counter if isinstance(counter.completed, int) else _GlobalStep(trainer)
    except AttributeError:  # another version
        return _GlobalStep(trainer)


def _n_steps_left(trainer: Trainer) -> float | None:
    """Return how many optimizer steps this fit will make; None where a module optimizes by itself."""
    if not trainer.lightning_module.automatic_optimization:
        return None
    n_steps = trainer.estimated_stepping_batches
    return None if n_steps is None or n_steps < 0 else n_steps - trainer.global_step
