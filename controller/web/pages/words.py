"""What pages say: amounts, moments and limits as people read them, and why a limit is what it is."""

import re
import shlex
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

from controller.runtime.markup import NO_BREAK
from controller.web.charts.ticks import number_text
from controller.web.live.site_state import GpuKey, Subject
from policies.vocabulary.units import duration_text
from publishers.messages.reasons import short_reason
from publishers.messages.reports import LimitChange, RunEnergy
from publishers.messages.topics import RunKey
from publishers.shared.printable import printable
from publishers.training.reporting.amounts import energy_text, interval_texts, power_text

NOT_KNOWN_YET: Final = "not known yet"
PINNED: Final = "pinned"
"""The reason of a limit that a person has pinned."""
_FOLLOWING: Final = {
    "slowdown_signal": "in the allowed time",
    "deadline_signal": "until the deadline",
    "budget_signal": "within the budget",
    "eta_signal": "weighted by eta",
}
"""Plans that follow the grid, and what they keep."""
_WITHOUT_NUMBERS: Final = {
    None: NOT_KNOWN_YET,
    "too_early": NOT_KNOWN_YET,
    "incomplete": "not known: a part of the run is missing in the books",
    "curve_changed": "not known: a part ran on a curve that was never measured",
    "limits_differ": "not known: its GPUs had unlike limits",
    "not_computed": "not known: computing it failed",
    "no_baseline": "not known: full power would have cost nothing",
    "other_nodes": "not known: another node does not know its part",
}
"""By the code of the evidence: why there is no number of what was saved."""
_ARROW: Final = f"{NO_BREAK}→{NO_BREAK}"


def typeset(text: str) -> str:
    """Return an amount as a page writes it: a true minus, narrow spaces in thousands, its unit on the same line."""
    return text.replace("CO2e", "CO₂e").replace("-", "\u2212").replace(",", "\u202f").replace(" ", NO_BREAK)


def sentence_text(text: str) -> str:
    r"""Return a sentence as a page writes it: what follows a number stays on its line.

    >>> sentence_text("1.6 kg CO2e in 64 h").split(" ")
    ['1.6\xa0kg\xa0CO₂e', 'in', '64\xa0h']
    """
    return re.sub(r"(?<=[0-9]) ", NO_BREAK, text).replace(" CO2e", f"{NO_BREAK}CO₂e")


def percent_text(ratio: float) -> str:
    """Return a share in per cent, to a tenth.

    >>> percent_text(0.0562)
    '5.6 %'
    """
    return f"{number_text(100 * ratio, 1)} %"


def range_text(lower: str, upper: str) -> str:
    """Return both ends of an interval, with their unit once where it is the same; a zero has the other's."""
    (number, _, unit), (upper_number, _, upper_unit) = (end.partition(" ") for end in (lower, upper))
    if upper_number == "0":
        upper, upper_unit = f"0 {unit}", unit
    has_one_unit = bool(unit) and (number == "0" or unit == upper_unit)
    return f"{typeset(number if has_one_unit else lower)} to {typeset(upper)}"


def without_number_text(record: RunEnergy | None) -> str:
    """Return why there is no number of what a run has saved."""
    return _WITHOUT_NUMBERS.get(record.evidence if record is not None else None, "not known")


def limit_text(change: LimitChange) -> str:
    """Return from which limit to which: `250 → 200 W`; one that stayed is said once."""
    before_w, after_w = change.previous_power_limit_w, change.power_limit_w
    if after_w is None:
        return "limit not known"
    after = typeset(power_text(after_w))
    if before_w is None or round(before_w) == round(after_w):
        return after
    before = typeset(power_text(before_w))
    same_unit = before.partition(NO_BREAK)[2] == after.partition(NO_BREAK)[2]
    return f"{before.partition(NO_BREAK)[0] if same_unit else before}{_ARROW}{after}"


def reason_text(change: LimitChange) -> str:
    """Return why a GPU has its limit: a plain phrase, or who has pinned it, until when and why."""
    if words := pin_text(change):
        return words
    kept = _FOLLOWING.get(change.reason)
    if kept is None:
        return short_reason(change.reason)
    before_w, after_w = change.previous_power_limit_w, change.power_limit_w
    if before_w is None or after_w is None or round(before_w) == round(after_w):
        return short_reason(change.reason)
    return f"following the grid {kept}: {'faster' if after_w > before_w else 'slower'} for now"


def pin_text(change: LimitChange) -> str:
    """Return who has pinned a limit, until when and why; "" where nobody has, or it is not said."""
    return printable(change.detail) if change.reason == PINNED else ""


def is_pinned(record: RunEnergy, now_s: float) -> bool:
    """Return whether a person has pinned the limit of a run, until after now [Unix s]."""
    return record.pinned_until_s is not None and record.pinned_until_s > now_s


def pin_cost_text(record: RunEnergy) -> str:
    """Return what the pins of a run took beyond what its plan would have, with 90 % intervals; "": not known."""
    parts = []
    for extra, half, text_of, what in (
        (record.pinned_extra_s, record.pinned_extra_ci90_s, signed_duration_text, "time"),
        (record.pinned_extra_energy_j, record.pinned_extra_energy_ci90_j, energy_text, "energy"),
    ):
        if extra is None or half is None:
            return ""
        lower, middle, upper = interval_texts(abs(extra), half, text_of)
        more = "less" if extra < 0 else "more"
        parts.append(f"{typeset(middle)} {more} {what} ({range_text(lower, upper)})")
    return f"{' and '.join(parts)} than by its plan"


def signed_duration_text(duration_s: float) -> str:
    """Return a duration that may be below 0 [s]."""
    return f"{'-' if duration_s < 0 else ''}{duration_text(abs(duration_s))}"


def release_words(key: RunKey, gpu_uuid: str | None = None) -> list[str]:
    """Return the command that ends the pin of a run, for a shell: its verb, then its options, each with its value.

    With a GPU it ends the pin of that one, which holds the run.
    """
    options = [("--gpu", gpu_uuid)] if gpu_uuid else [("--job", key.job), ("--user", key.user), ("--run", key.run)]
    return ["gridchase release", *map(shlex.join, options)]


def decision_text(change: LimitChange) -> str:
    """Return a change in words: why, the grid then, and the speed of its run."""
    return " · ".join((reason_text(change), *_numbers(change)))


def _numbers(change: LimitChange) -> Iterator[str]:
    if change.signal:
        yield typeset(change.signal.partition(" (")[0])
    if change.speed_ratio is not None:
        yield f"{typeset(percent_text(change.speed_ratio))} of full speed"


def run_words(key: RunKey, record: RunEnergy) -> str:
    """Return which run of its job it is, and on what."""
    boards = f"{record.n_gpus}{NO_BREAK}\u00d7{NO_BREAK}{record.gpu_model}" if record.n_gpus else "no GPU"
    return f"run {key.run} · {boards}"


def run_path(key: RunKey) -> str:
    """Return where the page of a run is."""
    return "/run/" + "/".join(quote(name, safe="") for name in key)


def subject_path(subject: Subject) -> str:
    """Return where a run or a GPU is shown."""
    return f"/gpus?node={quote(subject.node, safe='')}" if isinstance(subject, GpuKey) else run_path(subject)


def order_path(subject: Subject, action: str = "") -> str:
    """Return where an action on a run or a GPU is ordered; without an action, where the order is sent to."""
    kind = "gpu" if isinstance(subject, GpuKey) else "run"
    names = "/".join(quote(name, safe="") for name in subject)
    return f"/{kind}/{names}/order" + (f"?action={action}" if action else "")
