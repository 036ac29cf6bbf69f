"""What happens below `gridchase run` when a framework has been imported: its trainings are published, none before.

Each function is called with the module that has just been imported, see `bootstrap/sitecustomize.py`. What publishes is
imported when a training begins: workers of data loaders import PyTorch, too. Lightning finds its callback by itself.
"""

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any, Final

from publishers.training.iterations.steps.dynamo import untraced

_PLAIN_TORCH: Final = "publishers.training.frameworks.plain_torch"


def transformers_imported(trainer_module: Any) -> None:  # noqa: ANN401 — `transformers.trainer`
    """Let each `Trainer` have the callback."""
    from publishers.training.frameworks.transformers import TransformersCallback  # noqa: PLC0415 — it is there now

    trainer_module.DEFAULT_CALLBACKS.append(TransformersCallback)


def keras_imported(callback_list_module: Any) -> None:  # noqa: ANN401 — `keras.src.callbacks.callback_list`
    """Let each list of callbacks have ours; it acts in `fit()` alone."""
    callback_list: Any = callback_list_module.CallbackList
    init = callback_list.__init__

    def init_with_ours(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        init(self, *args, **kwargs)
        _add_keras_callback(self)

    callback_list.__init__ = init_with_ours


def _add_keras_callback(callback_list: Any) -> None:  # noqa: ANN401
    from publishers.training.frameworks.fit import warn_fault  # noqa: PLC0415 — see above

    try:
        _add(callback_list)
    except Exception as error:  # noqa: BLE001 — training goes on whatever it is
        warn_fault("keras", error)


def _add(callback_list: Any) -> None:  # noqa: ANN401
    from publishers.training.frameworks.keras import KerasCallback  # noqa: PLC0415 — it is there now

    if any(isinstance(callback, KerasCallback) for callback in callback_list.callbacks):
        return
    ours = KerasCallback()
    callback_list.callbacks.append(ours)
    ours.set_params(callback_list.params)
    if getattr(callback_list, "_model", None) is not None:
        ours.set_model(callback_list.model)


def torch_optimizers_imported(optimizer_module: Any) -> None:  # noqa: ANN401 — `torch.optim.optimizer`
    """Publish a training from its first optimizer step on, unless something else of ours publishes it."""
    known: list[Callable[[], None]] = []

    def before_step(*_: object) -> None:
        if not known:
            known.append(_publish_before_step())
        known[0]()

    optimizer_module.register_optimizer_step_pre_hook(untraced(before_step))


def _publish_before_step() -> Callable[[], None]:
    try:
        from publishers.training.frameworks.plain_torch import before_step  # noqa: PLC0415 — see above
    except Exception as error:  # noqa: BLE001 — it would go through the optimizer into the training
        logging.getLogger("publishers").warning("publishing is off: %s: %s", type(error).__name__, error)
        return _nothing
    return before_step


def _nothing() -> None:
    """Publish nothing."""


def torch_loaders_imported(loader_module: Any) -> None:  # noqa: ANN401 — `torch.utils.data.dataloader`
    """Let the passes over a loader be told to whoever publishes the training."""
    loader: Any = loader_module.DataLoader
    begin_pass = loader.__iter__

    @functools.wraps(begin_pass)
    def begin_published_pass(self: Any) -> Any:  # noqa: ANN401
        plain_torch = sys.modules.get(_PLAIN_TORCH)  # it is there once a training has begun
        return iter(self) if plain_torch is not None and plain_torch.takes_loader(self) else begin_pass(self)

    loader.__iter__ = begin_published_pass
