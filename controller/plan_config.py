"""The `[plan]` of the configuration: what is asked of every job, and of single ones by `[[plan.job]]`."""

import re
from collections.abc import Iterator
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from controller.tables import Section, build_record, shown

S_PER_H: Final = 3_600.0
_HOURS: Final = re.compile(r"(?P<number>\d{1,6}(\.\d{1,6})?)h")
_PROMISES: Final = frozenset({"objective", "deadline", "budget"})
"""The keys that say together what a job is to keep."""
_JOBS: Final = re.compile(r"[A-Za-z0-9._*?\[\]!-]{1,64}")
_DEADLINE: Final = 'must be a moment with its zone, as "2026-07-01T18:00:00+02:00", or hours after a start, as "36h"'


class PlanRules(Section, frozen=True, kw_only=True):
    """What is asked of a plan, how often it is made, and how much a change must be worth."""

    objective: Literal["slowdown", "eta", "deadline", "budget"] = "slowdown"
    max_slowdown: Annotated[float, Meta(ge=1, le=10)] = 1.03
    eta: Annotated[float, Meta(ge=0, le=1)] = 0.5
    deadline: str = ""
    budget: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
    period_s: Annotated[float, Meta(ge=0.05, le=86_400)] = 300.0
    min_dwell_s: Annotated[float, Meta(ge=0, le=86_400)] = 60.0
    min_gain_ratio: Annotated[float, Meta(ge=0, lt=1)] = 0.001
    step_w: Annotated[float, Meta(ge=1, le=1_000)] = 5.0
    share_slack: bool = False


class JobPlan(Section, frozen=True, kw_only=True):
    """A `[[plan.job]]` table: the jobs that it is for, by name or pattern, and what it says otherwise (`keys`)."""

    name: str
    rules: PlanRules = PlanRules()
    keys: tuple[str, ...] = ()


class PlanConfig(PlanRules, frozen=True, kw_only=True):
    """The plan of every job, but for those that a table of their own asks something else of."""

    job: tuple[JobPlan, ...] = ()

    def rules_of(self, job: str) -> PlanRules:
        """Return what is asked for a job: by the table of its name, else by the first whose pattern fits, else here."""
        fitting = [table for table in self.job if fnmatchcase(job, table.name)]
        exact = [table for table in fitting if table.name == job]
        return self._with(next(iter(exact + fitting), None))

    def faults(self) -> Iterator[str]:
        """Yield what is wrong between keys, here and in each table."""
        yield from _faults("plan", self._with(None))
        for number, table in enumerate(self.job):
            if not _PROMISES.isdisjoint(table.keys):  # what it has from [plan] is told there
                yield from _faults(f"plan.job[{number}]", self._with(table))

    def _with(self, table: JobPlan | None) -> PlanRules:
        rules = {key: getattr(self, key) for key in PlanRules.__struct_fields__}
        return PlanRules(**rules | ({key: getattr(table.rules, key) for key in table.keys} if table else {}))


def deadline_s(deadline: str, *, started_at_s: float) -> float:
    """Return the moment of a deadline [Unix s], for a run that started at a time [Unix s].

    Raises:
        ValueError: it is neither a moment with a zone nor a number of hours.

    >>> deadline_s("36h", started_at_s=1_000.0)
    130600.0
    """
    if match := _HOURS.fullmatch(deadline):
        return started_at_s + float(match["number"]) * S_PER_H
    moment = datetime.fromisoformat(deadline)
    if moment.tzinfo is None:
        raise ValueError(f"{deadline!r} has no zone")
    return moment.timestamp()


def read_deadline(path: str, value: object, faults: list[str]) -> str:
    """Return a deadline as text; TOML has moments of its own."""
    text = value.isoformat() if isinstance(value, datetime) else value
    if isinstance(text, str) and (not text or _is_deadline(text)):
        return text
    faults.append(f"{path} = {shown(str(text))}: {_DEADLINE}")
    return ""


def read_job_plans(path: str, value: object, faults: list[str]) -> tuple[JobPlan, ...]:
    """Return the tables of single jobs, without the faulty ones."""
    if not isinstance(value, list):
        faults.append(f"{path} = {shown(value)}: must be a list of tables, each [[{path}]]")
        return ()
    read = [_read_job_plan(f"{path}[{number}]", table, faults) for number, table in enumerate(value)]
    return tuple(table for table in read if table is not None)


def _is_deadline(text: str) -> bool:
    try:
        deadline_s(text, started_at_s=0.0)
    except (ValueError, OverflowError):
        return False
    return True


def _read_job_plan(path: str, value: object, faults: list[str]) -> JobPlan | None:
    table: dict[str, Any] = dict(value) if isinstance(value, dict) else {}
    name = table.pop("name", None)
    rules = build_record(path, PlanRules, table, faults, readers={"deadline": read_deadline})
    if not isinstance(name, str) or not _JOBS.fullmatch(name):
        faults.append(f'{path}.name = {shown(name)}: must be a job\'s name, or a pattern of them as "bert-*"')
        return None
    keys = tuple(key for key in table if key in PlanRules.__struct_fields__)
    return None if rules is None else JobPlan(name=name, rules=rules, keys=keys)


def _faults(path: str, rules: PlanRules) -> Iterator[str]:
    if rules.objective == "deadline" and not rules.deadline:
        yield f'{path}.deadline = "": {_DEADLINE}, because {path}.objective = "deadline"'
    if rules.objective == "budget" and not rules.budget:
        yield (
            f'{path}.budget = 0: must be above 0 (g of carbon, money, or kWh where signal.kind = "energy"), because '
            f'{path}.objective = "budget"'
        )
