"""The publisher's own thread: takes what the training loop recorded, and says it on the bus.

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

from publishers.connection import Connection, Receipt, Will
from publishers.environment import MAPS, Broker, has_loaded_cuda
from publishers.recorder import Recorder, Segment
from publishers.settings import Settings
from publishers.topics import Topics
from publishers.wire import Iterations, Message, Metric, RankStatus, decode, encode, pack_ends

Connect = Callable[[Broker, Will], Connection]

CLOSE_TIMEOUT_S: Final = 2.0
_MAX_SEGMENTS: Final = 64
"""Messages of one flush, and messages that may wait in the network before the next one."""
_MAX_METRICS: Final = 256
_POLL_S: Final = 0.05
_SEEK_S: Final = 1.0
_OFTEN_S: Final = 60.0
"""How often, and for how long so often, a process that names no GPU is looked at: then once a heartbeat."""
_LOGGER: Final = logging.getLogger("publishers")


class Sender:
    """Publishes one rank of one run. `close` may come from any thread; the rest is its own thread's business."""

    def __init__(self, settings: Settings, recorder: Recorder, *, connect: Connect, started_at_s: float) -> None:
        """Prepare it.

        Raises:
            ValueError: the status is none that the bus takes.
        """
        self._settings = settings
        self._recorder = recorder
        self._connect = connect
        self._status = settings.status(started_at_s=started_at_s)
        decode(encode(self._status), RankStatus)
        self._gpus = self._status.gpus
        self._seeks_gpus = settings.gpus_are_guessed
        self._seek_due_s = 0.0
        self._seeks_often_until_s = time.monotonic() + _OFTEN_S
        self._reached: bool | None = None
        topics = Topics(settings.root)
        self._status_topic = topics.rank(settings.job, settings.run, settings.rank, "status")
        self._iterations_topic = topics.rank(settings.job, settings.run, settings.rank, "iterations")
        self._metric_topic = topics.run(settings.job, settings.run, "metric")
        self._metrics: deque[Metric] = deque(maxlen=_MAX_METRICS)
        self._waiting: deque[tuple[Segment, int]] = deque()  # with the number of iterations dropped before it
        self._flying: deque[tuple[Receipt, Segment, int]] = deque()
        self._seq = self._next = self._dropped = 0
        self._connections = 0
        self._is_hopeless = self._has_complained = False
        self._was_connected: bool | None = None
        self._heartbeat_due_s = 0.0
        self._pid = os.getpid()
        self._closing = threading.Event()
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
        return self._closing.is_set() or os.getpid() != self._pid

    def add_metric(self, metric: Metric) -> None:
        """Publish a metric soon; of many that wait, the oldest goes."""
        self._metrics.append(metric)

    def set_batch_size(self, batch_size: int) -> None:
        """Say a new batch size, at once where it changed."""
        if batch_size != self._status.batch_size:
            self._status = msgspec.structs.replace(self._status, batch_size=batch_size)
            self._heartbeat_due_s = 0.0

    def request_close(self, *, reached: bool | None) -> None:
        """Let the thread publish what is left, and `finished`."""
        if not self.closed:
            self._reached = reached
            self._closing.set()

    def wait_closed(self, timeout_s: float) -> None:
        """Wait until everything has arrived; not at all where no broker was ever there."""
        if os.getpid() == self._pid and not self._is_hopeless:
            self._ended.wait(max(0.0, timeout_s))

    def _run(self) -> None:
        try:
            self._seek_gpus()
            will = Will(topic=self._status_topic, payload=encode(self._present_status("lost")))
            connection = self._connect(self._settings.broker, will)
            while not self._closing.is_set():
                self._tick(connection)
                self._closing.wait(self._settings.flush_s)
            self._finish(connection)
        except (OSError, ValueError) as error:  # the file of certificate authorities is none
            _LOGGER.warning("publishing is off: %s: %s", self._settings.broker.url, error)
        except Exception:  # training goes on whatever is wrong with us; without this the thread would print
            _LOGGER.exception("publishing has ended by a fault of its own")
        finally:
            self._ended.set()

    def _tick(self, connection: Connection) -> None:
        connection.work()
        self._note_transition(connection)
        self._settle()
        if not connection.is_connected():
            return
        self._seek_gpus()
        now_s = time.monotonic()
        if connection.connections != self._connections or now_s >= self._heartbeat_due_s:
            self._connections = connection.connections
            self._heartbeat_due_s = now_s + self._settings.heartbeat_s
            self._say(connection, self._status_topic, self._present_status("running"), qos=1, retain=True)
        self._flush(connection)

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
        return msgspec.structs.replace(self._status, state=state, gpus=self._gpus, reached=reached)

    def _flush(self, connection: Connection) -> bool:
        """Publish what waits, as far as the network takes it; return whether there was anything."""
        while self._metrics and connection.is_connected():
            self._say(connection, self._metric_topic, self._metrics.popleft(), qos=1)
        if not self._waiting:
            self._take()
        n_before = len(self._waiting)
        while self._waiting and len(self._flying) < _MAX_SEGMENTS and connection.is_connected():
            self._send(connection, *self._waiting.popleft())
        return len(self._waiting) < n_before

    def _take(self) -> None:
        """Take what was recorded, and count what was not kept."""
        for segment in self._recorder.take(_MAX_SEGMENTS):
            self._dropped += segment.first - self._next
            self._next = segment.first + len(segment.ends_ns)
            self._waiting.append((segment, self._dropped))

    def _send(self, connection: Connection, segment: Segment, dropped: int) -> None:
        try:
            message = Iterations(
                run=self._settings.run,
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
        receipt = self._say(connection, self._iterations_topic, message)
        if receipt is None:
            self._dropped += len(segment.ends_ns)
            return
        self._seq += 1
        self._flying.append((receipt, segment, dropped))

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

    def _settle(self) -> None:
        """Forget the messages that have left; those that are known not to have, because the broker went, go again."""
        again = []
        while self._flying and self._flying[0][0].done:
            receipt, segment, dropped = self._flying.popleft()
            if receipt.lost:
                again.append((segment, dropped))
        self._waiting.extendleft(reversed(again))

    def _finish(self, connection: Connection) -> None:
        """Publish what is left, then `finished`, and wait for its acknowledgement."""
        deadline_s = time.monotonic() + CLOSE_TIMEOUT_S
        self._tick(connection)
        while connection.is_connected() and time.monotonic() < deadline_s:
            progressed = self._flush(connection)
            self._settle()
            if not progressed and not self._flying:
                break
            connection.work(_POLL_S if self._flying else 0.0)
        if connection.is_connected():
            finished = self._present_status("finished")
            receipt = self._say(connection, self._status_topic, finished, qos=1, retain=True)
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
