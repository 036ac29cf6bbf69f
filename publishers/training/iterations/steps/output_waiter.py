"""Ends iterations when the output of their step has been computed: for JAX, whose loop runs ahead of the device.

A thread of its own waits for each output in turn, and takes the time. The training's thread has marked the iteration
before, by a number in the place of a time, so that it alone writes marks.
"""

import sys
import threading
from queue import Empty, SimpleQueue
from typing import Any, Final

from publishers.training.coerce import to_text, warn_once
from publishers.training.iterations.recorder import Recorder

MAX_WAITING: Final = 1_024
"""Outputs that are waited for at once; they stay in memory meanwhile."""
_IDLE_S: Final = 1.0


class OutputWaiter:
    """Waits for the outputs of the steps of one training; its thread ends with the recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._outputs: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        self._n_put = 0
        self._thread: threading.Thread | None = None

    def put(self, output: object, work: float | None = None) -> None:
        """End the present iteration, with this work, when an output is there; returns at once.

        Where too many are waited for, the iteration ends together with the last one of these.
        """
        if self._recorder.is_closed:
            return
        if self._outputs.qsize() < MAX_WAITING:
            self._n_put += 1
            self._outputs.put((self._n_put, output))
        self._recorder.add_awaited_step(self._n_put, work)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gridchase-waiter", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        recorder = self._recorder
        while True:
            try:
                number, output = self._outputs.get(timeout=_IDLE_S)
            except Empty:
                if recorder.is_closed:
                    return
                continue
            wait_until_ready(output)
            output = None  # it must not stay in memory until the next one comes
            recorder.end_awaited_step(number)


def wait_until_ready(output: object) -> None:
    """Wait until an array, or each array in a tree of them, has been computed; never raises."""
    try:
        wait: Any = getattr(output, "block_until_ready", None)
        if wait is not None:
            wait()
        elif (jax := sys.modules.get("jax")) is not None:
            jax.block_until_ready(output)
    except Exception as error:  # noqa: BLE001 — training goes on; if its step has failed, it will hear of that itself
        warn_once(
            f"wait_for cannot wait for the output of a step: {type(error).__name__}: {to_text(error, 200)}: "
            "pass the loss, and no array that is donated to the next step"
        )
