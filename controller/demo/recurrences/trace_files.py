"""Recurring jobs from trace files: those that come along (`recurring/`), and any other in the format of Zeus's."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from controller.errors import ConfigError
from policies.replay.batch_size.workload import Workload
from policies.replay.traces import PowerTrace, TraceError, TrainTrace, parse_power, parse_train, workloads_of

CARRIED: Final = Path(__file__).parent / "recurring"


def carried_workloads() -> list[Workload]:
    """Return the three jobs that come along, measured on a V100: CIFAR-100, LibriSpeech, MovieLens-1M."""
    return read_workloads(CARRIED / "train.csv", [CARRIED / "v100.csv"])


def read_workloads(train: Path, powers: Sequence[Path]) -> list[Workload]:
    """Return the jobs that are in the trace of training runs and in each of those of power; their names say which.

    Raises:
        ConfigError: with every fault of every file.
    """
    faults: list[str] = []
    trained = _read_train(train, faults)
    measured = [read_power(path, faults) for path in powers]
    faults += [
        f"{path}: another file has this name, by which reports tell them apart: rename one"
        for path in _repeated(powers)
    ]
    workloads: list[Workload] = []
    for power in measured:
        if trained is None or power is None:
            continue
        try:
            workloads += workloads_of(trained, power)
        except TraceError as error:
            faults += error.faults
    if faults:
        raise ConfigError(faults)
    return workloads


def _read_train(path: Path, faults: list[str]) -> TrainTrace | None:
    text = _read(path, faults)
    try:
        return None if text is None else parse_train(str(path), text)
    except TraceError as error:
        faults += error.faults
        return None


def read_power(path: Path, faults: list[str]) -> PowerTrace | None:
    """Return the trace of power in a file, or None after telling its faults; say on stderr what is left out."""
    text = _read(path, faults)
    if text is None:
        return None
    try:
        trace = parse_power(str(path), text)
    except TraceError as error:
        faults += error.faults
        return None
    if trace.n_unmeasured:
        rows = "1 row has" if trace.n_unmeasured == 1 else f"{trace.n_unmeasured:,} rows have"
        print(f"{path}: {rows} no time_per_epoch or average_power and cannot be used: left out", file=sys.stderr)
    return trace


def _read(path: Path, faults: list[str]) -> str | None:
    """Return the text of a file, or None where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        faults.append(f"{path}: {error.strerror}")
    except UnicodeDecodeError as error:
        faults.append(f"{path}: is not UTF-8 text: {error}")
    return None


def _repeated(paths: Sequence[Path]) -> list[Path]:
    """Return the paths whose stem is that of an earlier one: their workloads would have one name."""
    return [path for index, path in enumerate(paths) if path.stem in {other.stem for other in paths[:index]}]
