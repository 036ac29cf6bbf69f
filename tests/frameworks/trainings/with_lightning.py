"""Trains with Lightning: `lightning.pytorch`, or `pytorch_lightning`."""

import tempfile
from importlib import import_module
from typing import Any

import torch
from torch.utils.data import DataLoader

from tests.frameworks.trainings.torch_parts import CountingSGD, Net, Numbers
from tests.frameworks.trainings.truth import BATCH_SIZE, N_SAMPLES, N_VALIDATION, Truth, arguments

OPTIONS = arguments()
pl: Any = import_module(OPTIONS.package)


class Module(pl.LightningModule):  # type: ignore[misc]  # of either package
    """The net, and how it is trained."""

    def __init__(self, truth: Truth) -> None:
        super().__init__()
        self.net = Net(truth)
        self._truth = truth

    def training_step(self, batch: dict[str, Any], _: int) -> torch.Tensor:
        if OPTIONS.fail and self.current_epoch == 1:
            raise SystemError("the training is broken")
        return self.net(**batch)["loss"]

    def validation_step(self, batch: dict[str, Any], _: int) -> None:
        self.net(**batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return CountingSGD(self.parameters(), self._truth)


class Interruption(pl.Callback):  # type: ignore[misc]  # of either package
    """Stops as the test asks."""

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:  # noqa: ANN401, ARG002
        if trainer.global_step == OPTIONS.stop_after:
            trainer.save_checkpoint(OPTIONS.save / "last.ckpt")
            trainer.should_stop = True


def main() -> None:
    truth, callbacks = Truth(OPTIONS.batch_s), [Interruption()]
    if OPTIONS.callback:
        from gridchase import LightningCallback  # noqa: PLC0415 — a bare training does not have it

        callbacks.append(LightningCallback())
    rank = 0
    for _ in range(OPTIONS.fits):
        pl.seed_everything(0, verbose=False)
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=OPTIONS.devices,
            strategy="ddp" if OPTIONS.devices > 1 else "auto",
            max_epochs=OPTIONS.epochs,
            accumulate_grad_batches=OPTIONS.accumulation,
            limit_val_batches=1.0 if OPTIONS.validation else 0,
            default_root_dir=tempfile.mkdtemp(),
            enable_checkpointing=bool(OPTIONS.save),
            enable_progress_bar=False,
            enable_model_summary=False,
            logger=False,
            callbacks=callbacks,
        )
        loader = DataLoader(Numbers(N_SAMPLES), BATCH_SIZE, shuffle=True)
        if OPTIONS.wrap:
            from gridchase import publish_iterations  # noqa: PLC0415 — a bare training does not have it

            loader = publish_iterations(loader)
        trainer.fit(
            Module(truth),
            loader,
            DataLoader(Numbers(N_VALIDATION), BATCH_SIZE),
            ckpt_path=OPTIONS.save / "last.ckpt" if OPTIONS.resume else None,
        )
        rank = trainer.global_rank
    truth.write(rank)


if __name__ == "__main__":
    main()
