"""The power limit that a job should have now, by one of four objectives.

- `SlowdownObjective` (the default): at most so much slower than at the prior limit, at the least Σ c·P.
- `DeadlineObjective`: finished by a deadline, at the least Σ c·P.
- `BudgetObjective`: finished as soon as a budget of carbon, money or energy allows.
- `EtaObjective`: Zeus's cost and, with a signal, Chase's eq. 6, to the letter.

The first three come down to a required mean rate (`required_rate`), which the outlook on the signal (`signal_outlook`)
turns into a rate for now (`dispatch`), and that into one limit, or a duty cycle of two adjacent ones (`duty_cycle`).
What is missing (a signal, a fresh one, a day of history, the length of the run) is a reason in the decision, not an
error. A run with a deadline may have time to spare: `slack` leaves work of dear hours to cheaper ones, below the
energy-minimal limit, or paused; and `slack.straggler` lowers single GPUs of a run that wait for a slower one. What the
plan expects of the next hours is read from it, without planning again (`hours_ahead`).
"""

from policies.planning.choose import choose_power_limit
from policies.planning.objectives import (
    BudgetObjective,
    CurrentLimit,
    DeadlineObjective,
    Decision,
    EtaObjective,
    Objective,
    PlannedPause,
    Progress,
    RatesAhead,
    ScheduledLimit,
    SlackOptions,
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
    "PlannedPause",
    "Progress",
    "RatesAhead",
    "ScheduledLimit",
    "SlackOptions",
    "SlowdownObjective",
    "SwitchingRules",
    "choose_power_limit",
]
