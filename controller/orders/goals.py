"""The goals that people set for runs: a time budget, or a deadline, in place of the configured objective.

A goal changes what the plan aims at, and nothing else: a pin wins over it, and every rule that keeps a limit from being
set holds. A time budget counts from the moment at which it is set, and so does the configured one when it ends. A goal
ends at its time, with its run, or when a person ends it; it survives a restart of the controller.
"""

from dataclasses import replace
from pathlib import Path
from typing import Protocol

from controller.errors import OrderRefusedError
from controller.orders.standing import OrderedRun, StandingOrders
from controller.ports.orders import Goal, GoalPreview, GoalState, goal_fault, sentence_of_goal
from controller.runtime.clock import Clock
from publishers.messages.topics import RunKey


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
