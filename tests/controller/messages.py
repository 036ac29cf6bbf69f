"""Messages of training processes, with values that a test does not care about filled in."""

from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

from controller.runtime.clock import NS_PER_S
from publishers.messages.reports import RunEnergy
from publishers.messages.training import Iterations, RankStatus, pack_ends, pack_work
from tests.fakes import MIDNIGHT_S

BOOT_ID = "this-boot"
_STATUS = RankStatus(
    run="run-1",
    state="running",
    host="node-a",
    boot_id=BOOT_ID,
    pid=4_711,
    gpus=["GPU-fake-0"],
    world_size=1,
    started_at_s=MIDNIGHT_S,
    heartbeat_s=10.0,
    batch_size=256,
)
_ENERGY = RunEnergy(
    run="run-1",
    state="running",
    gpu_model="Fake 300",
    n_gpus=1,
    iterations=10,
    epochs=1,
    duration_s=20.0,
    energy_j=5_000.0,
)


def rank_status(**changes: Any) -> RankStatus:  # noqa: ANN401 — the record checks them
    """Return the status of a training process."""
    return msgspec.structs.replace(_STATUS, **changes)


def run_energy(**changes: Any) -> RunEnergy:  # noqa: ANN401 — the record checks them
    """Return the energy of a run."""
    return msgspec.structs.replace(_ENERGY, **changes)


def iterations(
    begin_s: float,
    ends_s: Sequence[float],
    *,
    seq: int = 0,
    first: int = 0,
    run: str = "run-1",
    epoch: int = 0,
    requests_s: Sequence[float] | None = None,
    work: Sequence[float] | None = None,
) -> Iterations:
    """Return a message of consecutive iterations, at seconds of the monotonic clock: with `requests_s`, of steps."""
    return Iterations(
        counted_by="loader" if requests_s is None else "optimizer",
        request_ns=pack_ends(array("q", map(ns, requests_s or ()))),
        run=run,
        seq=seq,
        first=first,
        begin_ns=ns(begin_s),
        end_ns=pack_ends(array("q", [ns(end_s) for end_s in ends_s])),
        epoch=epoch,
        dropped=0,
        work=b"" if work is None else pack_work(array("d", work)),
    )


def ns(time_s: float) -> int:
    """Return nanoseconds."""
    return round(time_s * NS_PER_S)
