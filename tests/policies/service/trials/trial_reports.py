"""A trial, and the news of its validations: what the tests of its life share."""

from msgspec.structs import replace

from policies.batch_size import Choice
from policies.service.records import Trial
from policies.service.trials.lifecycle import new_trial, with_metric
from tests.policies.service.repositories import run_key

LEASE_S = 100.0
CHOICE = Choice(batch_size=32, reason="default_first", detail="nothing is known yet", cost_bound=5.0)


def a_trial(*, number: int = 0, recurrence: int = 0, **changes: object) -> Trial:
    trial = new_trial(
        run=run_key(f"run-{number}"), number=number, recurrence=recurrence, choice=CHOICE, lease_s=LEASE_S, now_s=0.0
    )
    return replace(trial, **changes)


def reached_at(trial: Trial, epoch: int, now_s: float = 1.0) -> Trial:
    return with_metric(trial, epoch=epoch, value=0.9, reached=True, now_s=now_s)


def validated(trial: Trial, epoch: int, now_s: float = 1.0) -> Trial:
    return with_metric(trial, epoch=epoch, value=0.1, reached=False, now_s=now_s)
