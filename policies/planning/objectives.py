"""The records of planning: objectives, inputs, and the decision."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from policies.planning.run_length import GuessedLength
from policies.vocabulary.power_curve import Hull
from policies.vocabulary.units import Values


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowdownObjective:
    """Take at most `max_slowdown` times as long as at the prior limit (1.03 is 3 % slower), at the least Σ c·P."""

    max_slowdown: float

    def __post_init__(self) -> None:
        """Check that the slowdown is at least 1."""
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
        """Check that eta is from 0 to 1, and the power positive."""
        if not 0 <= self.eta <= 1:
            raise ValueError(f"eta = {self.eta:g}: must be from 0 (only time counts) to 1 (only energy counts)")
        if self.max_power_w is not None and not self.max_power_w > 0:
            raise ValueError(f"max_power_w = {self.max_power_w:g}: must be above 0 W")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineObjective:
    """Finish by a deadline [Unix s], at the least Σ c·P; the remaining work is in `Progress`."""

    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetObjective:
    """Finish as soon as a budget of grams, money or (without a signal) kWh allows; `Progress` has what is spent."""

    budget: float

    def __post_init__(self) -> None:
        """Check that the budget is positive."""
        if not self.budget > 0:
            raise ValueError(f"budget = {self.budget:g}: must be above 0")


Objective = SlowdownObjective | EtaObjective | DeadlineObjective | BudgetObjective


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchingRules:
    """The planning period [s], the minimum dwell time of a limit [s], and the least saving that justifies a change."""

    period_s: float
    min_dwell_s: float
    min_gain_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The run so far, including its profiling.

    Attributes:
        n_iterations: the completed iterations.
        active_s: the time in which they ran [s].
        started_at_s: when the run started [Unix s].
        total_iterations: how many it will have in all, if the run has announced it.
        spent: the cost of its energy so far, in grams or money, or in kWh without a signal; None if unknown.
        base_s: how long its work so far would have taken at the highest limit [s]; None: as the profile's rate says.
        former_active_s, former_base_s: both times on curves that the job has left since its time budget began; the
            iterations, and the other two, are those since then [s].
        base_error_ratio: the standard deviation of both base times together, as a share of them.
        guessed: where it is taken to end, by former runs; None where the total is announced, or nothing is known.
        asked_pause_s: for how long it has waited because it was asked to [s].
    """

    n_iterations: float
    active_s: float
    started_at_s: float
    total_iterations: float | None = None
    spent: float | None = None
    base_s: float | None = None
    former_active_s: float = 0.0
    former_base_s: float = 0.0
    base_error_ratio: float = 0.0
    guessed: GuessedLength | None = None
    asked_pause_s: float = 0.0

    @property
    def left_iterations(self) -> float | None:
        """Return the remaining iterations, or None if the total is unknown or already exceeded."""
        if self.total_iterations is None or self.total_iterations <= self.n_iterations:
            return None
        return self.total_iterations - self.n_iterations

    @property
    def expected_left_iterations(self) -> float | None:
        """Return the remaining iterations, told or guessed as well as told; None otherwise."""
        left, guessed = self.left_iterations, self.guessed
        if left is None and guessed is not None and guessed.is_certain and guessed.total_iterations > self.n_iterations:
            return guessed.total_iterations - self.n_iterations
        return left


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentLimit:
    """The limit that is requested now [W], and since when [Unix s]."""

    power_limit_w: float
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledLimit:
    """The second limit of a duty cycle.

    Attributes:
        from_s: when it begins [Unix s].
        power_limit_w: the limit to request then, one of the profile's [W].
        power_w: the expected power at it [W].
        iterations_per_s: the expected rate at it [1/s].
    """

    from_s: float
    power_limit_w: float
    power_w: float
    iterations_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlackOptions:
    """How a run with a deadline may use its slack.

    Attributes:
        idle_power_w: what it draws while it is paused, host power and PUE included as in its curve [W]; None: it may
            not be paused.
        max_pause_s: how long a pause lasts at most, as the training says [s].
        paused_for_s: for how long it has been paused [s]; None: it is not.
        rms_errors: the root mean square errors of forecasts 1, 2, … hours ahead, shape (n_hours,), in the unit of the
            signal; None: not known, so that only known hours count.
    """

    idle_power_w: float | None = None
    max_pause_s: float = 0.0
    paused_for_s: float | None = None
    rms_errors: Values | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPause:
    """A pause in the period that begins.

    Attributes:
        from_s, until_s: from when to when in this period [Unix s].
        ends_s: when it will have ended, as far as is known now: the next plan may go on with it [Unix s].
    """

    from_s: float
    until_s: float
    ends_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RatesAhead:
    """The rates of the whole plan that a decision is the first period of.

    Attributes:
        durations_s: how long each rate is planned for, shape (n,); the first one from now on [s].
        values: the signal that is expected meanwhile, shape (n,).
        rates_per_s: the mean rates, shape (n,) [1/s].
        hulls: of which two neighbours are mixed to each rate, n of them.
        timed_s: for how long, from now on, each rate is planned at its own time; the later ones in any order [s].
    """

    durations_s: Values
    values: Values
    rates_per_s: Values
    hulls: Sequence[Hull]
    timed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A power limit and why.

    Attributes:
        power_limit_w: the limit to request, one of the profile's [W].
        reason: a stable code.
        detail: a sentence with the numbers behind it.
        power_w: the expected power at it [W].
        iterations_per_s: the expected rate at it [1/s].
        signal_value: the signal now, or None without one.
        scheduled: the limit of the rest of the period, or None if the first one lasts for all of it.
        pause: when the run is to be paused in the period; None: it is not.
        ahead: returns the rates of the plan that it is a part of, when they are asked for: few are; None where only the
            present was decided.
    """

    power_limit_w: float
    reason: str
    detail: str
    power_w: float
    iterations_per_s: float
    signal_value: float | None
    scheduled: ScheduledLimit | None = None
    pause: PlannedPause | None = None
    ahead: Callable[[], RatesAhead] | None = field(default=None, compare=False)
