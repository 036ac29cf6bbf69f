"""The inputs of the plan replay: a measured curve from a power trace, and signals from files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Final

import numpy as np

from controller.demo.recurrences.trace_files import read_power, repeated_names
from controller.gpu.simulation.measured_curve import A40_RESNET50, load_curve
from policies.providers.base import SignalFileError
from policies.providers.sources.csv_file import CARBON_UNIT, Trace, read_trace
from policies.replay.power_limit.scenario import Scenario
from policies.replay.traces import JOBS, Identity
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.signal import Signal

SAMPLES: Final = {spec.dataset: spec.n_samples for spec in JOBS}
ASSUMED_ITERATIONS: Final = 1_000.0
"""Per epoch, if unknown; only the length of a sweep depends on it."""
MIN_LIMITS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveSelection:
    """Which curve of a trace of power: the workload (dataset/network), and more if that is ambiguous."""

    workload: str | None = None
    batch_size: int | None = None
    optimizer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Power beside the GPU: that of the rest of the machine [W], and the building's per watt of the machine (PUE)."""

    host_power_w: float
    pue: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalFile:
    """The signal of a file, its usual step [s], and a description of its gaps, "" if there are none."""

    signal: Signal
    step_s: float
    losses: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCurve:
    """A measured curve with a readable name."""

    name: str
    profile: PowerProfile


def read_curve(path: Path, selection: CurveSelection, faults: list[str]) -> NamedCurve | None:
    """Return the selected curve of a file; None, with the reason added to `faults`, if there is not exactly one."""
    trace = read_power(path, faults)
    if trace is None:
        return None
    found = [key for key in trace.curves() if _matches(key, selection)]
    if len(found) != 1:
        what = "is more than one" if found else "is not there"
        way_out = f"; say which with {_distinguishing_options(found)}" if found else ""
        faults.append(
            f"{path}: {_selection_text(selection)} {what}; there are {_listed(found or list(trace.curves()))}{way_out}"
        )
        return None
    (identity, batch_size) = found[0]
    n_samples = SAMPLES.get(identity[0])
    profile = trace.profile(identity, batch_size, ASSUMED_ITERATIONS if n_samples is None else n_samples / batch_size)
    if len(profile.points) < MIN_LIMITS:
        faults.append(f"{path}: {_selection_text(selection)} has 1 power limit: must be at least {MIN_LIMITS}")
    return NamedCurve(name=f"{'/'.join(identity[:2])}, batch size {batch_size}, {trace.name}", profile=profile)


def included_curve(selection: CurveSelection, faults: list[str]) -> NamedCurve:
    """Return the curve of the demo; a fault is added to `faults` where another one is selected."""
    if selection != CurveSelection():
        faults.append(f"{_selection_text(selection)}: selects a curve of --power FILE, which is missing")
    curve = load_curve(A40_RESNET50)
    rows = zip(curve.power_limits_w, curve.powers_w, curve.speeds_per_s, strict=True)
    return NamedCurve(name=f"{curve.workload}, {curve.model}", profile=PowerProfile.from_rows(rows))


def _matches(key: tuple[Identity, int], selection: CurveSelection) -> bool:
    (dataset, network, optimizer), size = key
    return (
        selection.workload in {None, f"{dataset}/{network}"}
        and selection.batch_size in {None, size}
        and selection.optimizer in {None, optimizer}
    )


def _listed(keys: Sequence[tuple[Identity, int]]) -> str:
    sizes: dict[Identity, list[str]] = {}
    for identity, size in keys:
        sizes.setdefault(identity, []).append(str(size))
    return "; ".join(f"{'/'.join(key[:2])} ({key[2]}) at {', '.join(texts)}" for key, texts in sizes.items())


def _distinguishing_options(keys: Sequence[tuple[Identity, int]]) -> str:
    """Return the fewest options that tell some curves apart."""
    values = {
        "--workload": [identity[:2] for identity, _ in keys],
        "--batch-size": [size for _, size in keys],
        "--optimizer": [identity[2] for identity, _ in keys],
    }
    choices = (names for n in range(1, len(values) + 1) for names in combinations(values, n))
    return " and ".join(
        next(names for names in choices if len(set(zip(*map(values.get, names), strict=True))) == len(keys))
    )


def _selection_text(selection: CurveSelection) -> str:
    parts = (
        selection.workload and f"--workload {selection.workload}",
        selection.batch_size and f"--batch-size {selection.batch_size}",
        selection.optimizer and f"--optimizer {selection.optimizer}",
    )
    return " ".join(part for part in parts if part) or "a workload without --workload"


def read_signals(paths: Sequence[Path], faults: list[str]) -> list[SignalFile]:
    """Return the signals in files; add the faults of all files to `faults`."""
    readings = []
    for path in paths:
        try:
            trace = read_trace(path)
        except SignalFileError as error:
            faults += error.faults
            continue
        if np.isnan(trace.values).all():
            faults.append(f"{path}: has no value at all")
            continue
        readings.append(SignalFile(signal=trace.as_signal(path), step_s=trace.step_s, losses=_losses_text(trace)))
    faults += _mixed(paths, readings)
    return readings


def _losses_text(trace: Trace) -> str:
    """Return the text of missing values, with their share of the time: a gap may be an hour, or a year."""
    if not trace.losses:
        return ""
    # Some sources write 0 for unknown values. A reader who finds no empty cell in the file must know what was counted.
    what = " (carbon that is not above 0 is missing)" if trace.n_missing and trace.unit == CARBON_UNIT else ""
    spans_s = np.diff(np.append(trace.starts_s, trace.ends_s))
    share_ratio = spans_s[np.isnan(trace.values)].sum() / spans_s.sum()
    return f"{trace.losses}{what}, {100 * share_ratio:.3g} % of its time"


def scenario_of(curve: NamedCurve, signal: Signal, overhead: Overhead) -> Scenario:
    """Return the curve and a signal as the building sees them; the scenario's name is the signal's zone."""
    return Scenario(
        profile=curve.profile.with_overhead(overhead.host_power_w, overhead.pue),
        signal=signal,
        limit_power_w=overhead.pue * (curve.profile.fastest.power_limit_w + overhead.host_power_w),
    )


def _mixed(paths: Sequence[Path], readings: Sequence[SignalFile]) -> Iterator[str]:
    units = sorted({reading.signal.unit for reading in readings})
    if len(units) > 1:
        yield f"--signal: {' and '.join(units)} have no common mean: replay them separately"
    yield from repeated_names(paths)
