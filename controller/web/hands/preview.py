"""What an order would do to a run, by what the bus says of it: its curve, its books, its plan."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from controller.ports.orders import PinPreview
from controller.web.live.site_state import RunState, SiteState
from controller.web.pages.gpus import gpu_views
from publishers.messages.reports import ProfileEntry, RunEnergy
from publishers.messages.topics import RunKey

SAME_W: Final = 1.0
"""Limits that differ by less are one."""
_90_OF_95: Final = 1.645 / 1.960
"""The half-width of a 90 % interval, of a 95 % one."""


def preview_pin(
    run: RunState, *, power_limit_w: float, duration_s: float, min_power_limit_w: float = 0.0
) -> PinPreview:
    """Return what a pin would do, as far as that is known here; the node may know it better, and clamps again.

    Args:
        run: what was heard of the run; of one on several nodes the power is of the node that decides.
        power_limit_w: the limit of each GPU [W].
        duration_s: for how long [s].
        min_power_limit_w: the lowest limit that its GPUs may have [W].
    """
    record = run.energy
    prior_w = prior_power_limit_w(record) if record is not None else None
    n_gpus = run.profile.n_gpus if run.profile is not None else record.n_gpus if record is not None else 0
    limit_w = max(min(power_limit_w, prior_w or math.inf), min_power_limit_w)
    schedule = run.schedule
    seen = PinPreview(
        power_limit_w=limit_w, n_gpus=n_gpus, max_slowdown_ratio=schedule.max_slowdown_ratio if schedule else None
    )
    curve = known_curve(run)
    point = _point_at(curve, limit_w)
    if point is None or record is None:
        return seen
    slowdown_ratio, half_ratio = _slowdown_after(record, point, curve[-1], duration_s)
    if schedule is not None and schedule.goal_by is not None:
        slowdown_ratio = half_ratio = None  # the budget counts from an order on, the record from the beginning
    return PinPreview(
        power_limit_w=limit_w,
        n_gpus=n_gpus,
        speed_ratio=speed_ratio(point, curve[-1]),
        power_w=point.power_w,
        slowdown_ratio=slowdown_ratio,
        slowdown_ci90_ratio=half_ratio,
        max_slowdown_ratio=seen.max_slowdown_ratio,
    )


def min_power_limit_w(state: SiteState, key: RunKey, now_s: float) -> float:
    """Return the lowest limit that the GPUs of a run may have [W]; 0: not known.

    A GPU says the name of its job alone, which another user's may have, too: those of another model are not the run's.
    """
    record = state.runs[key].energy
    described = [state.description_of(view.key) for view in gpu_views(state, now_s) if view.job == key.job]
    limits_w = [
        each.min_power_limit_w
        for each in described
        if each is not None and record is not None and each.model == record.gpu_model
    ]
    return max((limit_w for limit_w in limits_w if limit_w is not None), default=0.0)


def expected_ends(run: RunState, now_s: float) -> tuple[float, float] | None:
    """Return when a run is expected to end by its plan, and at full speed from now on [Unix s]; None: not known.

    What its plan does after its last hour is taken to be what it does before, on average.
    """
    schedule = run.schedule
    if schedule is None or schedule.expected_end_s is None or not schedule.entries:
        return None
    end_s = max(schedule.expected_end_s, now_s)
    starts_s = [max(entry.starts_s, now_s) for entry in schedule.entries]
    ends_s = [*starts_s[1:], max(schedule.until_s, now_s)]
    spans_s = [max(min(until_s, end_s) - since_s, 0.0) for since_s, until_s in zip(starts_s, ends_s, strict=True)]
    if not sum(spans_s):
        return None
    ratios = [entry.speed_ratio for entry in schedule.entries]
    speed = sum(span_s * ratio for span_s, ratio in zip(spans_s, ratios, strict=True)) / sum(spans_s)
    return end_s, now_s + (end_s - now_s) * speed


def prior_power_limit_w(record: RunEnergy) -> float | None:
    """Return the mean prior limit of the GPUs of a run [W]; None: not known."""
    return record.max_power_w / record.n_gpus if record.max_power_w and record.n_gpus else None


def known_curve(run: RunState) -> list[ProfileEntry]:
    """Return the measured points of a run, the lowest limit first; none where the last is not at the prior limit."""
    if run.profile is None or run.energy is None or not run.profile.points:
        return []
    points = sorted(run.profile.points, key=lambda point: point.power_limit_w)
    prior_w = prior_power_limit_w(run.energy)
    is_whole = prior_w is not None and abs(points[-1].power_limit_w - prior_w) <= SAME_W
    return points if is_whole and points[-1].iterations_per_s > 0 else []


def speed_ratio(point: ProfileEntry, top: ProfileEntry) -> float:
    """Return the speed at a point, as a share of that at the top of the curve."""
    return point.iterations_per_s / top.iterations_per_s


def _point_at(curve: Sequence[ProfileEntry], limit_w: float) -> ProfileEntry | None:
    """Return the curve at a limit [W], on the line between its neighbours; None: beyond what is measured."""
    for point in curve:
        if abs(point.power_limit_w - limit_w) <= SAME_W:
            return point
    for lower, upper in pairwise(curve):
        if lower.power_limit_w <= limit_w <= upper.power_limit_w:
            share = (limit_w - lower.power_limit_w) / (upper.power_limit_w - lower.power_limit_w)
            halves = lower.iterations_per_s_ci, upper.iterations_per_s_ci
            known = [half for half in halves if half is not None]
            return ProfileEntry(
                power_limit_w=limit_w,
                power_w=(1 - share) * lower.power_w + share * upper.power_w,
                iterations_per_s=(1 - share) * lower.iterations_per_s + share * upper.iterations_per_s,
                iterations_per_s_ci=max(known) if len(known) == len(halves) else None,
            )
    return None


def _slowdown_after(
    record: RunEnergy, point: ProfileEntry, top: ProfileEntry, duration_s: float
) -> tuple[float | None, float | None]:
    """Return how many times as long as at full speed a run will have been active after a pin, and the 90 % half-width.

    The work of an active time t at a slowdown s takes t / s at full speed; a pin adds its duration d and the work of
    d times its speed v: (t + d) / (t / s + d v). None: too early to tell.
    """
    so_far, half = record.slowdown_ratio, record.slowdown_ci90_ratio
    halves = [each.iterations_per_s_ci for each in (point, top)]
    if so_far is None or half is None or point.iterations_per_s <= 0 or (point is not top and None in halves):
        return None, None
    active_s, speed = max(record.duration_s - (record.paused_s or 0.0), 0.0), speed_ratio(point, top)
    work_s = active_s / so_far + duration_s * speed
    if work_s <= 0:
        return None, None
    relative = [(each.iterations_per_s_ci or 0.0) / each.iterations_per_s for each in (point, top)]
    of_speed = 0.0 if point is top else _90_OF_95 * speed * math.hypot(*relative)
    after = (active_s + duration_s) / work_s
    error_s = math.hypot(active_s / so_far * half / so_far, duration_s * of_speed)
    return after, after * error_s / work_s
