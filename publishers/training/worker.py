"""The publisher's own thread: sends what the training loop recorded, the status and the metrics.

The iterations on their way: taken from the recorder, published, and published again where the broker went away.

The publisher's own thread: takes what the training loop recorded, and says it on the bus.

It never touches the training loop: no locks are shared, nothing is raised, nothing is printed. While the broker is away
the recorder keeps the newest iterations; what it had to drop is counted in the next message.
"""

import logging
import operator
import os
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from publishers.messages.codec import Message, decode, encode
from publishers.messages.topics import Topics
from publishers.messages.training import Iterations, Metric, RankStatus, TrialTimes, pack_ends
from publishers.training.paho_client import Connection, Receipt, Will
from publishers.training.policy_client import PolicyClient
from publishers.training.progress import RunProgress
from publishers.training.recorder import Recorder, Segment
from publishers.training.settings import MAPS, Broker, Settings, has_loaded_cuda
from publishers.training.trial import BatchSizeOptions, BatchSizeRequest, failure

_MAX_SEGMENTS: Final = 64
"""Messages of one flush, and messages that may wait in the network before the next one."""


class IterationQueue:
    """The iterations of one rank of one run, in their order; what is lost is counted. Only the sender's thread uses it.

    `say` publishes a message and returns its receipt, or None where it cannot be encoded.
    """

    def __init__(
        self, recorder: Recorder, *, run: str, say: Callable[[Connection, Iterations], Receipt | None]
    ) -> None:
        self._recorder = recorder
        self._run = run
        self._say = say
        self._waiting: deque[tuple[Segment, int]] = deque()  # with the number of iterations dropped before it
        self._flying: deque[tuple[Receipt, Segment, int]] = deque()
        self._seq = self._next = self._dropped = 0

    @property
    def n_taken(self) -> int:
        """Return how many iterations have ended, as far as it has looked."""
        return self._next

    @property
    def is_flying(self) -> bool:
        """Return whether something has been sent of which it is not known whether it has left."""
        return bool(self._flying)

    def flush(self, connection: Connection) -> bool:
        """Publish what waits, as far as the network takes it; return whether there was anything."""
        if not self._waiting:
            self._take()
        n_before = len(self._waiting)
        while self._waiting and len(self._flying) < _MAX_SEGMENTS and connection.is_connected():
            self._send(connection, *self._waiting.popleft())
        return len(self._waiting) < n_before

    def settle(self) -> None:
        """Forget the messages that have left; those that are known not to have, because the broker went, go again."""
        again = []
        while self._flying and self._flying[0][0].done:
            receipt, segment, dropped = self._flying.popleft()
            if receipt.lost:
                again.append((segment, dropped))
        self._waiting.extendleft(reversed(again))

    def _take(self) -> None:
        """Take what was recorded, and count what was not kept."""
        for segment in self._recorder.take(_MAX_SEGMENTS):
            self._dropped += segment.first - self._next
            self._next = segment.first + len(segment.ends_ns)
            self._waiting.append((segment, self._dropped))

    def _send(self, connection: Connection, segment: Segment, dropped: int) -> None:
        try:
            message = Iterations(
                run=self._run,
                seq=self._seq,
                first=segment.first,
                begin_ns=operator.index(segment.begin_ns),  # a clock may count in integers of its own
                end_ns=pack_ends(array("q", segment.ends_ns)),
                epoch=segment.epoch,
                dropped=dropped,
            )
        except (ValueError, TypeError, OverflowError):  # a clock that goes backwards, or counts in something else
            self._dropped += len(segment.ends_ns)
            return
        receipt = self._say(connection, message)
        if receipt is None:
            self._dropped += len(segment.ends_ns)
            return
        self._seq += 1
        self._flying.append((receipt, segment, dropped))


Connect = Callable[[Broker, Will], Connection]

CLOSE_TIMEOUT_S: Final = 2.0
_MAX_EVENTS: Final = 256
"""Metrics, times and failures that wait while the broker is away."""
_POLL_S: Final = 0.05
_RETURN_S: Final = 0.2
"""How often a broker that was there before is tried at the end."""
_SEEK_S, _OFTEN_S = 1.0, 60.0
"""How often, and for how long so often, a process that names no GPU is looked at: then once a heartbeat."""
_LOGGER: Final = logging.getLogger("publishers")


class PublisherWorker:
    """Publishes one rank of one run. `close` may come from any thread; the rest is its own thread's business."""

    def __init__(
        self, settings: Settings, recorder: Recorder, length: RunProgress, *, connect: Connect, started_at_s: float
    ) -> None:
        """Prepare it.

        Raises:
            ValueError: the status is none that the bus takes.
        """
        self._settings = settings
        self._recorder = recorder
        self._length = length
        self._connect = connect
        self._status = decode(encode(settings.status(started_at_s=started_at_s)), RankStatus)
        self._gpus = self._status.gpus
        self._seeks_gpus = settings.gpus_are_guessed
        self._heartbeat_due_s = self._seek_due_s = 0.0
        self._seeks_often_until_s = time.monotonic() + _OFTEN_S
        self._reached: bool | None = None
        self.conversation = PolicyClient(settings)
        topics = Topics(settings.root)
        self._status_topic = topics.rank(settings.job, settings.run, settings.rank, "status")
        self._iterations_topic = topics.rank(settings.job, settings.run, settings.rank, "iterations")
        self._metric_topic = topics.run(settings.job, settings.run, "metric")
        self._times_topic = topics.run(settings.job, settings.run, "trial/times")
        self._failure_topic = topics.run(settings.job, settings.run, "trial/failure")
        self._events: deque[tuple[str, Message]] = deque(maxlen=_MAX_EVENTS)
        self._shipment = IterationQueue(recorder, run=settings.run, say=self._say_iterations)
        self._connections = self._epochs_before = 0
        self._is_hopeless = self._has_complained = self._has_told_length = False
        self._was_connected: bool | None = None
        self._pid = os.getpid()
        self._is_closing = self._is_broken_off = False
        self._woken = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"gridchase[{settings.job}]", daemon=True)

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: the system has no thread left for us.
        """
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Return whether it was closed, or lives on in another process than this one."""
        return self._is_closing or os.getpid() != self._pid

    @property
    def batch_size(self) -> int | None:
        """Return the samples of an iteration, where they are known."""
        return self._status.batch_size

    @property
    def has_trained(self) -> bool:
        """Return whether a whole epoch was trained at the present batch size, so that it fits the memory."""
        return self._recorder.n_epochs > self._epochs_before

    @property
    def run(self) -> str:
        """Return the id of the run."""
        return self._settings.run

    @property
    def rank(self) -> int:
        """Return which of the run's processes this is."""
        return self._settings.rank

    def ask(self, choices: BatchSizeOptions) -> BatchSizeRequest | None:
        """Ask for a batch size, at once; None where nobody can be asked any more."""
        if self.closed:
            return None
        question = self.conversation.ask(choices)
        self._woken.set()
        if self._ended.is_set():
            question.end("publishing has ended")
        return question

    def add_metric(self, metric: Metric) -> None:
        """Publish a metric soon; of many that wait, the oldest goes."""
        self._events.append((self._metric_topic, metric))

    def add_times(self, times: TrialTimes) -> None:
        """Publish soon how long iterations take."""
        self._events.append((self._times_topic, times))

    def add_failure(self, reason: object, detail: object) -> bool:
        """Publish soon that the run cannot run at its batch size; return whether that is known."""
        batch_size = self._status.batch_size
        if batch_size is None:
            return False
        message = failure(run=self._settings.run, batch_size=batch_size, reason=reason, detail=detail)
        self._events.append((self._failure_topic, message))
        return True

    def set_reached(self, reached: bool | None) -> None:
        """Let the end say whether the target was reached, unless it says so itself."""
        self._reached = reached

    def set_batch_size(self, batch_size: int) -> None:
        """Say a new batch size, at once where it changed."""
        if batch_size != self._status.batch_size:
            self._status = msgspec.structs.replace(self._status, batch_size=batch_size)
            self._heartbeat_due_s = 0.0
            self._epochs_before = self._recorder.n_epochs

    @property
    def is_at_its_end(self) -> bool:
        """Return whether the training has reached its target, or was told to stop."""
        return bool(self._reached) or self.conversation.stop_reason is not None

    def request_close(self, *, reached: bool | None, is_broken_off: bool = False, wakes: bool = True) -> None:
        """Let the thread publish what is left, and how the run ended: at its next flush, where no lock may be taken."""
        if not self.closed:
            if reached is not None:
                self._reached = reached
            self._is_broken_off, self._is_closing = is_broken_off, True
            if wakes:
                self._woken.set()

    def wait_closed(self, timeout_s: float) -> None:
        """Wait until everything has arrived; not at all where no broker was ever there."""
        if os.getpid() == self._pid and not self._is_hopeless:
            self._woken.set()
            self._ended.wait(max(0.0, timeout_s))

    def _run(self) -> None:
        try:
            self._seek_gpus()
            will = Will(topic=self._status_topic, payload=encode(self._present_status("lost")))
            connection = self._connect(self._settings.broker, will)
            while not self._is_closing:
                self._tick(connection)
                self._rest(connection)
            self._finish(connection)
        except (OSError, ValueError) as error:  # the file of certificate authorities is none
            _LOGGER.warning("publishing is off: %s: %s", self._settings.broker.url, error)
        except Exception:  # training goes on whatever is wrong with us; without this the thread would print
            _LOGGER.exception("publishing has ended by a fault of its own")
        finally:
            self._ended.set()
            self.conversation.end("publishing has ended")

    def _rest(self, connection: Connection) -> None:
        """Wait for the next flush; while a question is open, for what the network brings."""
        is_asking = self.conversation.waits
        if is_asking and connection.is_connected():
            connection.work(_POLL_S)
        else:
            self._woken.wait(min(_POLL_S, self._settings.flush_s) if is_asking else self._settings.flush_s)
            self._woken.clear()

    def _tick(self, connection: Connection) -> None:
        self.conversation.prepare(connection)
        connection.work()
        self._note_transition(connection)
        self._shipment.settle()
        if connection.is_connected():
            self._seek_gpus()
            self._say_status(connection)
        request = self.conversation.next_request(connection, time.monotonic())
        if request is not None:
            self._say(connection, self.conversation.request_topic, request, qos=1)
        if connection.is_connected():
            self._flush(connection)

    def _say_status(self, connection: Connection) -> None:
        """Say the status where it is due: at every connection, every heartbeat, and where it changed.

        The run's length may be corrected in each epoch, however short that is: only its first value is said at once.
        """
        now_s = time.monotonic()
        if not self._has_told_length and self._length.total_iterations is not None:
            self._has_told_length, self._heartbeat_due_s = True, 0.0
        if connection.connections != self._connections or now_s >= self._heartbeat_due_s:
            self._connections = connection.connections
            self._heartbeat_due_s = now_s + self._settings.heartbeat_s
            self._say(connection, self._status_topic, self._present_status("running"), qos=1, retain=True)

    def _seek_gpus(self) -> None:
        """Claim the GPUs that nobody named once the process has loaded CUDA: one on the CPU alone claims nobody's."""
        now_s = time.monotonic()
        if not self._seeks_gpus or now_s < self._seek_due_s:
            return
        self._seek_due_s = now_s + (_SEEK_S if now_s < self._seeks_often_until_s else self._settings.heartbeat_s)
        if has_loaded_cuda(MAPS):
            self._gpus, self._seeks_gpus = list(self._settings.gpus), False
            self._heartbeat_due_s = 0.0

    def _present_status(self, state: Literal["running", "finished", "lost"]) -> RankStatus:
        """Return the status with what is known now; another thread may set the batch size, so that stays apart."""
        reached = self._reached if state == "finished" else None
        total = self._length.total_iterations
        if total is not None and self._shipment.n_taken > total:  # it has proved wrong: nobody knows
            total = None
        return msgspec.structs.replace(
            self._status, state=state, gpus=self._gpus, reached=reached, total_iterations=total
        )

    def _flush(self, connection: Connection) -> bool:
        """Publish what waits, as far as the network takes it; return whether there was anything."""
        while self._events and connection.is_connected():
            self._say(connection, *self._events.popleft(), qos=1)
        return self._shipment.flush(connection)

    def _say_iterations(self, connection: Connection, message: Iterations) -> Receipt | None:
        return self._say(connection, self._iterations_topic, message)

    def _say(
        self, connection: Connection, topic: str, message: Message, *, qos: int = 0, retain: bool = False
    ) -> Receipt | None:
        """Publish a message; None where it cannot be encoded, which costs this message and nothing else."""
        try:
            payload = encode(message)
        except (ValueError, TypeError, OverflowError) as error:
            if not self._has_complained:
                self._has_complained = True
                _LOGGER.warning("a message is not published: %s: %s", type(message).__name__, error)
            return None
        return connection.publish(topic, payload, qos=qos, retain=retain)

    def _finish(self, connection: Connection) -> None:
        """Publish what is left, then the last status, and wait until it arrived; a broker that went may be back."""
        deadline_s = time.monotonic() + CLOSE_TIMEOUT_S
        self.conversation.end("publishing was closed meanwhile")
        self._tick(connection)
        while not connection.is_connected() and connection.connections and time.monotonic() < deadline_s:
            self._woken.clear()
            self._woken.wait(_RETURN_S)
            connection.hurry()
            self._tick(connection)
        while connection.is_connected() and time.monotonic() < deadline_s:
            progressed = self._flush(connection)
            self._shipment.settle()
            if not progressed and not self._shipment.is_flying:
                break
            connection.work(_POLL_S if self._shipment.is_flying else 0.0)
        if connection.is_connected():
            last = self._present_status("lost" if self._is_broken_off else "finished")
            receipt = self._say(connection, self._status_topic, last, qos=1, retain=True)
            while receipt and connection.is_connected() and not receipt.done and time.monotonic() < deadline_s:
                connection.work(_POLL_S)
        connection.close()

    def _note_transition(self, connection: Connection) -> None:
        """Log that the broker came or went, once each."""
        connected, failure = connection.is_connected(), connection.failure
        self._is_hopeless = connection.connections == 0 and failure is not None
        if connected == self._was_connected or not (connected or failure):
            return
        self._was_connected = connected
        where = self._settings.broker.url
        if connected:
            _LOGGER.info("publishing job %s, run %s to %s", self._settings.job, self._settings.run, where)
        else:
            _LOGGER.warning("no broker at %s: %s; training goes on, iterations wait and are counted", where, failure)
