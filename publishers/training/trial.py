"""A question for a batch size: what is asked, how often, which answers count, and what comes of it."""

import math
import secrets
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from publishers.messages.codec import DecodeError, decode
from publishers.messages.topics import is_name
from publishers.messages.training import MAX_CANDIDATES, TrialAnswer, TrialFailure, TrialRequest
from publishers.training.coerce import to_float, to_text
from publishers.training.settings import MAX_BATCH_SIZE, to_int

ASK_AGAIN_S: Final = 1.0
LONGEST_TIMEOUT_S: Final = 3_600.0
_MAX_CORRELATIONS: Final = 64
"""Questions whose answer still counts: of one that was asked a minute ago nobody will hear any more."""
_LONGEST: Final = 40
_LONGEST_DETAIL: Final = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizeTrial:
    """The batch size that the policy service chose for a run.

    `reason` is a stable code and `detail` a sentence: how it was chosen. `recurrence` numbers the runs of the job. A
    run that costs more than `cost_bound` [J] is told to stop. `untimed` are the candidates whose speed was not known.
    """

    batch_size: int
    reason: str
    detail: str
    recurrence: int | None = None
    cost_bound: float | None = None
    untimed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizeOptions:
    """The arguments of a question, and everything that is wrong with them; the default is None where it is no size."""

    batch_sizes: list[int]
    default: int | None
    timeout_s: float
    faults: list[str]


def read_options(candidates: object, default: object, timeout_s: object) -> BatchSizeOptions:
    """Return the arguments in plain types; never raises, and takes no more of an endless iterable than it needs."""
    faults: list[str] = []
    sizes = _read_sizes(candidates, faults)
    own_default = _size(default)
    if own_default is None:
        faults.append(f"default = {to_text(default, _LONGEST)}: must be a whole number from 1 to {MAX_BATCH_SIZE}")
    elif sizes and own_default not in sizes:
        faults.append(f"default = {own_default}: must be one of the candidates, {sizes}")
    patience_s = to_float(timeout_s) or math.nan
    if not 0 < patience_s <= LONGEST_TIMEOUT_S:
        faults.append(
            f"timeout_s = {to_text(timeout_s, _LONGEST)}: must be above 0 and at most {LONGEST_TIMEOUT_S:g} s"
        )
    return BatchSizeOptions(batch_sizes=sizes, default=own_default, timeout_s=patience_s, faults=faults)


class BatchSizeRequest:
    """Asked on the sender's thread, awaited by the training's; it ends once, with an answer or without."""

    def __init__(self, choices: BatchSizeOptions, *, run: str, reply_to: str) -> None:
        self._batch_sizes = choices.batch_sizes
        self._default = choices.default or choices.batch_sizes[0]
        self._run = run
        self._reply_to = reply_to
        self._token = secrets.token_hex(8)
        self.n_asked = 0
        self._correlations: deque[str] = deque(maxlen=_MAX_CORRELATIONS)
        self._connection: int | None = None
        self._due_s = 0.0
        self._ended = threading.Event()
        self.trial: BatchSizeTrial | None = None
        self.why = "the broker has not answered"

    @property
    def ended(self) -> bool:
        """Return whether nothing more will come of it."""
        return self._ended.is_set()

    def wait(self, timeout_s: float) -> BatchSizeTrial | None:
        """Wait for the answer; without one, `why` says why."""
        try:
            if not self._ended.wait(timeout_s):
                self.why = f"{self.why} within {timeout_s:g} s"
        finally:
            self._ended.set()  # also where the wait was interrupted
        return self.trial

    def end(self, why: str) -> None:
        """End it without an answer."""
        if not self.ended:
            self.why = why
            self._ended.set()

    def next_request(self, now_s: float, connection: int) -> TrialRequest | None:
        """Return what to ask now: at once on each new connection, and then each second."""
        if self.ended or (connection == self._connection and now_s < self._due_s):
            return None
        self._connection, self._due_s = connection, now_s + ASK_AGAIN_S
        self.n_asked += 1
        self._correlations.append(f"{self._token}-{self.n_asked}")
        return TrialRequest(
            run=self._run,
            reply_to=self._reply_to,
            correlation=self._correlations[-1],
            batch_sizes=self._batch_sizes,
            default_batch_size=self._default,
        )

    def hear(self, payload: bytes) -> None:
        """Take an answer; what is malformed, for somebody else, or none of the candidates, is passed over."""
        try:
            answer = decode(payload, TrialAnswer)
        except DecodeError:
            return
        if self.ended or answer.run != self._run or answer.correlation not in self._correlations:
            return
        if answer.batch_size not in self._batch_sizes:
            self.why = f"the answer, {answer.batch_size}, is none of the candidates, and no other came"
            return
        self.trial = BatchSizeTrial(
            batch_size=answer.batch_size,
            reason=answer.reason,
            detail=answer.detail,
            recurrence=answer.recurrence,
            cost_bound=answer.cost_bound,
            untimed=tuple(sorted({*answer.untimed} & {*self._batch_sizes})),
        )
        self._ended.set()


def failure(*, run: str, batch_size: int, reason: object, detail: object) -> TrialFailure:
    """Return the message that a run cannot run at its batch size; a reason that is no code goes into the detail."""
    code, sentence = to_text(reason, _LONGEST_DETAIL), to_text(detail, _LONGEST_DETAIL)
    if not is_name(code):
        code, sentence = "failed", f"{code}: {sentence}"[:_LONGEST_DETAIL]
    return TrialFailure(run=run, batch_size=batch_size, reason=code, detail=sentence)


def is_out_of_memory(kind: type[BaseException]) -> bool:
    """Return whether an exception is Python's for want of memory, or one that calls itself so, as PyTorch's does."""
    return issubclass(kind, MemoryError) or is_out_of_device_memory(kind)


def is_out_of_device_memory(kind: type[BaseException]) -> bool:
    """Return whether an exception calls itself out of memory, as PyTorch's does for a GPU's.

    Python's own for want of memory is left out: it is about the host, and tells nothing of the batch size.
    """
    return any(base.__name__ == "OutOfMemoryError" for base in kind.__mro__)


def _read_sizes(candidates: object, faults: list[str]) -> list[int]:
    """Return the candidates, or none of them where one is wrong."""
    given = _listed(candidates)
    if given is None or len(given) > MAX_CANDIDATES:
        faults.append(
            f"candidates = {to_text(candidates, _LONGEST)}: must be a list of at most {MAX_CANDIDATES} numbers"
        )
        return []
    sizes = [size for size in map(_size, given) if size is not None]
    if not given or len(sizes) < len(given):
        faults.append(
            f"candidates = {to_text(candidates, _LONGEST)}: must be one or more "
            f"whole numbers from 1 to {MAX_BATCH_SIZE}"
        )
    elif len(set(sizes)) < len(sizes):
        faults.append(f"candidates = {to_text(sizes, _LONGEST)}: must be different from each other")
    else:
        return sizes
    return []


def _listed(candidates: object) -> list[object] | None:
    """Return the first candidates, one more than may be; None where they are no list of any kind."""
    if isinstance(candidates, str | bytes) or not isinstance(candidates, Iterable):
        return None
    try:
        return list(islice(candidates, MAX_CANDIDATES + 1))
    except Exception:  # noqa: BLE001 — somebody else's iterator may raise anything
        return None


def _size(value: object) -> int | None:
    size = to_int(value)
    return size if size is not None and 1 <= size <= MAX_BATCH_SIZE else None
