"""Runs that trained with another batch size than they were given, as when the answer came after their patience ended.

A run counts for the batch size that it trained with. What a rank says is ambiguous where there are several: some count
the samples of a rank, some those of all. So a trial is corrected only where there is no other way to read it.
"""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from policies.service.records import Result, Trial

OTHER: Final = "other_batch_size"
"""The reason of a trial whose run trained with another of its job's batch sizes."""
FOREIGN: Final = "foreign_batch_size"
"""The reason of a trial that was released, since its run trained with a batch size that is none of its job's."""


def is_released(trial: Trial) -> bool:
    """Return whether nothing more is taken of a trial: what its run does is not what the job is about."""
    return trial.reason == FOREIGN and trial.state == "lost"


def trained_with(
    trial: Trial, batch_size: int, *, batch_sizes: Sequence[int], n_ranks: int | None, now_s: float
) -> Trial:
    """Return a trial whose run says the batch size that it trained with; the same object where it is the trial's.

    Another candidate becomes that of the trial, whose cost bound is lifted. Any other number releases the trial of a
    run of one rank; with more, or an unknown number, it is the samples of a rank for all that one can tell.

    Args:
        trial: the trial.
        batch_size: what the run says.
        batch_sizes: the candidates of its job.
        n_ranks: how many ranks train, one a GPU; None: not known.
        now_s: Unix time [s].
    """
    if is_released(trial) or trial.batch_size in {batch_size, batch_size * (n_ranks or 1)}:
        return trial
    if batch_size in batch_sizes:
        return replace(
            trial,
            batch_size=batch_size,
            reason=OTHER,
            detail=f"it was given {trial.batch_size}, and trains with {batch_size}: that counts",
            cost_bound=None,
            bound_eta=None,
            bound_gpu_model=None,
            bound_n_gpus=None,
        )
    if n_ranks != 1:
        return trial
    return replace(
        trial,
        state="lost",
        reason=FOREIGN,
        detail=f"it was given {trial.batch_size}, and trains with {batch_size}, none of its job's: it does not count",
        result=Result(),
        timing=None,
        last_epoch=None,
        last_metric=None,
        ended_at_s=now_s if trial.ended_at_s is None else trial.ended_at_s,
    )
