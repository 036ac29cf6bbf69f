"""Training runs and their controller on a real bus, for the tests of the policy service: what they say, and hear."""

import asyncio
import secrets
from collections import defaultdict
from collections.abc import Sequence

from publishers.messages.codec import Message, decode, encode
from publishers.messages.reports import Command, RunEnergy
from publishers.messages.topics import RunKey, Topics
from publishers.messages.training import Metric, RankStatus, TrialAnswer, TrialFailure, TrialRequest
from publishers.mqtt.client import MqttClient
from tests.fakes import USER
from tests.live.conftest import eventually

TOPICS = Topics()
BATCH_SIZES = (32, 64, 128)
REPEAT_S = 1.0
PATIENCE_S = 20.0
"""Twice a run's own: the machine may have other things to do."""

Run = tuple[str, str]


def are_to_different_requests(answers: Sequence[TrialAnswer]) -> bool:
    """Return whether no request was answered twice; a run that has waited for a second has made another one."""
    return len({answer.correlation for answer in answers}) == len(answers)


class Runs:
    """Many runs behind one connection; all choose from the same batch sizes, with the same default.

    Attributes:
        answers: every answer that came, by job and run.
        commands: every command that came.
    """

    def __init__(self, bus: MqttClient, *, batch_sizes: Sequence[int] = BATCH_SIZES, default: int = 32) -> None:
        self.answers: dict[Run, list[TrialAnswer]] = defaultdict(list)
        self.commands: dict[Run, list[Command]] = defaultdict(list)
        self._bus = bus
        self._batch_sizes = list(batch_sizes)
        self._default = default
        self._answered: dict[Run, asyncio.Event] = defaultdict(asyncio.Event)
        bus.subscribe(TOPICS.run_filter("trial/answer"), self._hear_answer, qos=1)
        bus.subscribe(TOPICS.run_filter("command"), self._hear_command, qos=1)

    async def ask(self, job: str, run: str) -> TrialAnswer:
        """Ask for a batch size, again each second; TimeoutError where no answer comes in time."""
        async with asyncio.timeout(PATIENCE_S):
            while not self.answers[job, run]:
                self._request(job, run)
                try:
                    async with asyncio.timeout(REPEAT_S):
                        await self._answered[job, run].wait()
                except TimeoutError:
                    continue
        return self.answers[job, run][0]

    def say_status(self, job: str, run: str, state: str = "running", *, reached: bool | None = None) -> None:
        """Say that the training process runs, or has ended."""
        status = RankStatus(
            run=run,
            state=state,  # type: ignore[arg-type]  # the test says a right one
            host="here",
            boot_id="boot",
            pid=1,
            gpus=[0],
            world_size=1,
            started_at_s=1.0,
            heartbeat_s=10.0,
            reached=reached,
        )
        self._bus.publish(TOPICS.rank("boot", RunKey(USER, job, run), 0, "status"), encode(status), qos=1, retain=True)

    def say_metric(self, job: str, run: str, epoch: int, *, reached: bool) -> None:
        """Say a validation."""
        self._say(job, run, "metric", Metric(run=run, epoch=epoch, value=0.5, reached=reached))

    def say_failure(self, job: str, run: str, batch_size: int) -> None:
        """Say that the memory is too small."""
        self._say(job, run, "trial/failure", TrialFailure(run=run, batch_size=batch_size, reason="out_of_memory"))

    def say_energy(self, job: str, run: str, *, epochs: int, energy_j: float, final: bool) -> None:
        """Say what the run has used: the part of the controller."""
        energy = RunEnergy(
            run=run,
            state="finished" if final else "running",
            gpu_model="NVIDIA A40",
            n_gpus=1,
            iterations=100 * epochs,
            epochs=epochs,
            duration_s=energy_j / 250.0,
            energy_j=energy_j,
            max_power_w=300.0,
            final=final,
            reached=True if final else None,
        )
        topic = TOPICS.run(RunKey(USER, job, run), "energy")
        self._bus.publish(topic, encode(energy), qos=1 if final else 0, retain=final)

    def train(self, job: str, run: str, *, epochs: int = 4, energy_j: float = 40_000.0) -> None:
        """Train to the target, and say everything that a whole run says."""
        self.say_status(job, run)
        for epoch in range(epochs):
            self.say_metric(job, run, epoch, reached=epoch == epochs - 1)
        self.say_status(job, run, "finished", reached=True)
        self.say_energy(job, run, epochs=epochs, energy_j=energy_j, final=True)

    async def sent(self) -> None:
        """Wait until the broker has all that was said."""
        await eventually(lambda: self._bus.connected)
        assert await self._bus.flush(PATIENCE_S)

    def _request(self, job: str, run: str) -> None:
        request = TrialRequest(
            run=run,
            reply_to=TOPICS.run(RunKey(USER, job, run), "trial/answer"),
            correlation=secrets.token_hex(8),
            batch_sizes=self._batch_sizes,
            default_batch_size=self._default,
        )
        self._say(job, run, "trial/request", request)

    def _say(self, job: str, run: str, leaf: str, message: Message) -> None:
        self._bus.publish(TOPICS.run(RunKey(USER, job, run), leaf), encode(message), qos=1)

    def _hear_answer(self, topic: str, payload: bytes) -> None:
        address = TOPICS.parse(topic)
        assert address is not None
        assert address.run is not None
        run = address.run[1:]
        self.answers[run].append(decode(payload, TrialAnswer))
        self._answered[run].set()

    def _hear_command(self, topic: str, payload: bytes) -> None:
        address = TOPICS.parse(topic)
        assert address is not None
        assert address.run is not None
        self.commands[address.run[1:]].append(decode(payload, Command))
