"""What a person orders of a run or a GPU, as a form says it: read, or refused with everything that is wrong."""

import math
import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, tzinfo
from functools import partial
from typing import Final, Literal, NamedTuple, get_args

from controller.ports.orders import MAX_AHEAD_S, MAX_PIN_S, MAX_POWER_W, MAX_SLOWDOWN_RATIO, why_fault
from controller.runtime.typed_values import power_w, time_s
from publishers.messages.reports import Order

Action = Literal["pin", "exempt", "release", "pause", "resume", "budget", "deadline", "reset"]
ACTIONS: Final[tuple[str, ...]] = get_args(Action)
GPU_ACTIONS: Final = ACTIONS[:3]
"""What can be ordered of a GPU, too: to pin, exempt and release it."""
MAX_SLOWER_PERCENT: Final = 100 * (MAX_SLOWDOWN_RATIO - 1)
MAX_NAME: Final = 40
"""Characters of the name that somebody signs in with."""
_EXAMPLES: Final = "must be 18:00, +2h30m, or 2026-11-29T18:00"


class OrderForm(NamedTuple):
    """An order that can be sent.

    Attributes:
        action: what is to be done.
        why: the reason, for everybody who looks.
        power_limit_w: of a pin [W].
        until_s: when it ends [Unix s]; None: by another order, or with the run.
        max_slowdown_ratio: of a time budget: how many times as long as at full speed.
        deadline_s: by when the run is to end [Unix s].
    """

    action: Action
    why: str
    power_limit_w: float | None = None
    until_s: float | None = None
    max_slowdown_ratio: float | None = None
    deadline_s: float | None = None

    def fields(self) -> dict[str, str]:
        """Return the form again, with a time that does not depend on when it is read."""
        fields = {"action": self.action, "why": self.why}
        if self.power_limit_w is not None:
            fields["limit"] = f"{self.power_limit_w:.9g}"
        if self.max_slowdown_ratio is not None:
            fields["slower"] = f"{100 * (self.max_slowdown_ratio - 1):.9g}"
        for name, moment_s in (("until", self.until_s), ("at", self.deadline_s)):
            if moment_s is not None:
                fields[name] = f"{datetime.fromtimestamp(moment_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
        return fields

    def order(self, *, by: str, by_owner: bool, correlation: str, now_s: float) -> Order:
        """Return what is sent, at a time [Unix s]."""
        return Order(
            time_s=now_s,
            action=self.action,
            correlation=correlation,
            by=by,
            why=self.why,
            power_limit_w=self.power_limit_w,
            until_s=self.until_s,
            max_slowdown_ratio=self.max_slowdown_ratio,
            deadline_s=self.deadline_s,
            by_owner=by_owner,
        )


def new_correlation() -> str:
    """Return what one order is known by."""
    return f"page-{secrets.token_hex(8)}"


def read_order(
    fields: Mapping[str, str], action: Action, *, now_s: float, zone: tzinfo, faults: list[str]
) -> OrderForm | None:
    """Return the order that a form says; None: it is none, and `faults` has why, a sentence each.

    Args:
        fields: of the form.
        action: what is to be done.
        now_s: the time [Unix s].
        zone: of times that do not name theirs.
        faults: is added to.
    """
    n_before, terms, why = len(faults), dict[str, float](), fields.get("why", "").strip()
    readers = {name: partial(read, faults=faults) for name, read in TERMS[action].items()}
    for name, read in readers.items():
        text = fields.get(FIELDS[name], "").strip()
        if text or (action, name) not in MAY_BE_EMPTY:
            value = read(text, now_s, zone)
            terms |= {} if value is None else {name: value}
    fault = why_fault(why)
    if fault is not None:
        faults.append(f"{fault[1][:1].upper()}{fault[1][1:]}.")
    return OrderForm(action, why, **terms) if len(faults) == n_before else None


def _limit_w(text: str, _now_s: float, _zone: tzinfo, *, faults: list[str]) -> float | None:
    try:
        limit_w = power_w(text)
    except ValueError as error:
        faults.append(f"The limit {text[:20]!r} {error}." if text else "The limit is missing.")
        return None
    if limit_w > MAX_POWER_W:
        faults.append(f"The limit {text[:20]!r} is more than {MAX_POWER_W / 1_000:.0f} kW.")
        return None
    return limit_w


def _max_slowdown_ratio(text: str, _now_s: float, _zone: tzinfo, *, faults: list[str]) -> float | None:
    percent = _number(text.removesuffix("%"))
    if not 0 <= percent <= MAX_SLOWER_PERCENT:
        what = (
            f"{text[:20]!r} must be a number of per cent," if text else "is missing: it must be a number of per cent,"
        )
        faults.append(f"How much slower {what} from 0 (never slower) to {MAX_SLOWER_PERCENT:g}.")
        return None
    return 1 + percent / 100


def _time_s(text: str, now_s: float, zone: tzinfo, *, faults: list[str], most_s: float = MAX_AHEAD_S) -> float | None:
    """Return a time that is ahead, and no further than an order of this kind reaches [s]."""
    try:
        moment_s = time_s(text, now_s=now_s, zone=zone)
    except (ValueError, OverflowError, OSError):
        faults.append(f"The time {text[:32]!r} {_EXAMPLES}." if text else f"The time is missing: it {_EXAMPLES}.")
        return None
    if moment_s <= now_s:
        faults.append(f"The time {text[:32]!r} has passed.")
        return None
    if moment_s - now_s > most_s:
        faults.append(f"The time {text[:32]!r} is more than {most_s / 86_400:g} days ahead.")
        return None
    return moment_s


def _number(text: str) -> float:
    try:
        return float(text.strip())
    except ValueError:
        return math.nan


_LIMIT: Final = {"power_limit_w": _limit_w}
_UNTIL: Final = {"until_s": _time_s}
_WITHIN_DAYS: Final = {"until_s": partial(_time_s, most_s=MAX_PIN_S)}
TERMS: Final[Mapping[Action, Mapping[str, Callable[..., float | None]]]] = {
    "pin": _LIMIT | _WITHIN_DAYS,
    "exempt": _WITHIN_DAYS,
    "pause": _UNTIL,
    "budget": {"max_slowdown_ratio": _max_slowdown_ratio} | _UNTIL,
    "deadline": {"deadline_s": _time_s},
    "release": {},
    "resume": {},
    "reset": {},
}
"""What each action needs, and how it is read."""
FIELDS: Final = {"power_limit_w": "limit", "until_s": "until", "max_slowdown_ratio": "slower", "deadline_s": "at"}
MAY_BE_EMPTY: Final = frozenset({("budget", "until_s")})
