"""Recurring jobs from trace files: the included ones (`traces/`), and others in the format of Zeus."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from controller.errors import ConfigError
from policies.replay.batch_size.workload import Workload, workloads_of
from policies.replay.traces import PowerTrace, TraceError, TrainTrace, parse_power, parse_train

INCLUDED: Final = Path(__file__).parent / "traces"


def included_workloads() -> list[Workload]:
    """Return the three included jobs, measured on a V100: CIFAR-100, LibriSpeech, MovieLens-1M."""
    return read_workloads(INCLUDED / "train.csv", [INCLUDED / "v100.csv"])


def read_workloads(train: Path, powers: Sequence[Path]) -> list[Workload]:
    """Return the jobs that are in the trace of training runs and in a trace of power, one for each such pair.

    Raises:
        ConfigError: with every fault of every file.
    """
    faults: list[str] = []
    trained = _read_train(train, faults)
    measured = [read_power(path, faults) for path in powers]
    faults += repeated_names(powers)
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
    """Return the trace of power in a file; None, with its faults added to `faults`, if it is wrong.

    Rows without a measurement are left out, which is printed to standard error.
    """
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
        print(f"{path}: {rows} no time_per_epoch or average_power and are left out", file=sys.stderr)
    return trace


def _read(path: Path, faults: list[str]) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        faults.append(f"{path}: {error.strerror}")
    except UnicodeDecodeError as error:
        faults.append(f"{path}: is not UTF-8 text: {error}")
    return None


def repeated_names(paths: Sequence[Path]) -> Iterator[str]:
    """Yield a fault for each file that has the name of an earlier one, since reports name workloads by file."""
    for index, path in enumerate(paths):
        if path.stem in {earlier.stem for earlier in paths[:index]}:
            yield f"{path}: another file has this name, which reports use to tell them apart: rename one"
