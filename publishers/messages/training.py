"""The messages that training processes publish, and the answer of the policy service: MessagePack."""

import math
import operator
from array import array
from sys import byteorder
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from publishers.messages.codec import (
    MAX_BINARY_BYTES,
    Amount,
    BatchSize,
    Count,
    GpuRef,
    IterationTimeS,
    Name,
    Number,
    PackedMessage,
    Sentence,
    Text,
    TimeNs,
    TimeS,
    TopicText,
)

_BYTES_PER_END: Final = 8
MAX_ITERATIONS: Final = MAX_BINARY_BYTES // _BYTES_PER_END
MAX_WORK: Final = 1e15
"""Of one iteration, in whatever unit."""
MAX_CANDIDATES: Final = 256
BatchSizes = Annotated[list[BatchSize], Meta(max_length=MAX_CANDIDATES)]
CountedBy = Literal["callback", "caller", "optimizer", "waiter", "loader"]
"""What told the publisher that an iteration has ended; see `Iterations`."""


class RankStatus(PackedMessage, frozen=True, kw_only=True):
    """A training process: retained, re-sent every `heartbeat_s`; also its last will, with state `lost`.

    `time_s` is when it was made: of a last will when the process began to publish. `total_iterations` is how many
    iterations this process will publish in all, as `Iterations.first` counts them, without those of a process before
    it. It may be an estimate that is corrected; None: unknown. `pid_namespace` is the number of the process's pid
    namespace, within which its `pid` counts (`stat -L -c %i /proc/self/ns/pid`). `time_limit_s` is when the scheduler
    ends the process at the latest. `has_iterations`: False while it has published none, and perhaps never will: its
    energy is measured all the same, as in a pause. `in_pause`: the training says that it does something else than to
    iterate (a validation, a checkpoint), and will go on. A `pausable` one waits between two iterations when its
    controller asks for it, `max_pause_s` at a time: now since `paused_since_ns`, and before for `paused_s`. `launch` is
    the id of the `gridchase run` that the process is below; None where a launcher or the user says which run it is of.
    `work_unit` is what `Iterations.work` is counted in, a word like `tokens`; `total_work` is how much of it this
    process will do in all, counted as `total_iterations` is.
    """

    run: Name
    state: Literal["running", "finished", "lost"]
    host: Text
    boot_id: Text
    pid: Count
    gpus: Annotated[list[GpuRef], Meta(max_length=64)]
    world_size: Annotated[int, Meta(ge=1, le=65_536)]
    started_at_s: TimeS
    heartbeat_s: Annotated[float, Meta(gt=0, le=86_400)]
    batch_size: BatchSize | None = None
    reached: bool | None = None
    total_iterations: Count | None = None
    time_s: TimeS | None = None
    pid_namespace: Count | None = None
    time_limit_s: TimeS | None = None
    has_iterations: bool = True
    in_pause: bool = False
    pausable: bool = False
    max_pause_s: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    paused_since_ns: TimeNs | None = None
    paused_s: Amount | None = None
    launch: Name | None = None
    work_unit: Name | None = None
    total_work: Annotated[float, Meta(gt=0, le=1e18)] | None = None


class Iterations(PackedMessage, frozen=True, kw_only=True):
    """Consecutive iterations without a gap: iteration k lasted from end to end, the first from `begin_ns`.

    `seq` numbers the messages and `first` the iterations, so that a gap is seen; `dropped` counts the iterations lost
    so far. A pause that the publisher knows of (validation, checkpoint) ends a message; the next one has its own
    `begin_ns`.

    `counted_by`: how iterations were told apart. An end is the end of an optimizer step where a framework's callback
    (`callback`), the training code (`caller`), PyTorch's optimizers (`optimizer`) or the output of a step (`waiter`)
    told it. `loader`: only the data loader was seen; an end is the request for the next batch.

    `request_ns` is when the training asked its data loader for the first batch of each iteration, `received_ns` when it
    got it: from the end before to the request is where a pause can be; from request to receipt the training waited for
    data. Both are packed as `end_ns`; empty: not known.

    `work` is how much work each iteration was, for example how many tokens: a little-endian float64 each, NaN where it
    is not known; empty: of none.
    """

    run: Name
    seq: Count
    first: Count
    begin_ns: TimeNs
    end_ns: bytes
    epoch: Count
    dropped: Count
    counted_by: CountedBy = "loader"
    request_ns: bytes = b""
    received_ns: bytes = b""
    work: bytes = b""

    def __post_init__(self) -> None:
        """Check the arrays: ends whole, not empty, not too long, never going backwards; others within iterations."""
        n, rest = divmod(len(self.end_ns), _BYTES_PER_END)
        if rest or not 1 <= n <= MAX_ITERATIONS:
            raise ValueError(
                f"end_ns has {len(self.end_ns)} bytes: must be 8 for each of 1 to {MAX_ITERATIONS} iterations"
            )
        ends = self.ends_ns().tolist()
        # Sorting a sorted list is the fastest check that CPython has: about 10 ns an iteration.
        if ends[0] < self.begin_ns or ends != sorted(ends):
            raise ValueError("end_ns goes backwards in time")
        for name, packed in (("request_ns", self.request_ns), ("received_ns", self.received_ns)):
            if packed:
                self._check_within(name, packed, ends)
        self._check_length("work", self.work)

    def ends_ns(self) -> "array[int]":
        """Return the end of each iteration, shape (n_iterations,) [ns]."""
        return _unpacked(self.end_ns)

    def requests_ns(self) -> "array[int] | None":
        """Return when the first batch of each iteration was asked for, shape (n_iterations,) [ns]; None: not known."""
        return _unpacked(self.request_ns) if self.request_ns else None

    def received_times_ns(self) -> "array[int] | None":
        """Return when the first batch of each iteration was there, shape (n_iterations,) [ns]; None: not known."""
        return _unpacked(self.received_ns) if self.received_ns else None

    def amounts_of_work(self) -> "array[float] | None":
        """Return how much work each iteration was, shape (n_iterations,); None: not known."""
        if not self.work:
            return None
        amounts = array("d")
        amounts.frombytes(self.work)
        if byteorder == "big":
            amounts.byteswap()
        return amounts

    def _check_length(self, name: str, packed: bytes) -> None:
        if packed and len(packed) != len(self.end_ns):
            raise ValueError(f"{name} has {len(packed)} bytes: must be as many as end_ns, {len(self.end_ns)}, or none")

    def _check_within(self, name: str, packed: bytes, ends_ns: list[int]) -> None:
        self._check_length(name, packed)
        times_ns = _unpacked(packed)
        if any(map(operator.gt, (self.begin_ns, *ends_ns), times_ns)) or any(map(operator.gt, times_ns, ends_ns)):
            raise ValueError(f"{name} is not within its iteration")


class Metric(PackedMessage, frozen=True, kw_only=True):
    """A validation metric after an epoch, and whether it has reached its target."""

    run: Name
    epoch: Count
    value: Number
    reached: bool


class TrialRequest(PackedMessage, frozen=True, kw_only=True):
    """A run asks the policy service which batch size to use; the answer goes to `reply_to`, with `correlation`.

    `reply_to` is a topic of the same run. Each repetition has a correlation of its own; the answers are the same.
    """

    run: Name
    reply_to: TopicText
    correlation: Text
    batch_sizes: Annotated[list[BatchSize], Meta(min_length=1, max_length=256)]
    default_batch_size: BatchSize


class TrialAnswer(PackedMessage, frozen=True, kw_only=True):
    """The policy service's answer: the batch size of the run; `reason` is a stable code, `detail` a sentence.

    Without `lease_s` and `recurrence` nothing is learned from this run; `reason` is why.
    `untimed` are the batch sizes whose speed the service does not know: the run may time them, see `TrialTimes`.
    """

    run: Name
    correlation: Text
    batch_size: BatchSize
    reason: Name
    detail: Sentence
    recurrence: Count | None = None
    cost_bound: Amount | None = None
    lease_s: Annotated[float, Meta(gt=0, le=1e8)] | None = None
    untimed: BatchSizes = msgspec.field(default_factory=list)


class TrialTimes(PackedMessage, frozen=True, kw_only=True):
    """How long an iteration takes at some batch sizes, timed by the run before its training.

    `too_large` is the smallest batch size that did not fit the memory; larger ones were not timed. Where the batch size
    of the answer is among those, `batch_size` is what the run uses instead.
    """

    run: Name
    batch_sizes: BatchSizes
    iteration_times_s: Annotated[list[IterationTimeS], Meta(max_length=MAX_CANDIDATES)]
    too_large: BatchSize | None = None
    batch_size: BatchSize | None = None

    def __post_init__(self) -> None:
        """Check that there is one time for each batch size, finite and above 0, and that all of them fit the memory."""
        sizes, times_s = self.batch_sizes, self.iteration_times_s
        if len(times_s) != len(sizes) or len(set(sizes)) != len(sizes):
            raise ValueError(f"{len(times_s)} times of batch sizes {sizes}: must be one of each, each once")
        if not all(0 < time_s < math.inf for time_s in times_s):
            raise ValueError(f"iteration_times_s = {times_s}: must be finite, and above 0")
        if self.too_large is not None and not all(size < self.too_large for size in (*sizes, self.batch_size or 0)):
            raise ValueError(f"batch sizes {sizes}, {self.batch_size}: must be below too_large = {self.too_large}")


class TrialFailure(PackedMessage, frozen=True, kw_only=True):
    """The run cannot run at its batch size, for example because memory runs out: that size is not proposed again."""

    run: Name
    batch_size: BatchSize
    reason: Name
    detail: Sentence = ""


def _unpacked(packed: bytes) -> "array[int]":
    times_ns = array("q")
    times_ns.frombytes(packed)
    if byteorder == "big":
        times_ns.byteswap()
    return times_ns


def pack_ends(ends_ns: "array[int]") -> bytes:
    """Return the ends of iterations, or their requests, as they travel: little-endian int64."""
    if byteorder == "big":
        ends_ns = array("q", ends_ns)
        ends_ns.byteswap()
    return ends_ns.tobytes()


def pack_work(amounts: "array[float]") -> bytes:
    """Return how much work iterations were, as it travels: little-endian float64."""
    if byteorder == "big":
        amounts = array("d", amounts)
        amounts.byteswap()
    return amounts.tobytes()
