"""JAX with flax: the loss of each step is handed over, and a thread takes the time at which it has been computed.

GRIDCHASE_JOB=example python examples/flax_loop.py
"""

import jax
import numpy as np
import optax
from flax import nnx

from gridchase import Publisher

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
    publisher = Publisher(total_iterations=EPOCHS * len(batches), batch_size=32)  # job="…" without GRIDCHASE_JOB
    for _ in publisher.epochs(EPOCHS):
        for x, y in publisher.iterations(batches):
            loss = train_step(model, optimizer, x, y)
            publisher.wait_for(loss)  # returns at once
    print(f"{EPOCHS * len(batches)} steps")


if __name__ == "__main__":
    main()
