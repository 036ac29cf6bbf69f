"""Trains with JAX and flax."""

from typing import Any

import numpy as np
import optax
from flax import nnx

from tests.frameworks.trainings.truth import BATCH_SIZE, N_SAMPLES, Truth, arguments


@nnx.jit  # type: ignore[untyped-decorator]
def train_step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:  # noqa: ANN401
    def loss_of(model: Any) -> Any:  # noqa: ANN401
        return optax.l2_loss(model(x)[:, 0], y).mean()

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


def main() -> None:
    options, truth = arguments(), Truth()
    model = nnx.Linear(4, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(1e-3), wrt=nnx.Param)
    numbers = np.random.default_rng(0).permutation(N_SAMPLES).astype("float32").reshape(-1, BATCH_SIZE)
    publisher = None
    if options.callback:
        from gridchase import Publisher  # noqa: PLC0415 — a bare training does not have it

        publisher = Publisher(batch_size=BATCH_SIZE)
    for _ in range(options.epochs) if publisher is None else publisher.epochs(options.epochs):
        for batch in numbers if publisher is None else publisher.iterations(numbers):
            truth.batch(batch.tolist())
            loss = train_step(model, optimizer, np.repeat(batch[:, None] / N_SAMPLES, 4, axis=1), batch / 1_000)
            truth.step()
            if publisher is not None:
                publisher.wait_for(loss)
    truth.write()


if __name__ == "__main__":
    main()
