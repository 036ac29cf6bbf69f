"""Lightning: its trainers find the callback by themselves where GRIDCHASE_JOB is set, so no line is needed.

GRIDCHASE_JOB=example python examples/lightning_trainer.py
"""

import tempfile

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset


class Classifier(pl.LightningModule):
    """A small classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss."""
        x, y = batch
        return torch.nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        """Validate."""
        x, _ = batch
        self.net(x)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters())


def main() -> None:
    """Train on noise, for a few seconds."""
    samples = TensorDataset(torch.randn(1_024, 16), torch.randint(0, 4, (1_024,)))
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=2, accumulate_grad_batches=2, logger=False, default_root_dir=tempfile.mkdtemp()
    )
    # In place of GRIDCHASE_JOB: pl.Trainer(callbacks=[gridchase.LightningCallback(job="…")])
    trainer.fit(Classifier(), DataLoader(samples, batch_size=32, shuffle=True), DataLoader(samples, batch_size=64))
    print(f"{trainer.global_step} steps")


if __name__ == "__main__":
    main()
