"""The summary of a run: what it has used and saved, or why nothing is said to be saved; and its one line.

Decided from what the training has heard alone: no clock, no bus.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from publishers.messages.reports import RunEnergy
from publishers.shared.printable import printable_line
from publishers.training.reporting.run_energy import PROFILING

_MAX_DETAIL: Final = 200
_NOTICEABLE_RATIO: Final = 0.0005
"""Less would be shown as 0.0 %."""
_NEVER_WRITTEN: Final = frozenset({"observe_mode", "no_permission", "mig", "not_supported"})
"""Reasons with which no limit of ours was ever in force: what differs from the baseline is noise."""
_DETAILS: Final = {
    "too_short": "too short to tell what was saved",
    "off_curve": "too short to tell what was saved: it ran faster than the curve of an earlier run says",
    "no_iterations": "no optimizer steps were seen: the energy is measured, and nothing can be saved",
    "observe_mode": "plan.observe is on: limits are planned, but never written",
    "no_permission": "the controller may not set power limits (it takes root or CAP_SYS_ADMIN)",
    "not_profiled": "not profiled: no limit was stable long enough to be measured",
    "no_gpu": "it computed on no GPU of this machine",
    "off": "publishing is off",
}
_LEAST_SLOWDOWN_RATIO: Final = 0.95
"""A lower limit makes nothing faster: what took clearly less time than the baseline is not on the curve that it is
compared by, and was too short for the controller to notice."""
_NO_SIGNAL: Final = "no_signal"
_NOTES: Final = {_NO_SIGNAL: "carbon unknown: no grid signal"}
_NOT_ALL_MEASURED: Final = "not all of the run was measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What a run has used and saved, on all its nodes. As text, it is one line.

    Attributes:
        job: the name under which the training recurs.
        run: which of its runs.
        is_final: whether the controller has closed the account; else these are the last known sums.
        energy_j: what its GPUs have used [J]; None where nothing was measured.
        duration_s: for how long that was measured, from the first iteration to the last [s].
        iterations: how many optimizer steps the controller has counted.
        carbon_g: the carbon of that energy [g CO2e]; None without a carbon signal.
        cost: its cost; None without a price.
        currency: that of the cost.
        saved_energy_ratio: the share that was saved against the same work at the prior power limit; below 0 more was
            used. None where that is not known: `reason` says why.
        saved_carbon_ratio: the same of the carbon.
        saved_cost_ratio: the same of the cost.
        slowdown_ratio: how many times as long it took as at the prior limit.
        would_save_ratio: with `plan.observe`, about what the plan would have saved.
        reason: why nothing is said to be saved, as a stable code; "" where a saving is told. `too_short`,
            `off_curve`, `no_iterations`, `no_controller`, `no_broker`, `no_gpu`, `off`, or a reason code of the
            controller.
        detail: the same as a sentence.
        incomplete: stable codes of what is not known: those of the record (`unmeasured`, …), and `no_signal`.
    """

    job: str = ""
    run: str = ""
    is_final: bool = False
    energy_j: float | None = None
    duration_s: float | None = None
    iterations: int | None = None
    carbon_g: float | None = None
    cost: float | None = None
    currency: str | None = None
    saved_energy_ratio: float | None = None
    saved_carbon_ratio: float | None = None
    saved_cost_ratio: float | None = None
    slowdown_ratio: float | None = None
    would_save_ratio: float | None = None
    reason: str = ""
    detail: str = ""
    incomplete: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return it as one line, as at the end of the run."""
        head = f"{self.job} run {self.run}" if self.run else "no run"
        if self.energy_j is None:
            return f"{head}: not measured: {self.detail}"
        notes = dict.fromkeys(_NOTES.get(code, _NOT_ALL_MEASURED) for code in self.incomplete)
        outcome = f"{head}{'' if self.is_final else ', so far'}: {', '.join([*_amounts(self), _outcome(self)])}"
        return "; ".join([outcome, *notes])


def summarize(job: str, run: str, record: RunEnergy | None, *, unmeasured: tuple[str, str]) -> RunSummary:
    """Return the summary of a run.

    Args:
        job: the job.
        run: the run.
        record: the newest record of its energy; None where there is none.
        unmeasured: why nothing is measured, if that is so: a code, and a sentence.
    """
    if record is None or not record.n_gpus:
        reason, detail = unmeasured
        return RunSummary(job=job, run=run, is_final=record is not None and record.final, reason=reason, detail=detail)
    used = RunSummary(
        job=job,
        run=run,
        is_final=record.final,
        energy_j=record.energy_j,
        duration_s=record.duration_s,
        iterations=record.iterations,
        carbon_g=record.carbon_g,
        cost=record.cost,
        currency=record.currency,
        would_save_ratio=record.would_save_ratio,
        incomplete=_incomplete(record),
    )
    if not record.baseline_energy_j or record.reason in PROFILING | _NEVER_WRITTEN:
        reason, detail = _why_unknown(record)
        return replace(used, reason=reason, detail=detail)
    if (record.slowdown_ratio or 1.0) < _LEAST_SLOWDOWN_RATIO:
        reason, detail = explained("off_curve")
        return replace(used, reason=reason, detail=detail)
    return replace(
        used,
        saved_energy_ratio=1 - record.energy_j / record.baseline_energy_j,
        saved_carbon_ratio=_saved_carbon_ratio(record),
        saved_cost_ratio=record.saved_ratio if record.cost is not None else None,
        slowdown_ratio=record.slowdown_ratio,
    )


def explained(code: str, detail: str = "") -> tuple[str, str]:
    """Return a code with its sentence: ours where there is one, else the given one."""
    return code, _DETAILS.get(code) or printable_line(detail or code, max_characters=_MAX_DETAIL)


OFF: Final = RunSummary(reason="off", detail=_DETAILS["off"])
"""That of a publisher that publishes nothing."""


def _why_unknown(record: RunEnergy) -> tuple[str, str]:
    """Return why it is not known what a run has saved that was measured."""
    if not record.iterations and record.energy_j:
        return explained("no_iterations")
    if record.reason is None or record.reason in PROFILING:
        return explained("too_short")
    return explained(record.reason, record.detail or "")


def _incomplete(record: RunEnergy) -> tuple[str, ...]:
    is_without_signal = record.reason in {"signal_absent", "signal_stale"} and record.carbon_g is record.cost is None
    return (*record.incomplete, *((_NO_SIGNAL,) if is_without_signal else ()))


def _saved_carbon_ratio(record: RunEnergy) -> float | None:
    if record.carbon_g is None or not record.baseline_carbon_g:
        return None
    return 1 - record.carbon_g / record.baseline_carbon_g


def _amounts(summary: RunSummary) -> list[str]:
    """Return what was used: energy, carbon, cost."""
    amounts = [_scaled((summary.energy_j or 0.0) / 3_600, ("Wh", "kWh", "MWh", "GWh"))]
    if summary.carbon_g is not None:
        amounts.append(f"{_scaled(summary.carbon_g, ('g', 'kg', 't'))} CO2e")
    if summary.cost is not None:
        amounts.append(f"{_digits(summary.cost)} {summary.currency or ''}".rstrip())
    return amounts


def _outcome(summary: RunSummary) -> str:
    """Return what was saved and for how much more time, or why that is not known."""
    if summary.saved_energy_ratio is None:
        if summary.reason in {"too_short", "off_curve", "no_iterations"}:
            return summary.detail
        would = summary.would_save_ratio
        observed = "" if would is None else f" (the plan would have saved about {100 * would:.1f} %)"
        return f"nothing saved: {summary.detail}{observed}"
    changes = {
        "energy": summary.saved_energy_ratio,
        "carbon": summary.saved_carbon_ratio,
        "cost": summary.saved_cost_ratio,
    }
    known = {name: ratio for name, ratio in changes.items() if ratio is not None}
    saved = [f"{100 * ratio:.1f} % {name}" for name, ratio in known.items() if ratio >= _NOTICEABLE_RATIO]
    more = [f"{-100 * ratio:.1f} % more {name}" for name, ratio in known.items() if ratio <= -_NOTICEABLE_RATIO]
    parts = [f"saved {_listed(saved)}"] if saved else []
    parts += [f"used {_listed(more)}"] if more else []
    return f"{', '.join(parts) or 'nothing saved'} {_time_change(summary.slowdown_ratio)}".rstrip()


def _time_change(slowdown_ratio: float | None) -> str:
    if slowdown_ratio is None:
        return ""
    change = slowdown_ratio - 1
    if abs(change) < _NOTICEABLE_RATIO:
        return "in the same time"
    return f"for {100 * change:.1f} % more time" if change > 0 else f"in {-100 * change:.1f} % less time"


def _listed(parts: list[str]) -> str:
    """Return `a`, `a and b`, or `a, b and c`."""
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]


def _scaled(value: float, units: Sequence[str]) -> str:
    """Return an amount with three digits, in the largest of the units, each a thousand of the one before."""
    place = 0
    while abs(value) >= 999.5 and place < len(units) - 1:  # noqa: PLR2004 — what rounds to a thousand
        value, place = value / 1_000, place + 1
    return f"{_digits(value)} {units[place]}"


def _digits(value: float) -> str:
    """Return a number with three significant digits and no exponent: 1.84, 61.2, 0.0123, 1,840."""
    if value == 0 or abs(value) >= 99.95:  # noqa: PLR2004 — no decimals from a hundred on
        return f"{value:,.0f}"
    return format(float(f"{value:.3g}"), ".10f").rstrip("0").rstrip(".")
