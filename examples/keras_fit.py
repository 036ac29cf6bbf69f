"""Keras 3, on any backend: a callback publishes its training.

GRIDCHASE_JOB=example KERAS_BACKEND=jax python examples/keras_fit.py
"""

import keras
import numpy as np

from gridchase import KerasCallback


def main() -> None:
    """Train on noise, for a few seconds."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(1_024, 16)), rng.integers(0, 4, 1_024)
    model = keras.Sequential(
        [keras.Input((16,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(4, activation="softmax")]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(
        x,
        y,
        batch_size=32,
        epochs=2,
        validation_split=0.125,
        verbose=2,
        callbacks=[KerasCallback()],  # the line; job="…" where GRIDCHASE_JOB is not set
    )
    print(f"{int(model.optimizer.iterations)} steps")


if __name__ == "__main__":
    main()
