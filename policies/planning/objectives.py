"""What a plan is asked for, what it knows, and what it decides."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowdownObjective:
    """Take at most `max_slowdown` times as long as at the prior limit (1.03 is 3 % slower), at the least Σ c·P."""

    max_slowdown: float

    def __post_init__(self) -> None:
        """Check that the slowdown is one."""
        if not self.max_slowdown >= 1:
            raise ValueError(f"max_slowdown = {self.max_slowdown:g}: must be at least 1 (1 means: never slower)")


@dataclass(frozen=True, slots=True, kw_only=True)
class EtaObjective:
    """Weigh carbon (or energy) by `eta` and time by 1 - eta, as Zeus and Chase do.

    Attributes:
        eta: the weight of energy.
        max_power_w: the papers' MaxPower, which turns time into energy: the sum of the GPUs' highest limits [W]. None
            takes what the job draws there, which weighs time a little less.
    """

    eta: float
    max_power_w: float | None = None

    def __post_init__(self) -> None:
        """Check that eta is a share, and the power one."""
        if not 0 <= self.eta <= 1:
            raise ValueError(f"eta = {self.eta:g}: must be from 0 (only time counts) to 1 (only energy counts)")
        if self.max_power_w is not None and not self.max_power_w > 0:
            raise ValueError(f"max_power_w = {self.max_power_w:g}: must be above 0 W")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineObjective:
    """Be done by a moment [Unix s], at the least Σ c·P; what is left to do is in `Progress`."""

    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetObjective:
    """Be done as soon as a budget of grams, money or (without a signal) kWh allows; what is spent is in `Progress`."""

    budget: float

    def __post_init__(self) -> None:
        """Check that the budget is one."""
        if not self.budget > 0:
            raise ValueError(f"budget = {self.budget:g}: must be above 0")


Objective = SlowdownObjective | EtaObjective | DeadlineObjective | BudgetObjective


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchingRules:
    """How often the plan is made [s], how long a limit stands at least [s], and what share a change must save."""

    period_s: float
    min_dwell_s: float
    min_gain_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The run so far, its profiling included.

    Attributes:
        n_iterations: how many iterations have passed.
        active_s: the time in which they ran [s].
        started_at_s: when the run started [Unix s].
        total_iterations: how many it will have in all, where it said so.
        spent: what its energy has cost so far, in grams or money, or in kWh where there is no signal; None: unknown.
    """

    n_iterations: float
    active_s: float
    started_at_s: float
    total_iterations: float | None = None
    spent: float | None = None

    @property
    def left_iterations(self) -> float | None:
        """Return how many iterations are left, or None where the run did not say, or has more than it said."""
        if self.total_iterations is None or self.total_iterations <= self.n_iterations:
            return None
        return self.total_iterations - self.n_iterations


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentLimit:
    """The limit that we ask for now [W], and since when [Unix s]."""

    power_limit_w: float
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledLimit:
    """The limit of the rest of a period, where one alone would miss the rate.

    Attributes:
        from_s: when it begins [Unix s].
        power_limit_w: the limit to ask for then, one of the profile's [W].
        power_w: what the profile expects at it [W].
        iterations_per_s: the rate that it expects [1/s].
    """

    from_s: float
    power_limit_w: float
    power_w: float
    iterations_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A limit and why.

    Attributes:
        power_limit_w: the limit to ask for, one of the profile's [W].
        reason: a stable code.
        detail: a sentence with the numbers that were used.
        power_w: what the profile expects at it [W].
        iterations_per_s: the rate that it expects [1/s].
        signal_value: the signal now, or None where there is none.
        later: the limit of the rest of the period; None where the first one stands for all of it.
    """

    power_limit_w: float
    reason: str
    detail: str
    power_w: float
    iterations_per_s: float
    signal_value: float | None
    later: ScheduledLimit | None = None
