"""What happens below `gridchase run` when a framework has been imported: its trainings are published, none before.

Each function is called with the module that has just been imported, see `bootstrap/sitecustomize.py`. Lightning finds
its callback by itself.
"""

import functools
from typing import Any

from publishers.training.frameworks import plain_torch
from publishers.training.frameworks.fit import warn_fault


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
        try:
            _add_keras_callback(self)
        except Exception as error:  # noqa: BLE001 — training goes on whatever it is
            warn_fault("keras", error)

    callback_list.__init__ = init_with_ours


def _add_keras_callback(callback_list: Any) -> None:  # noqa: ANN401
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
    optimizer_module.register_optimizer_step_pre_hook(plain_torch.before_step)


def torch_loaders_imported(loader_module: Any) -> None:  # noqa: ANN401 — `torch.utils.data.dataloader`
    """Let the passes over a loader be told to whoever publishes the training."""
    loader: Any = loader_module.DataLoader
    begin_pass = loader.__iter__

    @functools.wraps(begin_pass)
    def begin_published_pass(self: Any) -> Any:  # noqa: ANN401
        return iter(self) if plain_torch.takes_loader(self) else begin_pass(self)

    loader.__iter__ = begin_published_pass
