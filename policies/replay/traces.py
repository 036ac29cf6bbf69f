"""Traces of training runs and of power in the format of Zeus: parses their text and reports every fault at once.

    # comments may stand before the header: the source, the licence
    dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch
    cifar100,shufflenetv2,1024,adadelta,1e-1,1,0.6,74

    dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power
    cifar100,shufflenetv2,1024,adadelta,100,11.28,86.9

A `target_epoch` that is empty or `nan` is a run that never reached that target. A `time_per_epoch` or `average_power`
that is empty or `nan` was not measured: its row is left out, and counted. Units: W, seconds per epoch, W.

The jobs are the six of the Zeus paper's evaluation (arXiv:2208.06102, table 1), with the targets, epoch bounds and
default batch sizes of Zeus 0.3 (github.com/SymbioticLab/Zeus, examples/trace_driven/run_alibaba.py,
`get_job_with_defaults`; Apache-2.0). Samples per epoch are those of the published training sets: CIFAR-100 (50,000
images), ILSVRC 2012 (1,281,167), SQuAD 1.1 (87,599 questions), LibriSpeech (281,241 utterances of its 960 h),
MovieLens 1M (1,000,209 ratings; NCF adds negative samples) and Sentiment140 (1,600,000 tweets).
"""

import csv
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NewType, TypeVar

from policies.vocabulary.profile import PowerProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeusJob:
    """A job of the Zeus paper.

    Attributes:
        dataset, network, optimizer: as the traces name them.
        target: the validation metric to reach, in its own unit.
        max_epochs: when a run is given up.
        default: the batch size of its user; a GPU with less memory gets the largest that fits.
        n_samples: the samples of an epoch, at least.
    """

    dataset: str
    network: str
    optimizer: str
    target: float
    max_epochs: int
    default: int
    n_samples: int

    @property
    def name(self) -> str:
        """Return dataset and network."""
        return f"{self.dataset}/{self.network}"


JOBS: Final = tuple(
    ZeusJob(
        dataset=dataset,
        network=network,
        optimizer=optimizer,
        target=target,
        max_epochs=max_epochs,
        default=default,
        n_samples=n_samples,
    )
    for dataset, network, optimizer, target, max_epochs, default, n_samples in (
        ("cifar100", "shufflenetv2", "adadelta", 0.6, 100, 1024, 50_000),
        ("imagenet", "resnet50", "adadelta", 0.65, 100, 256, 1_281_167),
        ("squad", "bert_base_uncased", "adamw", 84.0, 6, 32, 87_599),
        ("librispeech", "deepspeech2", "adamw", 40.0, 16, 256, 281_241),
        ("movielens-1m", "ncf", "adam", 0.41, 100, 1024, 1_000_209),
        ("sentiment140", "bert_base_uncased", "adamw", 0.84, 10, 128, 1_600_000),
    )
)


TRAIN_COLUMNS: Final = (
    "dataset", "network", "batch_size", "optimizer", "learning_rate", "run", "target_metric", "target_epoch",
)  # fmt: skip
POWER_COLUMNS: Final = (
    "dataset", "network", "batch_size", "optimizer", "power_limit", "time_per_epoch", "average_power",
)  # fmt: skip
MEASURED_COLUMNS: Final = ("time_per_epoch", "average_power")
UNKNOWN: Final = ("", "nan", "na")
"""Cells without a number: the run did not reach its target, or the limit was not measured."""
MAX_FAULTS: Final = 20
"""A wrong column has a fault in every row."""

Row = dict[str, str]
Key = TypeVar("Key")
Cell = TypeVar("Cell")
Identity = tuple[str, str, str]
"""Dataset, network, optimizer."""
Metric = NewType("Metric", float)
"""A target in its own unit."""


class TraceError(ValueError):
    """Unusable traces; `faults` has each reason with its file and line."""

    def __init__(self, faults: Sequence[str]) -> None:
        n_more = len(faults) - MAX_FAULTS
        self.faults = (*faults[:MAX_FAULTS], *([f"and {n_more:,} more"] if n_more > 0 else []))
        super().__init__("; ".join(self.faults))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTrace:
    """Epochs to a target, by job, then by target, batch size and run; None: not reached."""

    source: str
    epochs: dict[Identity, dict[tuple[Metric, int], dict[str, float | None]]]

    def sizes_of(self, job: ZeusJob) -> set[int]:
        """Return the batch sizes of all runs of a job."""
        return {size for _, size in self.epochs.get(identity_of(job), {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerTrace:
    """Time per epoch [s] and average power [W], by job, then by batch size and power limit [W].

    `n_unmeasured` counts the rows that were left out because they have no time or no power.
    """

    source: str
    time_per_epoch_s: dict[Identity, dict[tuple[int, float], float]]
    average_power_w: dict[Identity, dict[tuple[int, float], float]]
    n_unmeasured: int = 0

    @property
    def name(self) -> str:
        """Return the file name without suffix."""
        return self.source.replace("\\", "/").rpartition("/")[2].removesuffix(".csv")

    def curves(self) -> Iterator[tuple[Identity, int]]:
        """Yield each job and batch size that was measured."""
        for identity, times_s in self.time_per_epoch_s.items():
            yield from ((identity, size) for size in sorted({size for size, _ in times_s}))

    def profile(self, identity: Identity, batch_size: int, iterations_per_epoch: float) -> PowerProfile:
        """Return the measured curve of a job at a batch size."""
        times_s, powers_w = self.time_per_epoch_s[identity], self.average_power_w[identity]
        return PowerProfile.from_rows(
            (limit_w, powers_w[size, limit_w], iterations_per_epoch / times_s[size, limit_w])
            for size, limit_w in sorted(times_s)
            if size == batch_size
        )

    def sizes_of(self, job: ZeusJob) -> set[int]:
        """Return the batch sizes at which the power of a job was measured."""
        return {size for size, _ in self.time_per_epoch_s.get(identity_of(job), {})}


def parse_train(source: str, text: str) -> TrainTrace:
    """Return a trace of training runs; raise `TraceError` with every fault."""
    faults: list[str] = []
    epochs: dict[Identity, dict[tuple[Metric, int], dict[str, float | None]]] = defaultdict(dict)
    for line, row in _rows(source, text, TRAIN_COLUMNS, faults):
        try:
            key = (Metric(_number(row, "target_metric", is_positive=False)), _batch_size(row))
            reached = None if row["target_epoch"].lower() in UNKNOWN else _number(row, "target_epoch")
            runs = epochs[_job(row)].setdefault(key, {})
            _insert(runs, row["run"], reached, f"run {row['run']} at batch size {key[1]} and target {key[0]:g}")
        except ValueError as error:
            faults.append(f"{source}:{line}: {error}")
    if faults:
        raise TraceError(faults)
    return TrainTrace(source=source, epochs=dict(epochs))


def parse_power(source: str, text: str) -> PowerTrace:
    """Return a trace of power; raise `TraceError` with every fault.

    A row without a measurement is none: it says as much of its limit as no row does, and nothing of the others.
    """
    faults: list[str] = []
    n_unmeasured = 0
    times_s: dict[Identity, dict[tuple[int, float], float]] = defaultdict(dict)
    powers_w: dict[Identity, dict[tuple[int, float], float]] = defaultdict(dict)
    for line, row in _rows(source, text, POWER_COLUMNS, faults):
        try:
            key = (_batch_size(row), _number(row, "power_limit"))
            if any(row[column].lower() in UNKNOWN for column in MEASURED_COLUMNS):
                n_unmeasured += 1
                continue
            time_s, power_w = _number(row, "time_per_epoch"), _number(row, "average_power")
            _insert(times_s[_job(row)], key, time_s, f"batch size {key[0]} at {key[1]:g} W")
            powers_w[_job(row)][key] = power_w
        except ValueError as error:
            faults.append(f"{source}:{line}: {error}")
    if faults:
        raise TraceError(faults)
    return PowerTrace(
        source=source,
        time_per_epoch_s=dict(times_s),
        average_power_w=dict(powers_w),
        n_unmeasured=n_unmeasured,
    )


def identity_of(job: ZeusJob) -> Identity:
    """Return how the traces identify a job."""
    return job.dataset, job.network, job.optimizer


def _rows(source: str, text: str, columns: tuple[str, ...], faults: list[str]) -> Iterator[tuple[int, Row]]:
    """Yield (line number, cells by column); add faults of the header and of the number of cells."""
    n_faults, header = len(faults), None
    for number, cells in _cells(source, text, faults):
        if header is None:
            header = cells
            lacking = [column for column in columns if column not in header]
            if lacking:
                faults.append(f"{source}:{number}: the header lacks {', '.join(lacking)}")
                return
        elif len(cells) != len(header):
            faults.append(f"{source}:{number}: {len(cells)} cells: must be {len(header)}, as in the header")
        else:
            yield number, dict(zip(header, cells, strict=True))
    if header is None and len(faults) == n_faults:
        faults.append(f"{source}: is empty: must begin with {','.join(columns)}")


def _cells(source: str, text: str, faults: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) from the header on; add unreadable lines to the faults."""
    in_comments = True
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        if not line.strip() or (in_comments and line.startswith("#")):
            continue
        try:
            cells = next(csv.reader([line]))
        except csv.Error as error:  # a cell beyond the module's limit of 131,072 characters
            faults.append(f"{source}:{number}: {error}")
            if in_comments:
                return
        else:
            yield number, [cell.strip() for cell in cells]
        in_comments = False


def _job(row: Row) -> Identity:
    return row["dataset"], row["network"], row["optimizer"]


def _insert(table: dict[Key, Cell], key: Key, cell: Cell, what: str) -> None:
    """Insert into a table; raise `ValueError` if the key exists."""
    if key in table:
        raise ValueError(f"{what} appears twice")
    table[key] = cell


def _batch_size(row: Row) -> int:
    text = row["batch_size"]
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"batch_size = {text!r}: must be a whole number of at least 1")
    return int(text)


def _number(row: Row, column: str, *, is_positive: bool = True) -> float:
    """Return a number; raise `ValueError` if it is invalid, not finite, or not above 0 where it must be."""
    try:
        number = float(row[column])
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or (is_positive and number <= 0):
        raise ValueError(f"{column} = {row[column]!r}: must be a finite number{' above 0' if is_positive else ''}")
    return number
