"""JAX with flax: one line publishes the training; each batch is an iteration, so the loop waits for its loss.

GRIDCHASE_JOB=example python examples/flax_loop.py
"""

import jax
import numpy as np
import optax
from flax import nnx

from gridchase import publish_iterations

EPOCHS = 2


@nnx.jit
def train_step(model: nnx.Module, optimizer: nnx.Optimizer, x: jax.Array, y: jax.Array) -> jax.Array:
    """Make a step, and return the loss."""

    def loss_of(model: nnx.Module) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


def main() -> None:
    """Train on noise, for a few seconds."""
    rng, rngs = np.random.default_rng(0), nnx.Rngs(0)
    model = nnx.Sequential(nnx.Linear(16, 64, rngs=rngs), nnx.relu, nnx.Linear(64, 4, rngs=rngs))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    batches = [(rng.normal(size=(32, 16)), rng.integers(0, 4, 32)) for _ in range(32)]
    batches = publish_iterations(batches, epochs=EPOCHS, batch_size=32)  # the line; job="…" without GRIDCHASE_JOB
    for _ in range(EPOCHS):
        for x, y in batches:
            train_step(model, optimizer, x, y).block_until_ready()
    print(f"{EPOCHS * len(batches)} steps")


if __name__ == "__main__":
    main()
