"""What a training really did, by its own account: batches in their order, and calls of the optimizer's `step`.

The script counts in what it hands to the framework (a dataset, an optimizer, a model), so that nothing of ours takes
part in it.
"""

import argparse
import gc
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

VARIABLE: Final = "TRUTH_FOLDER"
BARE: Final = "bare"
"""Where the accounts of bare trainings are, in that folder."""
N_SAMPLES: Final = 320
N_VALIDATION: Final = 64
BATCH_SIZE: Final = 8
PAUSE_RATIO: Final = 1.5
"""Between two steps more than this many times the median time: there was something else."""


class Truth:
    """The account of one process.

    Args:
        batch_s: how long each batch is worked on, at least [s].
        is_bare: whether it is the account of a training without us, beside which the published one's is held.

    Attributes:
        n_steps: how many steps the optimizer has made.
    """

    def __init__(self, batch_s: float = 0.0, *, is_bare: bool = False) -> None:
        self.n_steps = 0
        self.batch_s = batch_s
        self._is_bare = is_bare
        self._steps_s: list[float] = []
        self._n_batches = 0
        self._digest = hashlib.sha256()

    def batch(self, numbers: Iterable[float]) -> None:
        """Note the numbers of the samples of a batch."""
        self._n_batches += 1
        self._digest.update(repr([int(number) for number in numbers]).encode())

    def step(self) -> None:
        """Note a step."""
        self.n_steps += 1
        self._steps_s.append(time.monotonic())

    @property
    def iteration_time_s(self) -> float | None:
        """Return the mean time from step to step, where nothing was between; None for fewer than three [s]."""
        times_s = [after - before for before, after in pairwise(self._steps_s)]
        return fmean(one for one in times_s if one <= PAUSE_RATIO * median(times_s)) if len(times_s) > 1 else None

    def write(self, rank: int = 0, **more: Any) -> None:  # noqa: ANN401 — whatever JSON has
        """Write the account for the test that has started this training."""
        if self._is_bare:
            ours = [name for name in sys.modules if name.partition(".")[0] in {"gridchase", "publishers"}]
            assert not ours, f"the bare training has loaded {ours}"
        if name := os.environ.get(VARIABLE):
            folder = Path(name, BARE) if self._is_bare else Path(name)
            folder.mkdir(exist_ok=True)
            account = {"rank": rank, "steps": self.n_steps, "batches": self._n_batches, **more}
            account["iteration_time_s"] = self.iteration_time_s
            account["digest"] = self._digest.hexdigest()
            (folder / f"{rank}-{os.getpid()}.json").write_text(json.dumps(account), encoding="utf-8")


def trainings(options: argparse.Namespace) -> Iterator[tuple[argparse.Namespace, Truth]]:
    """Yield the options of each training of this process, and its account.

    A bare training in the processes of the published one costs no second start of all of them.
    """
    if options.bare_first:
        bare = argparse.Namespace(**vars(options) | dict.fromkeys(("wrap", "wrap_after", "callback"), False))
        yield bare, Truth(options.batch_s, is_bare=True)
        gc.collect()  # its threads would be destroyed with the process group
    yield options, Truth(options.batch_s)


def arguments() -> argparse.Namespace:
    """Return what each training can be asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bare-first", action="store_true", help="train without us before, in the same process")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-s", type=float, default=0.0, help="how long each batch takes at least")
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--validation", action="store_true")
    parser.add_argument("--save", type=Path, help="write checkpoints into this folder")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--stop-after", type=int, help="stop after so many steps, as if interrupted")
    parser.add_argument("--fits", type=int, default=1, help="how many trainings, one after another")
    parser.add_argument("--fail", action="store_true", help="raise an error in the second epoch")
    parser.add_argument("--callback", action="store_true", help="pass the callback explicitly")
    parser.add_argument("--package", default="lightning.pytorch")
    parser.add_argument("--steps-per-execution", type=int, default=1)
    parser.add_argument("--iterable", action="store_true", help="train on an iterable dataset")
    parser.add_argument("--tokens", action="store_true", help="let the trainer count tokens")
    parser.add_argument("--wrap", action="store_true", help="wrap the loader")
    parser.add_argument("--wrap-after", action="store_true", help="wrap what the framework has made of the loader")
    return parser.parse_args()
