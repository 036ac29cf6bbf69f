"""The training side's client of the policy service: the query for a batch size.

The training's thread begins a query and waits; the worker's thread does the rest. They share no locks, only single
references.
"""

import logging
import math
import os
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from msgspec import Struct

from publishers.messages.codec import DecodeError, decode
from publishers.messages.topics import Topics, is_name
from publishers.messages.training import MAX_CANDIDATES, TrialAnswer, TrialFailure, TrialRequest
from publishers.mqtt.connection import Connection
from publishers.shared.printable import printable
from publishers.training.coerce import to_float, to_int, to_text
from publishers.training.settings import MAX_BATCH_SIZE, Settings

REQUEST_INTERVAL_S: Final = 1.0
MAX_TIMEOUT_S: Final = 3_600.0
MAX_FAILURES: Final = 2
"""Attempts to reach a broker that was never there: at once, and a second later, since it may be just starting."""
NOT_ANSWERED: Final = "the broker has not answered"
UNKNOWN_RUN: Final = "the ranks of this run have nothing to agree on its id by yet: ask later, or set GRIDCHASE_RUN"
_MAX_CORRELATIONS: Final = 64
"""Requests whose answer still counts: one of a minute ago will not be answered any more."""
_MAX_SHOWN: Final = 40
_MAX_DETAIL: Final = 1_024
_LOGGER: Final = logging.getLogger("publishers")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizeTrial:
    """The batch size that the policy service chose for a run.

    `reason` is a stable code and `detail` a sentence: how it was chosen. `recurrence` numbers the runs of the job. A
    run that costs more than `cost_bound` [J] is ordered to stop. `untimed` are candidates of unknown speed.
    """

    batch_size: int
    reason: str
    detail: str
    recurrence: int | None = None
    cost_bound: float | None = None
    untimed: tuple[int, ...] = ()


class BatchSizeOptions(Struct, frozen=True, kw_only=True):
    """The arguments of a query in plain types, and their faults; the default is None where it is no batch size."""

    batch_sizes: list[int]
    default: int | None
    timeout_s: float
    faults: list[str]


def read_options(candidates: object, default: object, timeout_s: object) -> BatchSizeOptions:
    """Return the arguments in plain types; never raises, and takes no more of an endless iterable than it needs."""
    faults: list[str] = []
    sizes = _read_sizes(candidates, faults)
    own_default = _read_size(default)
    if own_default is None:
        faults.append(f"default = {to_text(default, _MAX_SHOWN)}: must be a whole number from 1 to {MAX_BATCH_SIZE}")
    elif sizes and own_default not in sizes:
        faults.append(f"default = {own_default}: must be one of the candidates, {sizes}")
    plain_timeout_s = to_float(timeout_s) or math.nan
    if not 0 < plain_timeout_s <= MAX_TIMEOUT_S:
        faults.append(f"timeout_s = {to_text(timeout_s, _MAX_SHOWN)}: must be above 0 and at most {MAX_TIMEOUT_S:g} s")
    return BatchSizeOptions(batch_sizes=sizes, default=own_default, timeout_s=plain_timeout_s, faults=faults)


class BatchSizeQuery:
    """Sent by the worker's thread, awaited by the training's; it ends once, with an answer or without.

    Attributes:
        trial: the answer; None without one.
        why: why there is no answer, in a sentence.
    """

    def __init__(self, options: BatchSizeOptions, *, why: str) -> None:
        self._batch_sizes = options.batch_sizes
        self._default = options.default or options.batch_sizes[0]
        self._run = ""
        self._token = os.urandom(8).hex()
        self.n_requests = 0
        self._correlations: deque[str] = deque(maxlen=_MAX_CORRELATIONS)
        self._connection: int | None = None
        self._due_s = 0.0
        self._ended = threading.Event()
        self.trial: BatchSizeTrial | None = None
        self.why = why

    @property
    def ended(self) -> bool:
        """Return whether there is an answer, or no caller waits for one any more."""
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

    def next_request(self, now_s: float, connection: int, *, run: str, reply_to: str) -> TrialRequest | None:
        """Return the request of a run to send now: at once on each new connection, and then each second."""
        if self.ended or (connection == self._connection and now_s < self._due_s):
            return None
        self._connection, self._due_s = connection, now_s + REQUEST_INTERVAL_S
        self.n_requests += 1
        self._run = run
        self._correlations.append(f"{self._token}-{self.n_requests}")
        return TrialRequest(
            run=run,
            reply_to=reply_to,
            correlation=self._correlations[-1],
            batch_sizes=self._batch_sizes,
            default_batch_size=self._default,
        )

    def receive(self, payload: bytes) -> None:
        """Take an answer; one that is malformed, for another request, or not a candidate is ignored."""
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


class PolicyClient:
    """Asks the policy service for one run's batch size."""

    def __init__(self, settings: Settings) -> None:
        self.request_topic = self._answer_topic = self._run = ""
        self._broker_url = settings.broker.url
        self._latest: BatchSizeQuery | None = None
        self._active: BatchSizeQuery | None = None
        self._n_failures_before = 0

    def begin(self, settings: Settings) -> None:
        """Say which run it is, before the first subscription."""
        topics = Topics(settings.root)
        self.request_topic = topics.run(settings.key, "trial/request")
        self._answer_topic = topics.run(settings.key, "trial/answer")
        self._run = settings.run
        if self._latest is not None:
            self._latest.why = NOT_ANSWERED

    def ask(self, options: BatchSizeOptions) -> BatchSizeQuery:
        """Begin a query; the worker's thread sends it at its next turn. Of two at a time the later one counts."""
        previous, self._latest = self._latest, BatchSizeQuery(options, why=NOT_ANSWERED if self._run else UNKNOWN_RUN)
        if previous is not None:
            previous.end("a later query has replaced this one")
        return self._latest

    @property
    def has_query(self) -> bool:
        """Return whether somebody waits for an answer."""
        return self._latest is not None and not self._latest.ended

    @property
    def is_waiting(self) -> bool:
        """Return whether a query is open, so that the network should be watched."""
        return self._active is not None and not self._active.ended

    def subscribe(self, connection: Connection) -> None:
        """Subscribe to what is wanted, and let a new query try at once to reach a broker that is away."""
        query = self._latest
        if query is None or query is self._active:
            return
        if self._active is None:
            connection.subscribe(self._answer_topic, self._on_answer)
        self._active = query
        self._n_failures_before = connection.failures
        connection.retry_now()

    def next_request(self, connection: Connection, now_s: float) -> TrialRequest | None:
        """Return the request to send now, if any; end the query where no broker is to be expected."""
        query = self._active
        if query is None or query.ended:
            return None
        if not connection.is_connected():
            query.why = f"no connection to {self._broker_url}: {connection.failure or 'not connected'}"
            is_new = connection.connections == 0
            if is_new and connection.failures - self._n_failures_before >= MAX_FAILURES:
                query.end(query.why)
            return None
        if not connection.is_subscribed():
            return None  # the answer could come before the broker has the subscription
        request = query.next_request(now_s, connection.connections, run=self._run, reply_to=self._answer_topic)
        if request is not None and query.n_requests == 1:
            query.why = f"no policy service answers at {self._broker_url}"
        return request

    def end(self, why: str) -> None:
        """End the query, if there is one, without an answer."""
        if self._latest is not None:
            self._latest.end(why)

    def _on_answer(self, payload: bytes) -> None:
        if self._active is not None:
            self._active.receive(payload)


def wait_for_batch_size(query: BatchSizeQuery | None, options: BatchSizeOptions) -> tuple[BatchSizeTrial | None, str]:
    """Wait for the answer to a query, None: publishing has ended; return it, or None and why there is none."""
    if query is None:
        return None, "publishing is off, or closed"
    trial = query.wait(options.timeout_s)
    if trial is None:
        return None, query.why
    level = logging.INFO if trial.recurrence is not None else logging.WARNING  # nothing is learned from this run
    why = printable(f"{trial.reason}: {trial.detail}")
    _LOGGER.log(level, "batch size %d of %s: %s", trial.batch_size, options.batch_sizes, why)
    return trial, ""


def trial_failure(*, run: str, batch_size: int, reason: object, detail: object) -> TrialFailure:
    """Return the message that a run cannot run at its batch size; a reason that is no code goes into the detail."""
    code, sentence = to_text(reason, _MAX_DETAIL), to_text(detail, _MAX_DETAIL)
    if not is_name(code):
        code, sentence = "failed", f"{code}: {sentence}"[:_MAX_DETAIL]
    return TrialFailure(run=run, batch_size=batch_size, reason=code, detail=sentence)


def _read_sizes(candidates: object, faults: list[str]) -> list[int]:
    """Return the candidates, or none of them where one is wrong."""
    given = _read_list(candidates)
    shown = f"candidates = {to_text(candidates, _MAX_SHOWN)}"
    if given is None or len(given) > MAX_CANDIDATES:
        faults.append(f"{shown}: must be a list of at most {MAX_CANDIDATES} numbers")
        return []
    sizes = [size for size in map(_read_size, given) if size is not None]
    if not given or len(sizes) < len(given):
        faults.append(f"{shown}: must be one or more whole numbers from 1 to {MAX_BATCH_SIZE}")
    elif len(set(sizes)) < len(sizes):
        faults.append(f"candidates = {to_text(sizes, _MAX_SHOWN)}: must be different from each other")
    else:
        return sizes
    return []


def _read_list(candidates: object) -> list[object] | None:
    """Return the first candidates, one more than may be; None where they are no list of any kind."""
    if isinstance(candidates, str | bytes) or not isinstance(candidates, Iterable):
        return None
    try:
        return list(islice(candidates, MAX_CANDIDATES + 1))
    except Exception:  # noqa: BLE001 — somebody else's iterator may raise anything
        return None


def _read_size(value: object) -> int | None:
    size = to_int(value)
    return size if size is not None and 1 <= size <= MAX_BATCH_SIZE else None
