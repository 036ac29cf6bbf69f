"""The publisher's own thread: sends what the training loop recorded, the status and the metrics.

It never touches the training loop: no locks are shared, nothing is raised, nothing is printed. While the broker is away
the recorder keeps the newest iterations; what it had to drop is counted in the next message.
"""

import logging
import math
import operator
import os
import threading
import time
from array import array
from collections import deque
from typing import Final, Literal

import msgspec

from publishers.messages.codec import Message, Outgoing, decode, encode
from publishers.messages.topics import Topics
from publishers.messages.training import Iterations, Metric, RankStatus, TrialFailure, TrialTimes, pack_ends, pack_work
from publishers.mqtt.connection import Connect, Connection, Receipt
from publishers.shared.process_identity import mark_this_thread, run_mark
from publishers.training.iterations.chunk import Segment
from publishers.training.iterations.progress import MAX_METRIC, RunProgress
from publishers.training.iterations.recorder import Recorder
from publishers.training.iterations.request_times import RequestTimes
from publishers.training.pausing.commands import RunCommands
from publishers.training.reporting.notices import RunNotices
from publishers.training.reporting.run_report import RunReport
from publishers.training.run.run_search import RunSearch, n_ranks
from publishers.training.settings import Settings, SettingsError
from publishers.training.trial.policy_client import BatchSizeOptions, BatchSizeQuery, PolicyClient, trial_failure

CLOSE_TIMEOUT_S: Final = 2.0
_MAX_IN_FLIGHT: Final = 64
"""Messages of iterations of one flush, and those that may wait in the network before the next one."""
_MAX_EVENTS: Final = 256
"""Metrics, times and failures that wait while the broker is away."""
_POLL_S: Final = 0.05
_RETRY_S: Final = 0.2
"""How often a broker that was there before is tried at the end."""
_LOGGER: Final = logging.getLogger("publishers")


class IterationQueue:
    """The iterations of one rank of one run on their way to the broker, in their order; what is lost is counted."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._request_times = RequestTimes(recorder.logs)
        self._run = self._topic = ""
        self._waiting: deque[tuple[Segment, int]] = deque()  # with the number of iterations dropped before it
        self._in_flight: deque[tuple[Receipt, Segment, int]] = deque()
        self._seq = self._next = self._dropped = 0

    def begin(self, *, run: str, topic: str) -> None:
        """Say what run they are of, and where they are published, before the first flush."""
        self._run, self._topic = run, topic

    @property
    def n_ended(self) -> int:
        """Return how many iterations have ended, as far as they were read from the recorder."""
        return self._next

    def has_waiting(self) -> bool:
        """Return whether any iteration waits to be published."""
        if not self._waiting:
            self._drain_recorder()
        return bool(self._waiting)

    @property
    def batches_per_iteration(self) -> int | None:
        """Return how many batches the training asks for in an iteration, None while that is not known."""
        return self._request_times.batches_per_iteration

    @property
    def has_unacknowledged(self) -> bool:
        """Return whether something was sent that is not confirmed yet."""
        return bool(self._in_flight)

    def flush(self, connection: Connection) -> bool:
        """Publish what waits, as far as the network takes it; return whether there was anything."""
        if not self._waiting:
            self._drain_recorder()
        n_before = len(self._waiting)
        while self._waiting and len(self._in_flight) < _MAX_IN_FLIGHT and connection.is_connected():
            self._send(connection, *self._waiting.popleft())
        return len(self._waiting) < n_before

    def collect_receipts(self) -> None:
        """Forget the messages that have left, count what is refused, and queue again what is lost with the broker."""
        lost = []
        while self._in_flight and self._in_flight[0][0].done:
            receipt, segment, dropped = self._in_flight.popleft()
            if receipt.lost:
                lost.append((segment, dropped))
            elif receipt.refused:
                self._dropped += len(segment.ends_ns)
        self._waiting.extendleft(reversed(lost))

    def _drain_recorder(self) -> None:
        for segment in self._recorder.drain(_MAX_IN_FLIGHT):
            self._dropped += segment.first - self._next
            self._next = segment.first + len(segment.ends_ns)
            self._request_times.complete(segment)
            self._recorder.work.complete(segment)
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
                counted_by=segment.counted_by,
                request_ns=pack_ends(array("q", segment.requests_ns)),
                received_ns=pack_ends(array("q", segment.received_ns)),
                work=b"" if all(map(math.isnan, segment.work)) else pack_work(array("d", segment.work)),
            )
            payload = encode(message)
        except (ValueError, TypeError, OverflowError):  # a clock that goes backwards, or counts in something else
            self._dropped += len(segment.ends_ns)
            return
        self._seq += 1
        self._in_flight.append((connection.publish(self._topic, payload), segment, dropped))


def _connect_by_paho() -> Connect:
    """Return what opens a connection by paho: imported only where something is published.

    It is imported by the training's thread, not by ours: a process that is forked while a thread of its parent imports
    a module (a data loader forks at its first batch) waits for that module for ever, and paho imports `urllib`.
    """
    from publishers.training.paho_client import PahoConnection  # noqa: PLC0415

    return PahoConnection


class PublisherWorker:
    """Publishes one rank of one run. `request_close` may come from any thread; the rest is its own thread's business.

    Which run and which rank may be known only when the training has begun: until then nothing is published, and what
    is recorded waits.

    Raises:
        ValueError: the bus does not take the status.
    """

    def __init__(
        self,
        settings: Settings,
        recorder: Recorder,
        progress: RunProgress,
        *,
        connect: Connect | None,
        started_at_s: float,
    ) -> None:
        self._settings = settings
        self._recorder = recorder
        self._progress = progress
        self._connect = connect or _connect_by_paho()
        self._status = decode(encode(settings.status(started_at_s=started_at_s)), RankStatus)
        self._heartbeat_due_s = 0.0
        self._reached: bool | None = None
        self._search = RunSearch(settings)
        self._is_found = False
        self._woken = threading.Event()
        self.commands = RunCommands(recorder, wake=self._woken)
        self.policy_client = PolicyClient(settings)
        self._notices = RunNotices(settings)
        self.report = RunReport(settings, self._notices, started_at_s=self._status.started_at_s)
        self._topics = Topics(settings.root)
        self._status_topic = ""
        self._events: deque[tuple[str, Metric | TrialTimes | TrialFailure]] = deque(maxlen=_MAX_EVENTS)
        self._iterations = IterationQueue(recorder)
        self._connections = self._n_epochs_before = 0
        self._never_connected = self._has_logged_bad_message = self._has_published_total = False
        self._was_connected: bool | None = None
        self._looked_ns: int | None = None
        self._pid = os.getpid()
        self._is_closing = self._is_broken_off = self._is_awaited = self._is_measured_always = False
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
    def is_inherited(self) -> bool:
        """Return whether it is open, in another process than this one, which was forked from that."""
        return not self._is_closing and os.getpid() != self._pid

    @property
    def batch_size(self) -> int | None:
        """Return the samples of an iteration, where they are known."""
        return self._status.batch_size

    @property
    def needs_batch_size(self) -> bool:
        """Return whether the samples of an iteration are not known yet."""
        return self._status.batch_size is None

    @property
    def has_trained(self) -> bool:
        """Return whether a whole epoch was trained at the present batch size, so that it fits the memory."""
        return self._recorder.n_epochs > self._n_epochs_before

    @property
    def run(self) -> str:
        """Return the id of the run; nothing before it is known."""
        return self._settings.run if self._is_found else ""

    @property
    def rank(self) -> int:
        """Return which of the run's processes this is, as far as is known."""
        return self._settings.rank

    @property
    def world_size(self) -> int:
        """Return how many processes train together, as far as is known."""
        return self._settings.world_size if self._is_found else max(self._settings.world_size, n_ranks())

    def ask(self, options: BatchSizeOptions) -> BatchSizeQuery | None:
        """Ask for a batch size, at once; None where publishing has been closed."""
        if self.closed:
            return None
        self.commands.listen()
        query = self.policy_client.ask(options)
        self._woken.set()
        if self._ended.is_set():
            query.end("publishing has ended")
        return query

    def add_metric(self, metric: Metric) -> bool:
        """Publish a metric soon; return whether it can be. Where too many wait, the oldest is dropped."""
        is_publishable = abs(metric.value) <= MAX_METRIC
        if is_publishable:
            self._events.append(("metric", metric))
        return is_publishable

    def add_times(self, times: TrialTimes) -> None:
        """Publish soon how long iterations take."""
        self._events.append(("trial/times", times))

    def add_failure(self, reason: object, detail: object) -> bool:
        """Publish soon that the run cannot run at its batch size; return whether that is known."""
        batch_size = self._status.batch_size
        if batch_size is None:
            return False
        message = trial_failure(run=self.run, batch_size=batch_size, reason=reason, detail=detail)
        self._events.append(("trial/failure", message))
        return True

    def measure_without_iterations(self) -> None:
        """Let the controller measure the energy from now on, until there are iterations to measure it by."""
        self._is_measured_always = True
        self._heartbeat_due_s = 0.0

    def set_reached(self, reached: bool | None) -> None:
        """Set whether the target was reached, for the last status, unless `request_close` gives it."""
        self._reached = reached
        if reached and not self.is_inherited:  # the locks of a thread that is not here are left alone
            self.commands.want_stop()

    def set_batch_size(self, batch_size: int) -> None:
        """Publish a new batch size, at once where it changed."""
        if batch_size != self._status.batch_size:
            self._status = msgspec.structs.replace(self._status, batch_size=batch_size)
            self._heartbeat_due_s = 0.0
            self._n_epochs_before = self._recorder.n_epochs

    @property
    def is_at_its_end(self) -> bool:
        """Return whether the training has reached its target, or was ordered to stop."""
        return bool(self._reached) or self.commands.stop_reason is not None

    def request_close(self, *, reached: bool | None, is_broken_off: bool = False, wakes: bool = True) -> None:
        """Let the thread publish what is left and how the run ended: at once or, where no lock may be taken, soon."""
        if not self.closed:
            if reached is not None:
                self._reached = reached
            self._recorder.close()
            self._search.end()
            self._is_broken_off, self._is_closing = is_broken_off, True
            if wakes:
                self._woken.set()

    def wait_closed(self, timeout_s: float) -> None:
        """Wait until everything has arrived, not at all where no broker was ever there; then tell how the run was."""
        if os.getpid() != self._pid:
            return
        self._is_awaited = True  # so that the line does not come from a thread that the interpreter's exit may stop
        try:
            if not self._never_connected:
                self._woken.set()
                self._ended.wait(max(0.0, timeout_s))
        finally:  # Ctrl-C ends the waiting
            self._tell_end()

    def _run(self) -> None:
        try:
            if not self._find_run():
                return
            last_will = encode(self._current_status("lost"))
            will = Outgoing(topic=self._status_topic, payload=last_will, qos=1, retain=True)
            connection = self._connect(self._settings.broker, will)
            while not self._is_closing:
                self._step(connection)
                self.report.welcome()
                self._wait(connection)
            self._finish(connection)
        except SettingsError as error:
            _LOGGER.warning("publishing is off: %s", error)
        except (OSError, ValueError) as error:  # the file of certificate authorities is none
            _LOGGER.warning("publishing is off: %s: %s", self._settings.broker.url, error)
        except Exception:  # training goes on whatever is wrong with us; without this the thread would print
            _LOGGER.exception("publishing has stopped: internal error")
        finally:
            self.commands.close()
            self._search.give_up()
            if not self._is_awaited:
                self._tell_end()
            self._ended.set()
            self.policy_client.end("publishing has ended")

    def _tell_end(self) -> None:
        is_used = self._is_measured_always or self._recorder.n_ended > 0
        self.report.tell(is_used=is_used, is_broken_off=self._is_broken_off)

    def _find_run(self) -> bool:
        """Wait until it is known which run this is, and prepare for it; return False where nothing is to be published.

        Raises:
            SettingsError: it cannot be known.
        """
        while True:
            is_closing = self._is_closing  # before anything else: what was recorded is complete then
            has_message = self._iterations.has_waiting() or bool(self._events) or self.policy_client.has_query
            is_used = self._is_measured_always or has_message
            settings = self._search.find(is_due=is_used, is_last=is_used and is_closing)
            if settings is not None:
                self._begin(settings)
                return True
            if is_closing and not is_used:  # such as that of a process which only starts the others
                return False
            self._woken.wait(_POLL_S if is_used else self._settings.flush_s)
            self._woken.clear()

    def _begin(self, settings: Settings) -> None:
        """Let everything that is published be of this run, and mark the thread with it."""
        self._settings = settings
        topics, key, boot_id, rank = self._topics, settings.key, settings.boot_id, settings.rank
        self._status_topic = topics.rank(boot_id, key, rank, "status")
        self._iterations.begin(run=key.run, topic=topics.rank(boot_id, key, rank, "iterations"))
        self.commands.begin(settings)
        self.policy_client.begin(settings)
        self._notices.begin(settings)
        self.report.begin(settings)
        self._is_found = True
        mark_this_thread(run_mark(key))

    def _wait(self, connection: Connection) -> None:
        """Wait for the next flush; while a query is open, for what the network brings."""
        is_waiting = self.policy_client.is_waiting
        if is_waiting and connection.is_connected():
            connection.work(_POLL_S)
        else:
            self._woken.wait(min(_POLL_S, self._settings.flush_s) if is_waiting else self._settings.flush_s)
            self._woken.clear()

    def _step(self, connection: Connection) -> None:
        for listener in (self._notices, self.report, self.commands, self.policy_client):
            listener.subscribe(connection)
        connection.work()
        self._log_transition(connection)
        if self.commands.advance(is_connected=connection.is_connected()):
            self._heartbeat_due_s = 0.0
        self._iterations.collect_receipts()
        self._notices.check(is_connected=connection.is_connected(), now_s=time.monotonic())
        if connection.is_connected():
            self._publish_status(connection)
        request = self.policy_client.next_request(connection, time.monotonic())
        if request is not None:
            self._publish(connection, self.policy_client.request_topic, request)
        if connection.is_connected():
            self._flush(connection)

    def _publish_status(self, connection: Connection) -> None:
        """Publish the status where it is due: at every connection, every heartbeat, and where it changed.

        The run's length may be corrected in each epoch, however short that is: only its first value is sent at once.
        """
        now_s = time.monotonic()
        n_batches = self._iterations.batches_per_iteration
        if n_batches is not None:
            self._progress.set_batches_per_iteration(n_batches)
        if not self._has_published_total and self._progress.total_iterations is not None:
            self._has_published_total, self._heartbeat_due_s = True, 0.0
        if connection.connections != self._connections or now_s >= self._heartbeat_due_s:
            self._connections = connection.connections
            self._heartbeat_due_s = now_s + self._settings.heartbeat_s
            self._publish(connection, self._status_topic, self._current_status("running"), retain=True)

    def _current_status(self, state: Literal["running", "finished", "lost"]) -> RankStatus:
        """Return the status with what is known now; another thread may set the batch size, so that stays apart."""
        reached = self._reached if state == "finished" else None
        total = self._progress.total_iterations
        if total is not None and self._iterations.n_ended > total:  # it was wrong
            total = None
        settings = self._settings
        return msgspec.structs.replace(
            self._status,
            run=settings.run,
            world_size=settings.world_size,
            gpus=list(settings.gpus),
            launch=settings.launch,
            state=state,
            reached=reached,
            total_iterations=total,
            total_work=self._progress.total_work,
            time_s=time.time(),
            in_pause=state == "running" and self._is_in_known_pause(),
            has_iterations=not self._is_measured_always or self._recorder.n_ended > 0,
            **self.commands.pause_status._asdict(),
        )

    def _is_in_known_pause(self) -> bool:
        """Return whether the training has told of a pause, or has gone on with a validation since the last status."""
        before_ns, self._looked_ns = self._looked_ns, self._recorder.last_validation_request_ns()
        is_looking = self._looked_ns is not None and self._looked_ns != before_ns
        return is_looking or self._recorder.has_told_of_pause(self._iterations.n_ended)

    def _flush(self, connection: Connection) -> None:
        """Publish what waits, as far as the network takes it."""
        while self._events and connection.is_connected():
            leaf, event = self._events.popleft()
            topic = self._topics.run(self._settings.key, leaf)
            self._publish(connection, topic, msgspec.structs.replace(event, run=self._settings.run))
        self._iterations.flush(connection)

    def _publish(self, connection: Connection, topic: str, message: Message, *, retain: bool = False) -> Receipt | None:
        """Publish a message at QoS 1; None where it cannot be encoded, which costs this message and nothing else."""
        try:
            payload = encode(message)
        except (ValueError, TypeError, OverflowError) as error:
            if not self._has_logged_bad_message:
                self._has_logged_bad_message = True
                _LOGGER.warning("a message is not published: %s: %s", type(message).__name__, error)
            return None
        return connection.publish(topic, payload, qos=1, retain=retain)

    def _finish(self, connection: Connection) -> None:
        """Publish what is left, then the last status, and wait until it arrived; a broker that went may be back."""
        deadline_s = time.monotonic() + CLOSE_TIMEOUT_S
        self.commands.close()
        self.policy_client.end("publishing was closed meanwhile")
        connection.allow(self._status_topic)
        self._step(connection)
        while self._await_broker(connection, deadline_s) and time.monotonic() < deadline_s:
            self._flush(connection)
            self._iterations.collect_receipts()
            is_waiting = self._iterations.has_unacknowledged or self._recorder.is_awaiting
            if not is_waiting and not self._iterations.has_waiting():
                break
            connection.work(_POLL_S if is_waiting else 0.0)
        if self._await_broker(connection, deadline_s):
            last = self._current_status("lost" if self._is_broken_off else "finished")
            connection.allow(self._status_topic)
            receipt = self._publish(connection, self._status_topic, last, retain=True)
            while receipt and not receipt.done and time.monotonic() < deadline_s:
                self._await_broker(connection, deadline_s)
                connection.work(_POLL_S)
            while self.report.is_awaited and connection.is_connected() and time.monotonic() < deadline_s:
                connection.work(_POLL_S)
        connection.close()
        self.report.write_emissions()

    def _await_broker(self, connection: Connection, deadline_s: float) -> bool:
        """Wait until a broker that was there before is back; return whether it is there."""
        while not connection.is_connected() and connection.connections and time.monotonic() < deadline_s:
            self._woken.clear()
            self._woken.wait(_RETRY_S)
            connection.retry_now()
            connection.work()
        return connection.is_connected()

    def _log_transition(self, connection: Connection) -> None:
        """Log that the broker came or went, once each."""
        connected, failure = connection.is_connected(), connection.failure
        self._never_connected = connection.connections == 0 and failure is not None
        self.report.note_connections(connection.connections)
        if connected == self._was_connected or not (connected or failure):
            return
        self._was_connected = connected
        url = self._settings.broker.url
        if connected:
            _LOGGER.info("publishing job %s, run %s to %s", self._settings.job, self._settings.run, url)
        else:
            _LOGGER.warning("no connection to %s: %s; training continues, iterations are buffered", url, failure)
