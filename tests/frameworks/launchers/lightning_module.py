"""What Lightning fits, in a module of its own: processes that are spawned import it."""

from typing import Any

import lightning
import torch


class Module(lightning.LightningModule):  # type: ignore[misc]  # it is not installed where types are checked
    """A net of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: Any, _: int) -> Any:  # noqa: ANN401 — torch is not installed where types are checked
        """Return the loss of a batch."""
        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:  # noqa: ANN401 — as above
        """Return what makes the steps."""
        return torch.optim.SGD(self.parameters(), lr=0.1)
