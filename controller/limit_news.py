"""The news of one GPU's power limit: logged and published when something changed, and only then."""

import logging
from collections.abc import Callable

from controller.clock import Clock
from controller.ports import LimitState, Target
from publishers.reports import LimitChange

MAX_DETAIL = 1_024
QUIET_S = 600.0
"""Limits that follow each other for one reason (a curve that is refined, two that share a period) are an operator's
news once in so long; every one of them is published."""

_LOGGER = logging.getLogger(__name__)


class LimitNews:
    """Tells how the limit of a GPU stands, and why; the same twice is told once."""

    def __init__(self, gpu_uuid: str, *, clock: Clock, publish: Callable[[str, LimitChange], None]) -> None:
        self._gpu_uuid = gpu_uuid
        self._clock = clock
        self._publish = publish
        self._told: tuple[object, ...] = ()
        self._told_w: float | None = None
        self._logged: tuple[str, float] = ("", 0.0)

    def tell(self, reason: str, detail: str, *, state: LimitState | None, target: Target | None) -> None:
        """Publish and log a change; `state` is None before the GPU has answered once."""
        limit_w = state.requested_power_limit_w if state else None
        enforced_w = state.enforced_power_limit_w if state else None
        news = (reason, limit_w, enforced_w, state.hold if state else None)
        if news == self._told:
            return
        previous_w, self._told_w, self._told = self._told_w, limit_w, news
        level = logging.INFO if self._is_due(reason) else logging.DEBUG
        _LOGGER.log(level, "%s: %s W (was %s): %s: %s", self._gpu_uuid, limit_w, previous_w, reason, detail)
        self._publish(
            self._gpu_uuid,
            LimitChange(
                time_s=self._clock.now_s(),
                reason=reason,
                detail=detail[:MAX_DETAIL],
                power_limit_w=limit_w,
                requested_power_limit_w=limit_w,
                enforced_power_limit_w=enforced_w,
                previous_power_limit_w=previous_w,
                job=target.job if target else None,
                signal=target.signal if target else None,
            ),
        )

    def _is_due(self, reason: str) -> bool:
        """Return whether a change is worth a line in an operator's diary."""
        now_s, (last, logged_s) = self._clock.now_s(), self._logged
        if reason == last and logged_s <= now_s < logged_s + QUIET_S:
            return False
        self._logged = reason, now_s
        return True
