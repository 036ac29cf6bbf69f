"""Between which limits we may write: the GPU's range, the operator's own, and never above the prior limit."""

from controller.config import GpuConfig
from controller.ports import LimitRange


def limit_bounds_w(config: GpuConfig, limits: LimitRange, prior_power_limit_w: float) -> tuple[float, float]:
    """Return the floor and the ceiling of what may be written [W]: never above the prior limit unless allowed.

    The ceiling wins where the operator's floor lies above it.
    """
    ceiling_w = min(limits.max_power_limit_w, config.max_power_limit_w or limits.max_power_limit_w)
    if not config.allow_above_prior:
        ceiling_w = min(ceiling_w, prior_power_limit_w)
    return min(max(limits.min_power_limit_w, config.min_power_limit_w), ceiling_w), ceiling_w
