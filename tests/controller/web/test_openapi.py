"""The OpenAPI document of a site's process: what is committed is what the code serves."""

import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from prometheus_client import CollectorRegistry

from controller.web.config import WebConfig
from controller.web.live.site_state import SiteState
from controller.web.openapi import OPERATIONS, document
from controller.web.routes import ReportRequest, live_routes, live_stream, site_routes
from controller.web.store import SqliteStore
from tests.controller.history.energy_history.records import TOPICS, run_message, run_record
from tests.controller.web.test_site import site
from tests.fakes import LoopClock

COMMITTED = Path(__file__).parents[3] / "docs" / "web-api.json"
DOCUMENT: dict[str, Any] = msgspec.json.decode(document())


def validator(name: str, status: int) -> jsonschema_rs.Draft202012Validator:
    """Return what checks an answer of an operation."""
    operation = DOCUMENT["paths"][OPERATIONS[name].path]["get"]
    content = operation["responses"][f"{status}"]["content"]["application/json"]
    return jsonschema_rs.Draft202012Validator(content["schema"] | {"components": DOCUMENT["components"]})


def test_the_committed_document_is_that_of_the_code() -> None:
    assert COMMITTED.read_bytes() == document(), "write it anew: python -m controller.web.openapi > docs/web-api.json"


async def test_each_route_is_described_as_it_is_served(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path, topics=TOPICS, config=WebConfig().retention)
    clock, state = LoopClock(), SiteState()
    routes = [
        *site_routes(store, clock=clock, troubles=list, gauges=CollectorRegistry()),
        *live_routes(live_stream(state, clock=clock, viewers_clock=clock), state=state, clock=clock),
    ]
    assert {name: (one.method, one.path) for name, one in OPERATIONS.items()} == {
        route.name: (route.method, route.path) for route in routes
    }
    assert all(route.authenticate is None for route in routes)


@pytest.mark.parametrize("by", ["job", "run", "node"])
async def test_an_answer_obeys_its_schema(by: str, tmp_path: Path) -> None:
    async with site(tmp_path) as served:
        served.bus.publish(*run_message(run_record(duration_s=60.0, energy_j=1e3, final=True)))
        await served.total_j()
        _, report = await served.get(f"/v1/report?by={by}")
        _, health = await served.get("/healthz")
    checker = validator("report", 200)
    checker.validate(report)
    assert not checker.is_valid(health)
    for status in (200, 503):
        validator("health", status).validate(health)


def test_each_parameter_is_one_that_is_read() -> None:
    described = {one["name"] for one in DOCUMENT["paths"]["/v1/report"]["get"]["parameters"]}
    assert described == set(ReportRequest.__struct_fields__)
    answers = DOCUMENT["paths"]["/v1/report"]["get"]["responses"]["200"]["content"]
    assert answers["text/csv"] == {"schema": {"type": "string"}}


def test_every_reference_leads_somewhere() -> None:
    references = re.findall(r'"\$ref": "#/([^"]*)"', document().decode())
    assert len(references) > 5
    for reference in references:
        found = DOCUMENT
        for key in reference.split("/"):
            found = found[key]
