"""The policy service as a whole, where it needs neither a broker nor a database."""

import asyncio
from pathlib import Path

import pytest

from policies.service.app import _bus, _Service, run_service
from policies.service.config import HttpConfig, PolicyConfig
from policies.service.errors import RequestError
from policies.service.http.app import served
from publishers.mqtt.bus_config import BusConfig
from tests.policies.service.memory_store import NOW_S, MemoryTrials


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
