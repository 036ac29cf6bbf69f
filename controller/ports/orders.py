"""What people order of runs: the terms of pauses, pins and goals, and the ports through which each is given.

Whoever takes an order (the command, HTTP, the bus, a page) checks it here, and says here what it will do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final, Literal, Protocol

from msgspec import Meta

from publishers.messages.codec import TimeS
from publishers.messages.reasons import SHORT_REASONS
from publishers.messages.topics import RunKey
from publishers.shared.printable import printable

MAX_POWER_W: Final = 1e6
MAX_PIN_S: Final = 7 * 86_400.0
"""No limit is pinned for longer."""
MAX_WHY: Final = 120
"""Characters of a reason."""
MAX_SLOWDOWN_RATIO: Final = 10
"""As in the configuration."""
MAX_AHEAD_S: Final = 366 * 86_400.0
"""No deadline, and no end of a budget, is further away."""
ORDERS_PER_MIN: Final = 10
"""Of one run, or GPU, over the bus: more are not heard."""
MaxSlowdownRatio = Annotated[float, Meta(ge=1, le=MAX_SLOWDOWN_RATIO)]
PinnedW = Annotated[float, Meta(gt=0, le=MAX_POWER_W)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseState:
    """What is known of the pauses of a run.

    Attributes:
        state: `running`, `asked` (it was asked to pause, and has not stopped yet) or `paused`: the training says so.
        pausable: whether it can be paused now.
        max_pause_s: how long the training lets a pause last [s]; None: it is not pausable.
        paused_for_s: for how long it has been paused now [s].
        ends_in_s: when the pause ends, or is withdrawn where it has not begun [s].
        paused_s: for how long it was paused before [s].
        why, by: why it is to pause, and who asks for it.
        ended_because: why the last pause has ended.
    """

    state: Literal["running", "asked", "paused"]
    pausable: bool
    max_pause_s: float | None
    paused_for_s: float | None
    ends_in_s: float | None
    paused_s: float
    why: str
    by: str
    ended_because: str


class Pauses(Protocol):
    """The pauses of the runs of this node, as people ask for them. Calls about one run may raise PauseRefusedError."""

    def runs(self) -> Mapping[RunKey, PauseState]:
        """Return the runs that train on this node now."""

    def pause(self, key: RunKey, *, why: str, by: str, for_s: float | None) -> PauseState:
        """Ask a run to pause, or change until when and why it does."""

    def resume(self, key: RunKey, *, why: str, by: str) -> PauseState:
        """End the pause of a run, if it has one."""

    def state_of(self, key: RunKey) -> PauseState:
        """Return what is known of a run's pauses."""


def moment(time_s: float) -> str:
    """Return a time [Unix s] in words."""
    return f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%d %H:%M} UTC"


class StandingOrder(Protocol):
    """What a person has ordered of a run until a time [Unix s], or until it ends; when, why, and who."""

    @property
    def set_at_s(self) -> float:
        """Return when it was ordered [Unix s]."""

    @property
    def until_s(self) -> float | None:
        """Return when it ends [Unix s]; None: with the run."""

    @property
    def why(self) -> str:
        """Return why."""

    @property
    def by(self) -> str:
        """Return who has ordered it."""

    @property
    def detail(self) -> str:
        """Return all of this in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A power limit at which a person holds all GPUs of a run, or of whichever run has one GPU, whatever its plan says.

    Attributes:
        power_limit_w: what was asked for [W]; no GPU gets more than its prior limit, nor what it does not take. None:
            the run is exempt, and has the prior limit.
        set_at_s: when it was asked for [Unix s].
        until_s: when it ends [Unix s].
        why, by: why, and by whom.
        gpu_uuid: the GPU that it is for, with each run that has it; "": it is for one run.
        by_owner: whether the user whose run it is has asked for it, and no operator: an operator's pin wins over that.
    """

    power_limit_w: PinnedW | None
    set_at_s: TimeS
    until_s: TimeS
    why: Annotated[str, Meta(max_length=MAX_WHY)]
    by: Annotated[str, Meta(max_length=256)]
    gpu_uuid: Annotated[str, Meta(max_length=64)] = ""
    by_owner: bool = False

    @property
    def detail(self) -> str:
        """Return the reason for the limit, a sentence."""
        what = "exempt, at its prior limit," if self.power_limit_w is None else f"pinned to {self.power_limit_w:g} W"
        return f"{what} by {printable(self.by)} until {moment(self.until_s)}: {printable(self.why)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PinState:
    """What is known of the pin of a run.

    Attributes:
        state: `none`; `asked`: it is not confirmed yet; `waiting`: it is for a GPU that no run has now; `done`: all
            GPUs of the run on this node have been read back; `failed`: one cannot be set, or was not read back in time.
        power_limit_w: the limit that was asked for [W]; None: the run is exempt, and has its prior limit.
        applied_power_limit_w: the limit that is set, clamped to what each GPU may have [W].
        enforced_power_limit_w: the least limit that was read back from a GPU [W]; None: not all are confirmed.
        n_gpus: how many GPUs of this node it holds.
        set_at_s, until_s: from when to when [Unix s].
        why, by: why, and by whom.
        gpu_uuid: the GPU that it is for, with each run that has it; "": it is of the run itself.
        detail: why it is not in force, a sentence; "" where it is, and where there is none.
        ended_because: why the last pin has ended.
    """

    state: Literal["none", "asked", "waiting", "done", "failed"]
    power_limit_w: float | None = None
    applied_power_limit_w: float | None = None
    enforced_power_limit_w: float | None = None
    n_gpus: int = 0
    set_at_s: float | None = None
    until_s: float | None = None
    why: str = ""
    by: str = ""
    gpu_uuid: str = ""
    detail: str = ""
    ended_because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinPreview:
    """What a pin will do, before it is set.

    Attributes:
        power_limit_w: the limit that would be set, clamped to what each GPU may have [W]; None: the prior limit of
            whichever run has the GPU then.
        n_gpus: how many GPUs of this node the run has.
        speed_ratio: the speed of the run there, as a share of full speed; None: not known yet.
        power_w: the power of its GPUs of this node there [W]; None: not known yet.
        slowdown_ratio: how many times as long as at full speed the run will have been active at the end of the pin;
            None: not known yet.
        slowdown_ci90_ratio: the half-width of its 90 % interval.
        max_slowdown_ratio: how many times its plan allows; None: its objective is another one.
        sentence: all of this, in words.
    """

    power_limit_w: float | None
    n_gpus: int = 0
    speed_ratio: float | None = None
    power_w: float | None = None
    slowdown_ratio: float | None = None
    slowdown_ci90_ratio: float | None = None
    max_slowdown_ratio: float | None = None
    sentence: str = ""


def pin_fault(power_limit_w: float | None, until_s: float, *, now_s: float) -> tuple[str, str] | None:
    """Return what is wrong with a limit [W] and a time [Unix s] in themselves; None: nothing.

    >>> pin_fault(205.0, 3_600.0, now_s=0.0)
    >>> pin_fault(205.0, 0.0, now_s=3_600.0)[0]
    'bad_time'
    """
    if power_limit_w is not None and not 0 < power_limit_w <= MAX_POWER_W:
        return "bad_limit", f"power_limit_w = {power_limit_w:g}: must be above 0, and {MAX_POWER_W:g} W at most"
    left_s = until_s - now_s
    if not 0 < left_s <= MAX_PIN_S:
        which = "has passed" if left_s <= 0 else f"is {left_s / 86_400:.3g} days ahead"
        return "bad_time", f"until_s = {until_s:.0f} {which}: a pin ends within {MAX_PIN_S / 86_400:g} days"
    return None


def why_fault(why: str) -> tuple[str, str] | None:
    """Return what is wrong with a reason; None: nothing.

    >>> why_fault("the room is hot")
    >>> why_fault(" ")[0]
    'bad_why'
    """
    if not why.strip():
        return "bad_why", "why is missing: say it for the people who wait for this run"
    if len(why) > MAX_WHY:
        return "bad_why", f"why has {len(why)} characters: {MAX_WHY} at most"
    return None if why.isprintable() else ("bad_why", "why has a character that is not printable, as a line break")


def sentence_of_pin(seen: PinPreview) -> str:
    """Return what a pin of a run will do, in words.

    >>> sentence_of_pin(PinPreview(power_limit_w=205.0, n_gpus=2, speed_ratio=0.947, power_w=363.0))
    'at 205 W this run goes at 94.7 % of full speed and its 2 GPUs draw 363 W'
    >>> sentence_of_pin(PinPreview(power_limit_w=205.0, n_gpus=1))
    'at 205 W: how fast this run is there, and what its GPU draws, is not known yet'
    """
    gpus = "its GPU draws" if seen.n_gpus == 1 else f"its {seen.n_gpus} GPUs draw"
    if seen.speed_ratio is None or seen.power_w is None:
        return f"at {seen.power_limit_w:g} W: how fast this run is there, and what {gpus}, is not known yet"
    words = (
        f"at {seen.power_limit_w:g} W this run goes at {100 * seen.speed_ratio:.1f} % of full speed and {gpus}"
        f" {seen.power_w:.0f} W"
    )
    if seen.max_slowdown_ratio is None:
        return words
    if seen.slowdown_ratio is None or seen.slowdown_ci90_ratio is None:
        return f"{words}; what that does to its time budget is not known yet"
    ends = [100 * (seen.slowdown_ratio - 1 + sign * seen.slowdown_ci90_ratio) for sign in (-1, 1)]
    allowed, over = 100 * (seen.max_slowdown_ratio - 1), 100 * (seen.slowdown_ratio - seen.max_slowdown_ratio)
    told = f"{words}; when the pin ends, it will have been slower by between {ends[0]:.1f} and {ends[1]:.1f} %"
    if over > 0:
        return f"{told}, over its budget of {allowed:.1f} % by {over:.1f} points"
    return f"{told}; its budget is {allowed:.1f} %"


PinOwner = RunKey | str
"""What is pinned: a run, or a GPU by its UUID, with each run that has it."""


class Pins(Protocol):
    """The pins of the runs and GPUs of this node, as people ask for them. Each call may raise OrderRefusedError."""

    def gpu_pins(self) -> Mapping[str, PinState]:
        """Return the GPUs that are pinned, by UUID."""

    def pin(
        self,
        owner: PinOwner,
        *,
        power_limit_w: float | None,
        until_s: float,
        why: str,
        by: str,
        by_owner: bool = False,
    ) -> PinState:
        """Hold all GPUs of a run at a limit [W] until a time [Unix s]; None: at the prior limit."""

    def preview(
        self, owner: PinOwner, *, power_limit_w: float | None, until_s: float, by_owner: bool = False
    ) -> PinPreview:
        """Return what a pin would do; nothing is changed."""

    def release(self, owner: PinOwner, *, why: str, by: str, by_owner: bool = False) -> PinState:
        """End a pin, if there is one."""

    def state_of(self, owner: PinOwner) -> PinState:
        """Return what is known of a pin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a person wants of the plan of a run instead of its configured objective: a time budget, or a deadline.

    Attributes:
        max_slowdown_ratio: how many times as long as at full speed the run may be active, counted from `set_at_s`.
        deadline_s: by when it is to end [Unix s]; the other one is None.
        set_at_s: when it was asked for [Unix s].
        until_s: when it ends [Unix s]; None: with the run.
        why, by: why, and by whom.
    """

    max_slowdown_ratio: MaxSlowdownRatio | None = None
    deadline_s: TimeS | None = None
    set_at_s: TimeS
    until_s: TimeS | None = None
    why: Annotated[str, Meta(max_length=MAX_WHY)]
    by: Annotated[str, Meta(max_length=256)]

    @property
    def words(self) -> str:
        """Return what is wanted."""
        if self.max_slowdown_ratio is not None:
            return f"a time budget of {100 * (self.max_slowdown_ratio - 1):.3g} %"
        return f"a deadline at {moment(self.deadline_s or 0.0)}"

    @property
    def detail(self) -> str:
        """Return all of it in a sentence."""
        until = "" if self.until_s is None else f" until {moment(self.until_s)}"
        return f"{self.words} by {printable(self.by)}{until}: {printable(self.why)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalState:
    """What is known of the goal that a person has set for a run.

    Attributes:
        state: `none`: the configured one holds; `asked`: no plan follows it yet; `waiting`: it counts once a pin has
            ended, or the curve is measured; `done`: the plan follows it, and its limit was read back; `failed`: a GPU
            cannot be set, or was not read back in time.
        max_slowdown_ratio, deadline_s, set_at_s, until_s, why, by: as in `Goal`.
        enforced_power_limit_w: the least limit that was read back from a GPU [W]; None: not all are confirmed.
        detail: why it is not in force, a sentence; "" where it is, and where there is none.
        ended_because: why the last one has ended.
    """

    state: Literal["none", "asked", "waiting", "done", "failed"]
    max_slowdown_ratio: float | None = None
    deadline_s: float | None = None
    set_at_s: float | None = None
    until_s: float | None = None
    why: str = ""
    by: str = ""
    enforced_power_limit_w: float | None = None
    detail: str = ""
    ended_because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalPreview:
    """What the plan of a run will do with another goal, before that is set; what is not known yet is None.

    Attributes:
        power_limit_w: the limit that is requested now [W].
        planned_power_limit_w, second_power_limit_w: the first one of the new plan, and another one that shares its time
            [W].
        speed_ratio: the mean speed there, as a share of full speed.
        reason, planned_reason: the reason codes of the limits now, and then.
        expected_end_s, planned_end_s: when the run will have ended, by the plan now, and then [Unix s].
        planned_slowdown_ratio: how many times as long as at full speed it will have been active from now to its end.
            Neither is known where the goal ends before, or begins after a pin.
        planned_slowdown_ci90_ratio: the half-width of its 90 % interval.
        time_limit_s: when its scheduler ends it [Unix s].
        sentence: all of this, in words.
    """

    power_limit_w: float | None = None
    planned_power_limit_w: float | None = None
    second_power_limit_w: float | None = None
    speed_ratio: float | None = None
    reason: str | None = None
    planned_reason: str | None = None
    expected_end_s: float | None = None
    planned_end_s: float | None = None
    planned_slowdown_ratio: float | None = None
    planned_slowdown_ci90_ratio: float | None = None
    time_limit_s: float | None = None
    sentence: str = ""


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
    >>> sentence_of_goal(goal, GoalPreview(reason="pinned", planned_power_limit_w=205.0, speed_ratio=0.93))
    'with a time budget of 8 % from now on its limit will be 205 W, to 93.0 % of full speed, after its pin'
    >>> late = GoalPreview(planned_power_limit_w=205.0, speed_ratio=0.93, planned_end_s=7_200.0, time_limit_s=3_600.0)
    >>> sentence_of_goal(goal, late).partition("; ")[2]
    'it is expected to end at 1970-01-01 02:00 UTC, but its scheduler ends it at 1970-01-01 01:00 UTC'
    >>> sentence_of_goal(goal, GoalPreview())
    'with a time budget of 8 % from now on: it has no curve yet, so that nothing is known of its limit'
    """
    words = f"with {goal.words}" + (" from now on" if goal.max_slowdown_ratio is not None else "")
    if seen.planned_power_limit_w is None or seen.speed_ratio is None:
        return f"{words}: it has no curve yet, so that nothing is known of its limit"
    is_pinned = seen.reason == "pinned"
    change = "will be" if is_pinned or seen.power_limit_w is None else f"goes from {seen.power_limit_w:g} to"
    second = "" if seen.second_power_limit_w is None else f" and {seen.second_power_limit_w:g}"
    limits = f"{seen.planned_power_limit_w:g}{second} W"
    told = f"{words} its limit {change} {limits}, to {100 * seen.speed_ratio:.1f} % of full speed"
    if seen.planned_reason in SHORT_REASONS:
        told += f" ({SHORT_REASONS[seen.planned_reason]})"
    if is_pinned:
        told += ", after its pin"
    if seen.planned_end_s is not None:
        before = "" if seen.expected_end_s is None else f" instead of {moment(seen.expected_end_s)}"
        told += f"; it is expected to end at {moment(seen.planned_end_s)}{before}"
        if seen.time_limit_s is not None and seen.planned_end_s > seen.time_limit_s:
            told += f", but its scheduler ends it at {moment(seen.time_limit_s)}"
    if seen.planned_slowdown_ratio is not None and seen.planned_slowdown_ci90_ratio is not None:
        ends = [100 * (seen.planned_slowdown_ratio - 1 + sign * seen.planned_slowdown_ci90_ratio) for sign in (-1, 1)]
        told += f", slower by between {ends[0]:.1f} and {ends[1]:.1f} %"
    return told


class Goals(Protocol):
    """The goals of the runs of this node, as people set them. Each call may raise OrderRefusedError."""

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
        """Have the plan of a run keep to a time budget or a deadline, instead of a goal that it may have."""

    def preview(
        self,
        key: RunKey,
        *,
        max_slowdown_ratio: float | None = None,
        deadline_s: float | None = None,
        until_s: float | None = None,
    ) -> GoalPreview:
        """Return what that would do; nothing is changed."""

    def reset(self, key: RunKey, *, why: str, by: str) -> GoalState:
        """End a goal, if there is one: the configured one holds again."""

    def state_of(self, key: RunKey) -> GoalState:
        """Return what is known of a goal."""


class GoalSource(Protocol):
    """The goals, as runs see them."""

    def goal_of(self, key: RunKey) -> Goal | None:
        """Return the goal of a run that is in force now; None: the configured one."""

    def on_run_end(self, key: RunKey) -> None:
        """End the goal of a run that has ended."""


class PinSource(Protocol):
    """The pins, as runs see them."""

    def pin_of(self, key: RunKey) -> Pin | None:
        """Return the pin of a run that is in force now; None: its plan decides."""

    def on_run_end(self, key: RunKey) -> None:
        """End the pin of a run that has ended."""
