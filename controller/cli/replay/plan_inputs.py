"""What plans are replayed on: a measured curve of a trace of power, and signals from files; every fault at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Final

import numpy as np

from controller.demo.recurrences.trace_files import read_power
from policies.providers.base import SignalFileError
from policies.providers.sources.csv_file import CARBON_UNIT, Trace, read_trace
from policies.replay.power_limit.scenario import Scenario
from policies.replay.traces import JOBS, Identity, PowerTrace
from policies.vocabulary.profile import PowerProfile, ProfilePoint
from policies.vocabulary.signal import Signal

SAMPLES: Final = {spec.dataset: spec.n_samples for spec in JOBS}
ASSUMED_ITERATIONS: Final = 1_000.0
"""In an epoch, where nobody knows; only the length of a sweep hangs on it."""
MAX_PERIOD_S: Final = 3_600.0
MIN_LIMITS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveSelection:
    """Which curve of a trace of power: the workload (dataset/network), and more where that is not enough."""

    workload: str | None
    batch_size: int | None
    optimizer: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What stands around the GPU: the rest of the machine [W], and what the building draws per watt of it."""

    host_power_w: float
    pue: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalFile:
    """A signal of a file, with its usual step [s], and what its file lost, for people; empty where that is nothing."""

    signal: Signal
    step_s: float
    losses: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A signal with its name, the curve, and how often a run is planned [s]."""

    name: str
    scenario: Scenario
    period_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCurve:
    """A measured curve, and what people call it."""

    name: str
    profile: PowerProfile


def read_curve(path: Path, wanted: CurveSelection, faults: list[str]) -> NamedCurve | None:
    """Return the curve that is wanted of a file; tell what is wrong with either."""
    trace = read_power(path, faults)
    if trace is None:
        return None
    found = [key for key in _keys(trace) if _matches(key, wanted)]
    if len(found) != 1:
        what = "is more than one" if found else "is not there"
        way_out = f"; say which with {_telling_apart(found)}" if found else ""
        faults.append(f"{path}: {_asked(wanted)} {what}; there are {_listed(found or list(_keys(trace)))}{way_out}")
        return None
    (identity, batch_size) = found[0]
    profile = _profile(trace, identity, batch_size)
    if len(profile.points) < MIN_LIMITS:
        faults.append(f"{path}: {_asked(wanted)} has 1 power limit: must be at least {MIN_LIMITS}")
    return NamedCurve(name=f"{'/'.join(identity[:2])}, batch size {batch_size}, {trace.name}", profile=profile)


def _keys(trace: PowerTrace) -> Iterator[tuple[Identity, int]]:
    for identity, times_s in trace.time_per_epoch_s.items():
        yield from ((identity, size) for size in sorted({size for size, _ in times_s}))


def _matches(key: tuple[Identity, int], wanted: CurveSelection) -> bool:
    (dataset, network, optimizer), size = key
    return (
        wanted.workload in {None, f"{dataset}/{network}"}
        and wanted.batch_size in {None, size}
        and wanted.optimizer in {None, optimizer}
    )


def _listed(keys: Sequence[tuple[Identity, int]]) -> str:
    """Return workloads with their optimizer and batch sizes, for people."""
    sizes: dict[Identity, list[str]] = {}
    for identity, size in keys:
        sizes.setdefault(identity, []).append(str(size))
    return "; ".join(f"{'/'.join(key[:2])} ({key[2]}) at {', '.join(texts)}" for key, texts in sizes.items())


def _telling_apart(keys: Sequence[tuple[Identity, int]]) -> str:
    """Return the fewest options that name one of some curves, whichever it is."""
    values = {
        "--workload": [identity[:2] for identity, _ in keys],
        "--batch-size": [size for _, size in keys],
        "--optimizer": [identity[2] for identity, _ in keys],
    }
    choices = (names for n in range(1, len(values) + 1) for names in combinations(values, n))
    return " and ".join(
        next(names for names in choices if len(set(zip(*map(values.get, names), strict=True))) == len(keys))
    )


def _asked(wanted: CurveSelection) -> str:
    """Return what was asked for, for people."""
    parts = (
        wanted.workload and f"--workload {wanted.workload}",
        wanted.batch_size and f"--batch-size {wanted.batch_size}",
        wanted.optimizer and f"--optimizer {wanted.optimizer}",
    )
    return " ".join(part for part in parts if part) or "a workload without --workload"


def _profile(trace: PowerTrace, identity: Identity, batch_size: int) -> PowerProfile:
    n_samples = SAMPLES.get(identity[0])
    n_iterations = ASSUMED_ITERATIONS if n_samples is None else n_samples / batch_size
    times_s, powers_w = trace.time_per_epoch_s[identity], trace.average_power_w[identity]
    return PowerProfile(
        tuple(
            ProfilePoint(
                power_limit_w=limit_w,
                power_w=powers_w[size, limit_w],
                iterations_per_s=n_iterations / times_s[size, limit_w],
            )
            for size, limit_w in sorted(times_s)
            if size == batch_size
        )
    )


def read_signals(paths: Sequence[Path], faults: list[str]) -> list[SignalFile]:
    """Return the signals in files; tell every fault of every one."""
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
        readings.append(SignalFile(signal=trace.as_signal(path), step_s=trace.step_s, losses=_losses(trace)))
    faults += _mixed(paths, readings)
    return readings


def _losses(trace: Trace) -> str:
    """Return what is not there, with its share of the time: one gap may be an hour, or a year."""
    if not trace.losses:
        return ""
    # Sources write 0 where they do not know; who sees no empty cell in the file shall know what was counted.
    what = " (carbon that is not above 0 is missing)" if trace.n_missing and trace.unit == CARBON_UNIT else ""
    spans_s = np.diff(np.append(trace.starts_s, trace.ends_s))
    share_ratio = spans_s[np.isnan(trace.values)].sum() / spans_s.sum()
    return f"{trace.losses}{what}, {100 * share_ratio:.3g} % of its time"


def scene_of(curve: NamedCurve, reading: SignalFile, building: Overhead, period_s: float | None) -> Scene:
    """Return a signal with the curve as the building sees it.

    Without a period a run is planned at each step of its signal, at most an hour.
    """
    scenario = Scenario(
        profile=curve.profile.with_overhead(building.host_power_w, building.pue),
        signal=reading.signal,
        limit_power_w=building.pue * (curve.profile.fastest.power_limit_w + building.host_power_w),
    )
    return Scene(name=reading.signal.zone, scenario=scenario, period_s=period_s or min(reading.step_s, MAX_PERIOD_S))


def _mixed(paths: Sequence[Path], readings: Sequence[SignalFile]) -> Iterator[str]:
    """Yield why signals cannot stand side by side."""
    units = sorted({reading.signal.unit for reading in readings})
    if len(units) > 1:
        yield f"--signal: {' and '.join(units)} have no mean: replay them apart"
    for index, path in enumerate(paths):
        if path.stem in {other.stem for other in paths[:index]}:
            yield f"{path}: another file has this name, by which reports tell them apart: rename one"
