"""What a person orders of a run, as a form says it: read, and refused with everything that is wrong with it."""

import math
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from typing import Final, Literal, NamedTuple, get_args

from controller.ports import pin_fault, why_fault
from controller.runtime.typed_time import time_s
from publishers.messages.reports import Order

Action = Literal["pin", "release", "pause", "resume"]
ACTIONS: Final[tuple[str, ...]] = get_args(Action)
NEEDS_TIME: Final = frozenset({"pin", "pause"})
"""Actions that end by themselves, at a time that a person says."""
MAX_NAME: Final = 40
"""Characters of the name that somebody signs in with."""
_EXAMPLES: Final = "must be 18:00, +2h30m, or 2026-11-29T18:00"


class OrderForm(NamedTuple):
    """An order that can be sent.

    Attributes:
        action: what is to be done.
        why: the reason, for everybody who looks.
        power_limit_w: of a pin [W].
        until_s: when it ends [Unix s].
    """

    action: Action
    why: str
    power_limit_w: float | None = None
    until_s: float | None = None

    def fields(self) -> dict[str, str]:
        """Return the form again, with a time that does not depend on when it is read."""
        fields = {"action": self.action, "why": self.why}
        if self.power_limit_w is not None:
            fields["limit"] = f"{self.power_limit_w:g}"
        if self.until_s is not None:
            fields["until"] = f"{datetime.fromtimestamp(self.until_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
        return fields

    def order(self, *, by: str, correlation: str, now_s: float) -> Order:
        """Return what is sent, at a time [Unix s]."""
        return Order(
            time_s=now_s,
            action=self.action,
            correlation=correlation,
            by=by,
            why=self.why,
            power_limit_w=self.power_limit_w,
            until_s=self.until_s,
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
    why, n_before = fields.get("why", "").strip(), len(faults)
    limit_w = _limit_w(fields.get("limit", ""), faults) if action == "pin" else None
    until_s = _until_s(fields.get("until", ""), now_s, zone, faults) if action in NEEDS_TIME else None
    if limit_w is not None and until_s is not None and (fault := pin_fault(limit_w, until_s, now_s=now_s)) is not None:
        faults.append(_sentence(fault[1]))
    elif until_s is not None and until_s <= now_s:
        faults.append("The time until when has passed.")
    if (fault := why_fault(why)) is not None:
        faults.append(_sentence(fault[1]))
    return OrderForm(action, why, limit_w, until_s) if len(faults) == n_before else None


def _limit_w(text: str, faults: list[str]) -> float | None:
    try:
        limit_w = float(text.strip().removesuffix("W").strip())
    except ValueError:
        limit_w = math.nan
    if not 0 < limit_w < math.inf:
        faults.append(f"The limit {text[:20]!r} must be a power in W, above 0." if text else "The limit is missing.")
        return None
    return limit_w


def _until_s(text: str, now_s: float, zone: tzinfo, faults: list[str]) -> float | None:
    try:
        return time_s(text.strip(), now_s=now_s, zone=zone)
    except (ValueError, OverflowError, OSError):
        faults.append(f"Until {text[:32]!r}: {_EXAMPLES}." if text else f"Until when is missing: it {_EXAMPLES}.")
        return None


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
