"""The OpenAPI document of the controller: what is committed is what the code serves."""

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from aiohttp import web

from controller.http.goals import GoalPreviewRequest, GoalRequest, goal_routes
from controller.http.health import Liveness, Readiness, health_routes
from controller.http.openapi import OPERATIONS, document
from controller.http.pauses import ListedRun, PauseRequest, ResumeRequest, pause_routes
from controller.http.pins import (
    ExemptRequest,
    GpuPinPreviewRequest,
    GpuPinRequest,
    GpuReleaseRequest,
    PinPreviewRequest,
    PinRequest,
    ReleaseRequest,
    pin_routes,
)
from controller.ports.orders import GoalPreview, GoalState, PinPreview, PinState
from tests.controller.http.test_server import AIMED, KEY, PINNED, RUNNING, WELL, FakeGoals, FakePauses, FakePins

ROOT = Path(__file__).parents[3]
DOCUMENT: dict[str, Any] = msgspec.json.decode(document())


async def refuse(_request: web.Request) -> str:
    """Authenticate nobody."""
    raise PermissionError


def operations() -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Return the method and the path of each operation of the document, and what it says, by name."""
    return {
        one["operationId"]: (method.upper(), path, one)
        for path, item in DOCUMENT["paths"].items()
        for method, one in item.items()
        if method != "parameters"
    }


def validator(schema: dict[str, Any]) -> jsonschema_rs.Draft202012Validator:
    """Return what checks a value by a schema of the document."""
    return jsonschema_rs.Draft202012Validator(schema | {"components": DOCUMENT["components"]})


def test_the_committed_document_is_that_of_the_code() -> None:
    assert (ROOT / "docs" / "controller-api.json").read_bytes() == document(), (
        "write it anew: python -m controller.http.openapi > docs/controller-api.json"
    )


def test_each_route_is_described_as_it_is_served() -> None:
    orders = [*pause_routes(FakePauses(), refuse), *pin_routes(FakePins(), refuse), *goal_routes(FakeGoals(), refuse)]
    routes = [*health_routes(lambda: WELL), *orders]
    described = {name: (method, path, "security" in one) for name, (method, path, one) in operations().items()}
    assert described == {route.name: (route.method, route.path, route.authenticate is not None) for route in routes}


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("live", Liveness()),
        ("ready", Readiness(ready=False, troubles=["there is no GPU"], notes=[])),
        ("listRuns", [ListedRun(**asdict(RUNNING), **KEY._asdict())]),
        ("showPause", RUNNING),
        ("pause", RUNNING),
        ("resume", RUNNING),
        ("showPin", PINNED),
        ("pin", PINNED),
        ("previewPin", PinPreview(power_limit_w=205.0, n_gpus=1)),
        ("exempt", PINNED),
        ("release", PinState(state="none")),
        ("listGpuPins", [replace(PINNED, gpu_uuid="GPU-1")]),
        ("pinGpu", PINNED),
        ("previewGpuPin", PinPreview(power_limit_w=205.0, n_gpus=1)),
        ("releaseGpu", PinState(state="none")),
        ("showGoal", AIMED),
        ("setGoal", AIMED),
        ("previewGoal", GoalPreview(planned_power_limit_w=205.0)),
        ("resetGoal", GoalState(state="none")),
    ],
)
def test_an_answer_obeys_its_schema(name: str, answer: object) -> None:
    responses = operations()[name][2]["responses"]
    content = responses[f"{OPERATIONS[name].status}"]["content"]["application/json"]
    checker = validator(content["schema"])
    checker.validate(msgspec.json.decode(msgspec.json.encode(answer)))
    assert not checker.is_valid("nothing of the kind")


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("pause", PauseRequest(why="a demo", for_s=60.0)),
        ("resume", ResumeRequest()),
        ("pin", PinRequest(power_limit_w=205.0, until_s=1.7e9, why="a demo")),
        ("previewPin", PinPreviewRequest(power_limit_w=205.0, until_s=1.7e9)),
        ("exempt", ExemptRequest(until_s=1.7e9, why="a demo")),
        ("release", ReleaseRequest()),
        ("pinGpu", GpuPinRequest(gpu_uuid="GPU-1", power_limit_w=205.0, until_s=1.7e9, why="a demo")),
        ("previewGpuPin", GpuPinPreviewRequest(gpu_uuid="GPU-1", power_limit_w=205.0, until_s=1.7e9)),
        ("releaseGpu", GpuReleaseRequest(gpu_uuid="GPU-1")),
        ("setGoal", GoalRequest(max_slowdown_ratio=1.08, until_s=1.7e9, why="a demo")),
        ("previewGoal", GoalPreviewRequest(deadline_s=1.7e9)),
        ("resetGoal", ReleaseRequest()),
    ],
)
def test_a_body_obeys_its_schema(name: str, body: object) -> None:
    checker = validator(operations()[name][2]["requestBody"]["content"]["application/json"]["schema"])
    checker.validate(msgspec.to_builtins(body))
    assert not checker.is_valid({"tomorrow": "until"})


def test_every_reference_leads_somewhere() -> None:
    references = re.findall(r'"\$ref": "#/([^"]*)"', document().decode())
    assert len(references) > 20
    for reference in references:
        found = DOCUMENT
        for key in reference.split("/"):
            found = found[key]
