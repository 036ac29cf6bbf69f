"""What is published of a run: its curve, and its energy on this node and over all nodes."""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Literal

import msgspec

from controller.run_log import RankLog
from policies.profile import PowerProfile
from publishers.reports import ProfileEntry, ProfileReport, RunEnergy
from publishers.wire import RankStatus

SUMMED = (
    "n_gpus",
    "energy_j",
    "carbon_g",
    "cost",
    "baseline_energy_j",
    "baseline_carbon_g",
)
"""What adds up over nodes; everything else the leader knows for all."""


def profile_report(
    profile: PowerProfile | None,
    *,
    state: Literal["waiting", "profiling", "planned", "observing"],
    gpu_model: str,
    n_gpus: int,
    batch_size: int | None,
) -> ProfileReport:
    """Return the curve as far as it is measured."""
    return ProfileReport(
        state=state,
        gpu_model=gpu_model,
        n_gpus=n_gpus,
        batch_size=batch_size,
        points=[
            ProfileEntry(
                power_limit_w=point.power_limit_w,
                power_w=point.power_w,
                iterations_per_s=point.iterations_per_s,
                power_ci_w=point.power_ci_w,
                iterations_per_s_ci=point.iterations_per_s_ci,
                n=point.n,
            )
            for point in (profile.points if profile else ())
        ],
    )


def energy_report(
    status: RankStatus,
    logs: Sequence[RankLog],
    totals: Mapping[str, float | None],
    *,
    state: Literal["running", "finished", "lost", "silent"],
    gpu_model: str,
    n_gpus: int,
    currency: str | None,
    final: bool,
) -> RunEnergy:
    """Return this node's part of a run's energy; the slowest rank counts the iterations."""
    report = RunEnergy(
        run=status.run,
        state=state,
        reached=status.reached,
        batch_size=status.batch_size,
        gpu_model=gpu_model,
        n_gpus=n_gpus,
        epochs=max(log.epochs for log in logs),
        iterations=int(min(log.n_iterations for log in logs)),
        currency=currency,
        duration_s=0.0,
        energy_j=0.0,
        final=final,
    )
    return msgspec.structs.replace(report, **totals)


def joined(own: RunEnergy, others: Iterable[RunEnergy]) -> RunEnergy:
    """Return the energy of the whole run: the leader's part and those of the other nodes."""
    return reduce(_plus, others, own)


def _plus(whole: RunEnergy, part: RunEnergy) -> RunEnergy:
    sums: dict[str, float | None] = {}
    for name in SUMMED:
        a, b = getattr(whole, name), getattr(part, name)
        sums[name] = None if a is None or b is None else a + b
    total = msgspec.structs.replace(whole, **sums)
    saved, baseline = (
        (total.carbon_g, total.baseline_carbon_g)
        if total.baseline_carbon_g
        else (total.energy_j, total.baseline_energy_j)
    )
    ratio = None if saved is None or not baseline else 1 - saved / baseline
    return msgspec.structs.replace(total, saved_ratio=ratio)
