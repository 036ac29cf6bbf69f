"""What a publisher hears: the answer to its question for a batch size, and the command to stop.

The training's thread asks and looks; the sender's thread does the rest. They share single references only, no locks.
"""

import logging
from collections.abc import Sequence
from typing import Final, Protocol

from publishers.messages.codec import DecodeError, decode
from publishers.messages.reports import Command
from publishers.messages.topics import Topics
from publishers.messages.training import TrialRequest
from publishers.training.batch_timing import BatchSizeBenchmark
from publishers.training.coerce import to_text
from publishers.training.paho_client import Connection
from publishers.training.settings import Settings
from publishers.training.trial import BatchSizeOptions, BatchSizeRequest, BatchSizeTrial, read_options

MAX_FAILURES: Final = 2
"""Attempts to reach a broker that nobody has seen yet: at once, and a second later, since it may be just starting."""
_LOGGER: Final = logging.getLogger("publishers")


class Asked(Protocol):
    """Whoever puts a question."""

    def ask(self, choices: BatchSizeOptions) -> BatchSizeRequest | None:
        """Put it; None where nobody can be asked."""
        ...


def put_question(
    asked: Asked | None,
    candidates: object,
    default: object,
    timeout_s: object,
    faults: Sequence[str],
    probing: BatchSizeBenchmark,
) -> tuple[BatchSizeTrial | None, int | None, str]:
    """Ask for a batch size, wait for the answer, and time the batch sizes that it asks for; never raises.

    Returns:
        the answer; the batch size that holds, None where the default is no size at all; why there is no answer.
    """
    choices = read_options(candidates, default, timeout_s)
    why = "; ".join([*faults, *choices.faults])
    if not why:
        question = asked.ask(choices) if asked is not None else None
        trial = question.wait(choices.timeout_s) if question is not None else None
        if trial is not None:
            level = logging.INFO if trial.recurrence is not None else logging.WARNING  # a run that teaches nothing
            _LOGGER.log(
                level, "batch size %d of %s: %s: %s", trial.batch_size, choices.batch_sizes, trial.reason, trial.detail
            )
            trial = probing.carry_out(trial, choices.batch_sizes)
            return trial, trial.batch_size, ""
        why = question.why if question is not None else "publishing is off, or closed"
    return None, choices.default, f"the batch size is the default, {to_text(default, 40)}: {why}"


class PolicyClient:
    """One run's talk with the policy service.

    Attributes:
        stop_reason: why the run is to stop, as the service says it; None until it does.
    """

    def __init__(self, settings: Settings) -> None:
        topics = Topics(settings.root)
        self.request_topic = topics.run(settings.job, settings.run, "trial/request")
        self._answer_topic = topics.run(settings.job, settings.run, "trial/answer")
        self._command_topic = topics.run(settings.job, settings.run, "command")
        self._run = settings.run
        self._where = settings.broker.url
        self._question: BatchSizeRequest | None = None
        self._begun: BatchSizeRequest | None = None
        self._n_failures_before = 0
        self._listens = self._is_listening = False
        self._has_complained = False
        self.stop_reason: str | None = None

    def ask(self, choices: BatchSizeOptions) -> BatchSizeRequest:
        """Put a question; the sender's thread sees to it at its next turn. Of two at a time the later one counts."""
        self.listen()
        previous, self._question = self._question, BatchSizeRequest(choices, run=self._run, reply_to=self._answer_topic)
        if previous is not None:
            previous.end("another question was asked meanwhile")
        return self._question

    def listen(self) -> None:
        """Hear the commands from here on: only runs that would obey them need to."""
        self._listens = True

    @property
    def has_asked(self) -> bool:
        """Return whether there was a question, so that the service may know this run."""
        return self._question is not None

    @property
    def waits(self) -> bool:
        """Return whether a question that `prepare` has seen is open, so that the network should be watched."""
        return self._begun is not None and not self._begun.ended

    def prepare(self, connection: Connection) -> None:
        """Subscribe to what is to be heard, and let a new question try at once to reach a broker that is away."""
        if self._listens and not self._is_listening:
            self._is_listening = True
            connection.subscribe(self._command_topic, self._hear_command)
        question = self._question
        if question is None or question is self._begun:
            return
        if self._begun is None:
            connection.subscribe(self._answer_topic, self._hear_answer)
        self._begun = question
        self._n_failures_before = connection.failures
        connection.hurry()

    def next_request(self, connection: Connection, now_s: float) -> TrialRequest | None:
        """Return what to ask now, if anything; end the question where no broker is to be expected."""
        question = self._begun
        if question is None or question.ended:
            return None
        if not connection.is_connected():
            question.why = f"no broker at {self._where}: {connection.failure or 'not connected'}"
            is_new = connection.connections == 0
            if is_new and connection.failures - self._n_failures_before >= MAX_FAILURES:
                question.end(question.why)
            return None
        if not connection.is_subscribed():
            return None  # the answer could come before the broker knows that we want it
        request = question.next_request(now_s, connection.connections)
        if request is not None and question.n_asked == 1:
            question.why = f"no policy service answers at {self._where}"
        return request

    def end(self, why: str) -> None:
        """Let nobody wait any longer."""
        if self._question is not None:
            self._question.end(why)

    def _hear_answer(self, payload: bytes) -> None:
        if self._begun is not None:
            self._begun.hear(payload)

    def _hear_command(self, payload: bytes) -> None:
        try:
            command = decode(payload, Command)
        except DecodeError as error:
            if not self._has_complained:
                self._has_complained = True
                _LOGGER.debug("a command is ignored: %s", error)
            return
        if command.command != "stop":
            _LOGGER.debug("the command to %s is ignored: %s", command.command, command.reason)
        elif self.stop_reason is None:
            self.stop_reason = command.reason or "the policy service says so"
            _LOGGER.info("run %s is to stop: %s", self._run, self.stop_reason)
