"""The summary of a run: what it has used and saved, or why nothing is said to be saved; and its one line.

Decided from what the training has heard alone: no clock, no bus. What was saved is told where the controller has
evidence of it, and with the half-width of its 90 % interval.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Final

from publishers.messages.holdouts import describe_holdouts
from publishers.messages.reports import KNOWN_EVIDENCE, SIMULATED, RunEnergy
from publishers.shared.printable import printable_line
from publishers.training.reporting.amounts import carbon_text, energy_text, money_text
from publishers.training.reporting.run_energy import known_ratios

_MAX_DETAIL: Final = 200
_FINE_CI90_RATIO: Final = 0.0005
"""Below it, ±0.1 % would be more than twice what is not known: estimate and interval have two decimals."""
_NEVER_LOWERED: Final = frozenset({
    "observe_mode", "no_permission", "mig", "not_supported", "not_profiled", "shared", "claim_unproven",
    "claim_rejected", "held_out", "other_gpu_not_ours", "no_leader", "another_writer", "write_ignored",
    "length_unknown", "cost_unknown", "only_limit",
})  # fmt: skip
"""Reasons of a run's limit that say why it was never lowered, where it never was."""
_SHORT_S: Final = 30.0
_NOT_YET: Final = frozenset({"not_profiled", "profiling", "profiling_paused", "waiting_for_ranks", None})
"""Reasons of a limit that was never lowered which a run shorter than that had no time to get over."""
_DETAILS: Final = {
    "too_short": "it was too short",
    "too_early": "too early to tell what was saved",
    "no_iterations": "no optimizer steps were seen",
    "nothing_changed": "its power limit was never lowered",
    "curve_changed": "a part of it ran on another power curve, or on other GPUs",
    "no_baseline": "at the highest limit it would have cost nothing, or may have",
    "limits_differ": "its GPUs had unlike limits, which nothing compares",
    "not_computed": "it was not computed in time",
    "other_nodes": "another node does not know what was saved there",
    "no_interval": "its controller gives no interval",
    "held_out": "held out at the prior limit, to compare the job's other runs with",
    "observe_mode": "plan.observe is on: limits are planned, but never written",
    "no_permission": "the controller may not set power limits (it takes root or CAP_SYS_ADMIN)",
    "not_profiled": "not profiled: no limit was stable long enough to be measured",
    "no_gpu": "it computed on no GPU of this machine",
    "off": "publishing is off",
    "incomplete": (_NOT_ALL_MEASURED := "not all of the run was measured"),
}
_NO_SIGNAL: Final = "no_signal"
_NOTES: Final = {_NO_SIGNAL: "carbon unknown: no grid signal"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What a run has used and saved, on all its nodes. As text, it is one line.

    Attributes:
        job: the name under which the training recurs.
        run: which of its runs.
        is_final: whether the controller has closed the account; else these are the last known sums.
        is_simulated: whether its GPUs are simulated: then nothing below was measured on a board.
        energy_j: what its GPUs have used [J]; None where nothing was measured.
        duration_s: for how long that was measured, from the first iteration to the last [s].
        iterations: how many optimizer steps the controller has counted.
        carbon_g: the carbon of that energy [g CO2e]; None without a carbon signal.
        cost: its cost; None without a price.
        currency: that of the cost.
        evidence: how well it is known what was saved, a code of the record such as `measured` or `too_early`; None
            where it has none. Only with `measured` and `nothing_changed` the next eight are known, else None.
        saved_energy_ratio: the share that was saved against the same work at the prior power limit; below 0 more was
            used. With `nothing_changed` it is 0, by construction.
        saved_energy_ci90_ratio: the half-width of its 90 % interval.
        saved_carbon_ratio, saved_carbon_ci90_ratio: the same of the carbon.
        saved_cost_ratio, saved_cost_ci90_ratio: the same of the cost.
        slowdown_ratio: how many times as long it took as at the prior limit.
        slowdown_ci90_ratio: the half-width of its 90 % interval.
        would_save_ratio: with `plan.observe`, about what the plan would have saved.
        would_save_ci90_ratio: the half-width of its 90 % interval.
        reason: why nothing is said to be saved, as a stable code; "" where a saving is told. A code of `evidence`,
            `no_iterations`, `no_interval`, or a reason code of the controller; where nothing was measured `too_short`,
            `no_controller`, `no_broker`, `no_gpu`, `off`, or that of a refusal.
        detail: the same as a sentence.
        incomplete: stable codes of what is not known: those of the record (`unmeasured`, …), and `no_signal`.
        holdouts: what the job's runs that were held out say of the others (A/B), as a sentence; "" where none are.
    """

    job: str = ""
    run: str = ""
    is_final: bool = False
    is_simulated: bool = False
    energy_j: float | None = None
    duration_s: float | None = None
    iterations: int | None = None
    carbon_g: float | None = None
    cost: float | None = None
    currency: str | None = None
    evidence: str | None = None
    saved_energy_ratio: float | None = None
    saved_energy_ci90_ratio: float | None = None
    saved_carbon_ratio: float | None = None
    saved_carbon_ci90_ratio: float | None = None
    saved_cost_ratio: float | None = None
    saved_cost_ci90_ratio: float | None = None
    slowdown_ratio: float | None = None
    slowdown_ci90_ratio: float | None = None
    would_save_ratio: float | None = None
    would_save_ci90_ratio: float | None = None
    reason: str = ""
    detail: str = ""
    incomplete: tuple[str, ...] = ()
    holdouts: str = ""

    def __str__(self) -> str:
        """Return it as one line, as at the end of the run."""
        head = f"{self.job} run {self.run}" if self.run else "no run"
        if self.energy_j is None:
            return f"{head}: not measured: {self.detail}"
        head += f" {SIMULATED}" if self.is_simulated else ""
        notes = dict.fromkeys(_NOTES.get(code, _NOT_ALL_MEASURED) for code in self.incomplete)
        outcome = f"{head}{'' if self.is_final else ', so far'}: {', '.join([*_amounts(self), self.outcome])}"
        parts = [outcome, *(note for note in notes if note != self.detail), self.holdouts]
        return "; ".join(part for part in parts if part)

    @property
    def outcome(self) -> str:
        """Return what was saved and for how much more time, each with its interval, or why that is not known."""
        if self.reason == "too_early":
            return self.detail
        if self.evidence == "nothing_changed" or self.reason == "no_iterations":
            would, half = self.would_save_ratio, self.would_save_ci90_ratio
            if would is None or half is None:
                return f"nothing saved: {self.detail}"
            return f"nothing saved: {self.detail}; the plan would have saved about {percent(would, half)}"
        return f"what was saved is not known: {self.detail}" if self.reason else _changes(self)


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
    known = known_ratios(record)
    is_carbon = record.carbon_g is not None and record.baseline_carbon_g is not None
    names = {"saved_energy": "saved_energy", "slowdown": "slowdown"}
    if is_carbon or record.cost is not None:
        names["saved"] = "saved_carbon" if is_carbon else "saved_cost"
    numbers: dict[str, Any] = {}
    for field in names.keys() & known.keys():
        numbers[f"{names[field]}_ratio"], numbers[f"{names[field]}_ci90_ratio"] = known[field]
    reason, detail = _why_nothing_saved(record, is_known="saved_energy" in known)
    used = RunSummary(
        job=job,
        run=run,
        is_final=record.final,
        is_simulated=SIMULATED in record.gpu_model,
        energy_j=record.energy_j,
        duration_s=record.duration_s,
        iterations=record.iterations,
        carbon_g=record.carbon_g,
        cost=record.cost,
        currency=record.currency,
        evidence=record.evidence,
        would_save_ratio=record.would_save_ratio,
        would_save_ci90_ratio=record.would_save_ci90_ratio,
        reason=reason,
        detail=detail,
        incomplete=_incomplete(record),
        holdouts=describe_holdouts(record),
    )
    return replace(used, **numbers)


def percent(ratio: float, ci90_ratio: float, of: str = "") -> str:
    """Return a share of something with the half-width of its 90 % interval, which is rounded up.

    >>> percent(0.1132, 0.0021, "energy"), percent(0.0213, 0.0004, "more time"), percent(-0.0004, 0.003)
    ('11.3 % energy (±0.3)', '2.13 % more time (±0.04)', '0.0 % (±0.3)')
    """
    decimals = _decimals(ci90_ratio)
    # Records are rounded to 0.01 %: an interval that was measured is never less.
    half = max(math.ceil(round(100 * ci90_ratio * 10**decimals, 6)), 1) / 10**decimals
    return f"{100 * ratio:z.{decimals}f} %{' ' if of else ''}{of} (±{half:.{decimals}f})"


def explained(code: str, detail: str = "") -> tuple[str, str]:
    """Return a code with its sentence: ours where there is one, else the given one."""
    return code, _DETAILS.get(code) or printable_line(detail or code, max_characters=_MAX_DETAIL)


OFF: Final = RunSummary(reason="off", detail=_DETAILS["off"])
"""That of a publisher that publishes nothing."""


def _why_nothing_saved(record: RunEnergy, *, is_known: bool) -> tuple[str, str]:
    """Return why no saving is told of a run that was measured; empty texts where one is."""
    evidence = record.evidence
    if not record.iterations and record.energy_j and evidence in {None, "too_early", "nothing_changed"}:
        return explained("no_iterations")
    if is_known and evidence == "measured":
        return "", ""
    if evidence == "nothing_changed" and record.duration_s < _SHORT_S and record.reason in _NOT_YET:
        return explained("too_short")
    if is_known and record.reason in _NEVER_LOWERED:
        return explained(record.reason, record.detail or "")
    if evidence is None or (evidence in KNOWN_EVIDENCE and not is_known):
        return explained("too_early" if record.saved_ratio is None else "no_interval")
    return explained(evidence)


def _incomplete(record: RunEnergy) -> tuple[str, ...]:
    is_without_signal = record.reason in {"signal_absent", "signal_stale"} and record.carbon_g is record.cost is None
    return (*record.incomplete, *((_NO_SIGNAL,) if is_without_signal else ()))


def _amounts(summary: RunSummary) -> list[str]:
    """Return what was used: energy, carbon, cost."""
    amounts = [energy_text(summary.energy_j or 0.0)]
    if summary.carbon_g is not None:
        amounts.append(carbon_text(summary.carbon_g))
    if summary.cost is not None:
        amounts.append(money_text(summary.cost, summary.currency))
    return amounts


def _changes(summary: RunSummary) -> str:
    """Return what was saved, or used more, and the change of time."""
    saved, more, time = [], [], ""
    for name in ("energy", "carbon", "cost"):
        ratio, ci90_ratio = getattr(summary, f"saved_{name}_ratio"), getattr(summary, f"saved_{name}_ci90_ratio")
        if ratio is not None and _is_negative(ratio, ci90_ratio):
            more.append(percent(-ratio, ci90_ratio, f"more {name}"))
        elif ratio is not None:
            saved.append(percent(ratio, ci90_ratio, name))
    if summary.slowdown_ratio is not None and summary.slowdown_ci90_ratio is not None:
        ratio, ci90_ratio = summary.slowdown_ratio - 1, summary.slowdown_ci90_ratio
        word, of = ("in", "less time") if _is_negative(ratio, ci90_ratio) else ("for", "more time")
        time = f" {word} {percent(abs(ratio), ci90_ratio, of)}"
    parts = [f"{verb} {_listed(texts)}" for verb, texts in (("saved", saved), ("used", more)) if texts]
    return f"{', '.join(parts)}{time}"


def _is_negative(ratio: float, ci90_ratio: float) -> bool:
    """Return whether a share is below 0 as it is shown."""
    return round(100 * ratio, _decimals(ci90_ratio)) < 0


def _decimals(ci90_ratio: float) -> int:
    """Return how many decimals a percentage with this interval has."""
    return 2 if ci90_ratio < _FINE_CI90_RATIO else 1


def _listed(parts: list[str]) -> str:
    """Return `a`, `a and b`, or `a, b and c`."""
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
