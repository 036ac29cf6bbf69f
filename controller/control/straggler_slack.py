"""Lowers the limit of GPUs that wait for a slower one of the same run.

Slack depends on the limit of the run, and plans alternate between a few limits; so this keeps one state of
`policies.planning.slack.straggler`, which decides, for each of the latest limits.
"""

from collections import OrderedDict

from controller.accounting.meter_intervals import MeterInterval
from controller.control.gpu_group import GpuGroup
from controller.ports import Target
from controller.runtime.clock import NS_PER_S
from policies.planning.slack.straggler import (
    SlackState,
    StragglerRules,
    advance_slack,
    begin_slack,
    interrupted,
    limit_reductions,
    resumed,
)

MAX_LIMITS = 8
MAX_GAP_S = 1_800.0
"""Away from a limit for longer, as when the plan follows the grid, a measurement is not resumed."""
SAME_RATIO = 0.02
"""Limits of the run that differ by less are one: the share by which a GPU is lowered is the same."""


class StragglerSlack:
    """The slack of a run on this node: which of its GPUs have a lower limit than the run."""

    def __init__(self, gpus: GpuGroup, *, settle_s: float) -> None:
        self._gpus = gpus
        self._settle_s = settle_s
        self._uuids: tuple[str, ...] = ()
        self._known: OrderedDict[float, SlackState] = OrderedDict()
        self._present_w: float | None = None
        self._is_requested = False
        self._latest_ns = 0
        self._left_ns: dict[float, int] = {}
        """When the latest interval ended, of all and at each limit [ns]."""

    def reductions(self, target: Target, *, is_steady: bool) -> dict[str, float]:
        """Return by what share the limit of each GPU is to be below the run's now; empty while a limit is measured.

        Args:
            target: the limit of the run.
            is_steady: whether that comes from the plan, and is not just being measured.
        """
        if not is_steady:
            self.pause()
            return {}
        if self._uuids != (uuids := tuple(sorted(self._gpus.uuids))):
            self._uuids, self._present_w = uuids, None
            self._known.clear()
            self._left_ns.clear()
        self._enter(target.power_limit_w)
        self._is_requested = True
        return dict(zip(uuids, limit_reductions(self._rules(target.power_limit_w), self._slack), strict=True))

    def pause(self) -> None:
        """Stop for now: something else decides on the limits."""
        self._present_w = None

    def observe(self, interval: MeterInterval) -> None:
        """Learn from an active interval, if every GPU had the limit requested of it."""
        self._latest_ns = interval.end_ns
        if self._present_w is None or not self._is_requested or not self._gpus.is_in_force(interval.begin_ns):
            return
        self._left_ns[self._present_w] = interval.end_ns
        rules, before = self._rules(self._present_w), self._slack
        self._slack = advance_slack(rules, before, active_s=interval.duration_s, n_iterations=interval.n_iterations)
        self._is_requested = limit_reductions(rules, self._slack) == limit_reductions(rules, before)

    @property
    def _slack(self) -> SlackState:
        assert self._present_w is not None, "a limit has been entered"  # noqa: S101 — an invariant
        return self._known[self._present_w]

    @_slack.setter
    def _slack(self, slack: SlackState) -> None:
        assert self._present_w is not None, "a limit has been entered"  # noqa: S101 — an invariant
        self._known[self._present_w] = slack

    def _enter(self, power_limit_w: float) -> None:
        """Resume what is known at a limit of the run, or begin there."""
        if self._present_w is not None and _is_same(self._present_w, power_limit_w):
            return
        self._present_w = next((w for w in self._known if _is_same(w, power_limit_w)), power_limit_w)
        slack = self._known.pop(self._present_w, None) or begin_slack(len(self._uuids))
        has_aged = self._latest_ns - self._left_ns.pop(self._present_w, self._latest_ns) > MAX_GAP_S * NS_PER_S
        self._known[self._present_w] = interrupted(slack) if has_aged else resumed(slack)
        while len(self._known) > MAX_LIMITS:
            self._left_ns.pop(self._known.popitem(last=False)[0], None)

    def _rules(self, power_limit_w: float) -> StragglerRules:
        """Return the rules at a limit of the run: no GPU is lowered below the highest floor."""
        rules = StragglerRules(settle_s=self._settle_s)
        room_ratio = 1 - self._gpus.bounds_w()[0] / power_limit_w
        return StragglerRules(settle_s=self._settle_s, max_ratio=min(rules.max_ratio, max(room_ratio, 0.0)))


def _is_same(one_w: float, other_w: float) -> bool:
    return abs(one_w / other_w - 1) <= SAME_RATIO
