"""Which power limit a job should have now: the plan, by one of four objectives.

- `SlowdownObjective` (the default): at most so much slower than at the prior limit, at the least Σ c·P.
- `DeadlineObjective`: done by a moment, at the least Σ c·P.
- `BudgetObjective`: done as soon as a budget of carbon, money or energy allows.
- `EtaObjective`: Zeus's cost and, with a signal, Chase's eq. 6, to the letter.

The first three come to one question: which rate now, if the mean rate from here on has to be so much, and what comes is
as the forecast, or the last days, say (`needs`, `outlook`, `schedule`)? The rate then becomes a limit, or two adjacent
ones of the hull that share the period (`mixing`). What the world lacks (a signal, a fresh one, a day of history, the
length of the run) is a reason in the decision, not an error.
"""

from policies.planning.choose import choose_power_limit
from policies.planning.objectives import (
    BudgetObjective,
    CurrentLimit,
    DeadlineObjective,
    Decision,
    EtaObjective,
    Objective,
    Progress,
    ScheduledLimit,
    SlowdownObjective,
    SwitchingRules,
)

__all__ = [
    "BudgetObjective",
    "CurrentLimit",
    "DeadlineObjective",
    "Decision",
    "EtaObjective",
    "Objective",
    "Progress",
    "ScheduledLimit",
    "SlowdownObjective",
    "SwitchingRules",
    "choose_power_limit",
]
