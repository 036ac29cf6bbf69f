"""The policy service as a whole, where it needs neither a broker nor a database."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from policies.service.app import _bus, _Service, run_service
from policies.service.config import HttpConfig, PolicyConfig
from policies.service.errors import RequestError
from policies.service.http.app import served
from publishers.messages.codec import decode, encode
from publishers.messages.topics import RunKey
from publishers.messages.training import TrialAnswer
from publishers.mqtt.bus_config import BusConfig
from tests.policies.service.memory_store import NOW_S, TOPICS, MemoryTrials, trial_request


async def test_a_wrong_broker_url_is_refused_with_the_keys_that_mend_it(tmp_path: Path) -> None:
    config = PolicyConfig(bus=BusConfig(url="mqtt://ada:secret@broker", password_file=str(tmp_path / "nowhere")))
    with pytest.raises(RequestError) as caught:
        await run_service(config, state_dir=tmp_path, version="0.1.0", stop=asyncio.Event())
    password, url = caught.value.faults
    assert password.endswith("nowhere': No such file or directory")
    assert url.startswith("bus.url: ")
    assert "bus.username and bus.password_file" in url
    assert "secret" not in url


async def test_a_certificate_for_a_url_without_tls_is_refused_under_its_own_key(tmp_path: Path) -> None:
    config = PolicyConfig(bus=BusConfig(url="mqtt://broker", ca_file="/etc/ca.crt"))
    with pytest.raises(RequestError) as caught:
        await run_service(config, state_dir=tmp_path, version="0.1.0", stop=asyncio.Event())
    (fault,) = caught.value.faults
    assert fault.startswith("bus.ca_file: ")


async def test_without_http_no_token_is_made_or_looked_at(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    memory, http = MemoryTrials(), HttpConfig(port=-1, token_file=str(tmp_path / "nowhere"))
    own_token = tmp_path / "http.token"
    async with served(memory.trials, memory.jobs, http=http, own_token=own_token, clock_s=lambda: NOW_S) as url:
        assert (url, caplog.messages) == ("", [])
    assert not own_token.exists()


async def test_a_subscription_that_the_broker_refuses_is_a_trouble_of_the_service(tmp_path: Path) -> None:
    config = PolicyConfig(bus=BusConfig(url="mqtt://broker"))
    service = _Service(config, state_dir=tmp_path, clock_s=lambda: NOW_S, grace_s=30.0)
    assert service._bus is not None
    assert service._bus_trouble() == "the broker has not answered yet"
    service._bus.connected = True
    assert service._bus_trouble() is None
    refusals = service._bus._refusals
    refusals.on_subscribed(refusals.on_subscribing(["gridchase/v1/user/#"]), [128])
    assert "refuses the subscription to gridchase/v1/user/#" in str(service._bus_trouble())


async def test_the_service_drops_the_surplus_of_a_flood() -> None:
    bus = _bus(BusConfig(url="mqtt://broker", root="site/a"), [])
    assert bus is not None
    assert bus.quotas is not None
    quotas = bus.quotas
    allowed = [quotas.allows(b"site/a/user/mallory/job/j%d/run/r/metric" % k, 0.0) for k in range(21_000)]
    assert sum(allowed) == 20_000
    assert quotas.allows(b"site/a/user/alice/job/j/run/r/metric", 0.0)


class FloodedService:
    """The service as it is wired, on virtual time, with a slow database; its broker is what the test says."""

    def __init__(self, state_dir: Path, *, transaction_s: float) -> None:
        self.memory = MemoryTrials()
        self.memory.database.delay_s = transaction_s
        config = PolicyConfig(bus=BusConfig(url="mqtt://broker"))
        self.service = _Service(config, state_dir=state_dir, clock_s=lambda: NOW_S, grace_s=30.0)
        self.service._trials = self.memory.trials
        assert self.service._bus is not None
        self.bus = self.service._bus
        self.service._subscriber.subscribe(self.bus)

    def ask(self, user: str, run: str) -> None:
        """Let a request arrive, as the socket to the broker lets it through."""
        key = RunKey(user, run, run)
        request = trial_request(run=run, correlation=run, reply_to=TOPICS.run(key, "trial/answer"))
        topic = TOPICS.run(key, "trial/request")
        assert self.bus.quotas is not None
        if self.bus._allows(self.bus.quotas, topic.encode()):
            self.bus._on_message(topic, encode(request), False)

    async def answer_to(self, user: str, run: str) -> tuple[TrialAnswer, float]:
        """Ask, and return the answer, and how long it took [s]."""
        loop, topic = asyncio.get_running_loop(), TOPICS.run(RunKey(user, run, run), "trial/answer")
        began_s = loop.time()
        self.ask(user, run)
        while loop.time() < began_s + 60.0:
            await asyncio.sleep(0.01)
            for message in self.bus._outbox._events.values():
                if message.topic == topic:
                    return decode(message.payload, TrialAnswer), loop.time() - began_s
        raise AssertionError(f"{topic} stays without an answer")

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Run the tasks that answer."""
        async with asyncio.TaskGroup() as tasks:
            answering = []
            for name, work in self.service._workers():
                if name.startswith("responder"):
                    answering.append(tasks.create_task(work, name=name))
                else:
                    work.close()
            yield
            for task in answering:
                task.cancel()


async def test_one_users_flood_delays_no_request_of_another(tmp_path: Path) -> None:
    flooded = FloodedService(tmp_path, transaction_s=0.1)
    async with flooded.answering():
        for number in range(1_000):  # at once, and within every quota: 6 s of work for the database
            flooded.ask("mallory", f"m{number}")
        early, early_s = await flooded.answer_to("alice", "early")
        for number in range(22_000):  # more than all that is read at once
            flooded.ask("mallory", f"m{number % 1_000}")
        late, late_s = await flooded.answer_to("alice", "late")
    assert "store_unavailable" not in {early.reason, late.reason}
    assert max(early_s, late_s) < 0.4
    assert flooded.bus.quotas is not None
    assert flooded.bus.quotas.surplus()["user mallory"] >= 2_000
