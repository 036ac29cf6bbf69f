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
    "max_power_w",
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
    max_power_w: float | None = None,
) -> RunEnergy:
    """Return this node's part of a run's energy; the slowest rank counts the iterations."""
    furthest = max(logs, key=lambda log: (log.n_epochs, log.epochs))
    report = RunEnergy(
        run=status.run,
        state=state,
        reached=status.reached,
        batch_size=status.batch_size,
        gpu_model=gpu_model,
        n_gpus=n_gpus,
        epochs=furthest.epochs,
        epochs_missed=furthest.n_epochs - furthest.epochs,
        iterations=int(min(log.n_iterations for log in logs)),
        currency=currency,
        duration_s=0.0,
        energy_j=0.0,
        max_power_w=max_power_w,
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
    return msgspec.structs.replace(total, saved_ratio=_saved_ratio(total, whole, part))


def _saved_ratio(total: RunEnergy, *parts: RunEnergy) -> float | None:
    """Return what is saved of carbon, else of cost, else of energy; a baseline of cost stands only in the ratios."""
    if total.baseline_carbon_g and total.carbon_g is not None:
        return 1 - total.carbon_g / total.baseline_carbon_g
    if total.cost is not None:
        ratios = [part.saved_ratio for part in parts]
        baseline_cost = sum(
            (part.cost or 0.0) / (1 - ratio)
            for part, ratio in zip(parts, ratios, strict=True)
            if ratio not in {None, 1.0}
        )
        return 1 - total.cost / baseline_cost if None not in ratios and baseline_cost > 0 else None
    return 1 - total.energy_j / total.baseline_energy_j if total.baseline_energy_j else None
