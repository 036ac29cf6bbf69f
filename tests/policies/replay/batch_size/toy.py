"""A workload small enough to be checked by hand: three batch sizes, two power limits, no randomness but one path."""

from policies.replay.batch_size.workload import Workload

LOW_W, HIGH_W = 100.0, 200.0


def toy(**changes: object) -> Workload:
    """Return a job on which an epoch takes 10, 6 and 5 s at 200 W and twice that at 100 W."""
    times_s = {16: 10.0, 32: 6.0, 64: 5.0}
    fields: dict[str, object] = {
        "name": "toy@gpu",
        "candidates": (16, 32, 64),
        "default": 64,
        "n_samples": 1_000_000,
        "max_epochs": 20,
        "recorded_epochs": {16: (4.0,), 32: (5.0,), 64: (10.0,)},
        "time_per_epoch_s": {
            (size, limit_w): time_s * HIGH_W / limit_w
            for size, time_s in times_s.items()
            for limit_w in (LOW_W, HIGH_W)
        },
        "average_power_w": {(size, limit_w): 0.9 * limit_w for size in times_s for limit_w in (LOW_W, HIGH_W)},
    }
    return Workload(**(fields | changes))  # type: ignore[arg-type]
