"""The goals that people set for runs: a time budget, or a deadline, in place of the configured objective.

A goal changes what the plan aims at, and nothing else: a pin wins over it, and every rule that keeps a limit from being
set holds. A time budget counts from the moment at which it is set, and so does the configured one when it ends. A goal
ends at its time, with its run, or when a person ends it; it survives a restart of the controller.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from controller.errors import OrderRefusedError
from controller.orders.standing import OrderedRun, StandingOrders
from controller.ports import Goal, GoalPreview, GoalState, moment
from controller.runtime.clock import Clock
from publishers.messages.reasons import SHORT_REASONS
from publishers.messages.topics import RunKey

MAX_SLOWDOWN_RATIO: Final = 10.0
"""As in the configuration."""
MAX_AHEAD_S: Final = 366 * 86_400.0
"""No deadline, and no end of a budget, is further away."""


class AimedRun(OrderedRun, Protocol):
    """A run, as its goal sees it."""

    @property
    def goal(self) -> Goal | None:
        """Return the goal that it was last decided by; None: the configured one."""

    @property
    def has_planned(self) -> bool:
        """Return whether its curve is known, so that there is a plan."""

    def preview_goal(self, goal: Goal) -> GoalPreview:
        """Return what its plan would do with another goal."""


def goal_fault(
    max_slowdown_ratio: float | None, deadline_s: float | None, until_s: float | None, *, now_s: float
) -> tuple[str, str] | None:
    """Return what is wrong with a goal in itself; None: nothing.

    >>> goal_fault(1.08, None, None, now_s=0.0)
    >>> goal_fault(0.9, None, None, now_s=0.0)[0], goal_fault(None, -1.0, None, now_s=0.0)[0]
    ('bad_goal', 'bad_time')
    """
    if (max_slowdown_ratio is None) == (deadline_s is None):
        return "bad_goal", "a goal is a max_slowdown_ratio or a deadline_s: name one of them"
    if max_slowdown_ratio is not None and not 1 <= max_slowdown_ratio <= MAX_SLOWDOWN_RATIO:
        rule = f"must be from 1 (never slower) to {MAX_SLOWDOWN_RATIO:g}"
        return "bad_goal", f"max_slowdown_ratio = {max_slowdown_ratio:g}: {rule}"
    if deadline_s is not None and until_s is not None:
        return "bad_goal", "a deadline holds until the run ends: it takes no until_s"
    for name, time_s in (("deadline_s", deadline_s), ("until_s", until_s)):
        if time_s is not None and not 0 < time_s - now_s <= MAX_AHEAD_S:
            which = "has passed" if time_s <= now_s else f"is {(time_s - now_s) / 86_400:.3g} days ahead"
            return "bad_time", f"{name} = {time_s:.0f} {which}: it is within {MAX_AHEAD_S / 86_400:g} days"
    return None


def sentence_of_goal(goal: Goal, seen: GoalPreview) -> str:
    """Return what a goal will do, in words.

    >>> goal = Goal(max_slowdown_ratio=1.08, set_at_s=0.0, why="x", by="ada")
    >>> seen = GoalPreview(power_limit_w=240.0, planned_power_limit_w=205.0, speed_ratio=0.93)
    >>> sentence_of_goal(goal, seen)
    'with a time budget of 8 % from now on its limit goes from 240 to 205 W, to 93.0 % of full speed'
    >>> sentence_of_goal(goal, GoalPreview())
    'with a time budget of 8 % from now on: it has no curve yet, so that nothing is known of its limit'
    """
    words = f"with {goal.words}" + (" from now on" if goal.max_slowdown_ratio is not None else "")
    if seen.planned_power_limit_w is None or seen.speed_ratio is None:
        return f"{words}: it has no curve yet, so that nothing is known of its limit"
    change = f"goes from {seen.power_limit_w:g} to" if seen.power_limit_w is not None else "will be"
    second = "" if seen.second_power_limit_w is None else f" and {seen.second_power_limit_w:g}"
    limits = f"{seen.planned_power_limit_w:g}{second} W"
    told = f"{words} its limit {change} {limits}, to {100 * seen.speed_ratio:.1f} % of full speed"
    if seen.planned_reason in SHORT_REASONS:
        told += f" ({SHORT_REASONS[seen.planned_reason]})"
    if seen.planned_end_s is not None:
        before = "" if seen.expected_end_s is None else f" instead of {moment(seen.expected_end_s)}"
        told += f"; it is expected to end at {moment(seen.planned_end_s)}{before}"
    if seen.planned_slowdown_ratio is not None and seen.planned_slowdown_ci90_ratio is not None:
        ends = [100 * (seen.planned_slowdown_ratio - 1 + sign * seen.planned_slowdown_ci90_ratio) for sign in (-1, 1)]
        told += f", slower by between {ends[0]:.1f} and {ends[1]:.1f} %"
    return told


class RunGoals(StandingOrders[Goal, AimedRun]):
    """The goals of the runs of this node.

    Args:
        state_dir: where the file of the goals is, or will be made.
        clock: the time.
    """

    def __init__(self, state_dir: Path, *, clock: Clock) -> None:
        super().__init__(state_dir, kind=Goal, name="goals", clock=clock)

    def aim(
        self,
        key: RunKey,
        *,
        max_slowdown_ratio: float | None = None,
        deadline_s: float | None = None,
        until_s: float | None = None,
        why: str,
        by: str,
    ) -> GoalState:
        """Have the plan of a run keep to a time budget or a deadline, instead of a goal that it may have.

        Args:
            key: the run.
            max_slowdown_ratio: how many times as long as at full speed it may be active from now on.
            deadline_s: by when it is to end [Unix s].
            until_s: when a time budget ends [Unix s]; None: with the run.
            why: for the people who wait for the run.
            by: who asks.

        Raises:
            OrderRefusedError: its goal cannot be set, or not so.
        """
        goal, _ = self._checked(key, max_slowdown_ratio, deadline_s, until_s, why=why, by=by)
        self._put(key, goal)
        return self.state_of(key)

    def preview(
        self,
        key: RunKey,
        *,
        max_slowdown_ratio: float | None = None,
        deadline_s: float | None = None,
        until_s: float | None = None,
    ) -> GoalPreview:
        """Return what a goal would do; nothing is changed.

        Raises:
            OrderRefusedError: it would be refused.
        """
        goal, run = self._checked(key, max_slowdown_ratio, deadline_s, until_s)
        seen = run.preview_goal(goal)
        return replace(seen, sentence=sentence_of_goal(goal, seen))

    def reset(self, key: RunKey, *, why: str, by: str) -> GoalState:
        """End the goal of a run, if it has one: the configured one holds again.

        Raises:
            OrderRefusedError: there is no such run.
        """
        self._running(key)
        self._release(key, why=why, by=by)
        return self.state_of(key)

    def goal_of(self, key: RunKey) -> Goal | None:
        """Return the goal of a run that is in force now; None: the configured one."""
        held = self._in_force(key)
        return None if held is None else held.order

    def state_of(self, key: RunKey) -> GoalState:
        """Return what is known of the goal of a run.

        Raises:
            OrderRefusedError: there is no such run.
        """
        run, held = self._running(key), self._in_force(key)
        if held is None:
            return GoalState(state="none", ended_because=self._ended.get(key) or "")
        goal, gpus, reason = held.order, run.gpus, run.limit_reason
        state = GoalState(
            state="asked",
            max_slowdown_ratio=goal.max_slowdown_ratio,
            deadline_s=goal.deadline_s,
            set_at_s=goal.set_at_s,
            until_s=goal.until_s,
            why=goal.why,
            by=goal.by,
        )
        if gpus.requested is not None and gpus.requested.reason == "pinned":
            return replace(state, state="waiting", detail=f"{gpus.requested.detail}: it counts after that")
        if run.goal == goal and reason is not None and reason.reason == "not_profiled":
            return replace(state, state="failed", detail=reason.detail)
        if run.goal == goal and not run.has_planned:
            return replace(state, state="waiting", detail="its curve is not measured yet: it counts from then on")
        in_force = gpus.in_force() if gpus.is_in_force(self._clock.monotonic_ns()) else None
        if run.goal == goal and in_force is not None:
            return replace(state, state="done", enforced_power_limit_w=in_force[0])
        fault = gpus.why_not_ours() or (reason if gpus.requested is None else None)
        has_failed = fault is not None or self._is_late(held)
        detail = "" if fault is None else fault.detail
        return replace(state, state="failed" if has_failed else "asked", detail=detail)

    def _checked(
        self,
        key: RunKey,
        max_slowdown_ratio: float | None,
        deadline_s: float | None,
        until_s: float | None,
        *,
        why: str = "",
        by: str = "",
    ) -> tuple[Goal, AimedRun]:
        """Return a goal that can be set, and its run.

        Raises:
            OrderRefusedError: it cannot.
        """
        run, now_s = self._running(key), self._clock.now_s()
        fault = goal_fault(max_slowdown_ratio, deadline_s, until_s, now_s=now_s) or run.order_fault
        if fault is not None:
            raise OrderRefusedError(*fault)
        goal = Goal(
            max_slowdown_ratio=max_slowdown_ratio,
            deadline_s=deadline_s,
            set_at_s=now_s,
            until_s=until_s,
            why=why,
            by=by,
        )
        return goal, run
