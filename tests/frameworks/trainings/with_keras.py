"""Trains with Keras, on the backend that `KERAS_BACKEND` names."""

from typing import Any

import keras
import numpy as np

from tests.frameworks.trainings.truth import BATCH_SIZE, N_SAMPLES, N_VALIDATION, Truth, arguments, trainings


class Batches(keras.utils.PyDataset):  # type: ignore[misc]  # it is not installed where types are checked
    """Samples that carry their number, and a note of the batches that were drawn."""

    def __init__(self, n: int, truth: Truth | None = None) -> None:
        super().__init__()
        self._n, self._truth = n, truth

    def __len__(self) -> int:
        return self._n // BATCH_SIZE

    def __getitem__(self, k: int) -> tuple[Any, Any]:
        numbers = np.arange(k * BATCH_SIZE, (k + 1) * BATCH_SIZE, dtype="float32")
        if self._truth is not None:
            self._truth.batch(numbers.tolist())
        return np.repeat(numbers[:, None] / self._n, 4, axis=1), numbers / 1_000


class Failure(keras.callbacks.Callback):  # type: ignore[misc]  # it is not installed where types are checked
    """Fails in the second epoch."""

    async_safe = True

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:  # noqa: ARG002
        if epoch == 1:
            raise SystemError("the training is broken")


def main() -> None:
    for options, truth in trainings(arguments()):
        train(options, truth)
        truth.write()


def train(options: Any, truth: Truth) -> None:  # noqa: ANN401
    callbacks = [Failure()] if options.fail else []
    if options.callback:
        from gridchase import KerasCallback  # noqa: PLC0415 — a bare training does not have it

        callbacks.append(KerasCallback())
    n_steps = 0
    for _ in range(options.fits):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=options.steps_per_execution)
        model.fit(
            Batches(N_SAMPLES, truth),
            epochs=options.epochs,
            initial_epoch=1 if options.resume else 0,
            validation_data=Batches(N_VALIDATION) if options.validation else None,
            verbose=0,
            callbacks=callbacks,
        )
        n_steps += int(model.optimizer.iterations)
    truth.n_steps = n_steps


if __name__ == "__main__":
    main()
