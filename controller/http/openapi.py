"""The OpenAPI 3.1 document of the controller's HTTP API.

`python -m controller.http.openapi > docs/controller-api.json` makes it anew; a test keeps it equal to what is served.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from controller.http.health import Liveness, Readiness
from controller.http.pauses import PATH, ListedRun, PauseRequest, ResumeRequest
from controller.ports import PauseState
from publishers.shared.http.openapi import (
    LICENSE,
    answer,
    as_json,
    path_item,
    path_parameters,
    problem_answer,
    schemas_of,
)
from publishers.shared.http.requests import JSON

_DESCRIPTION: Final = """\
How a controller is, and what people ask of the runs on its node: to pause, and to go on.

Health and metrics are open. Of runs, whoever asks on the controller's machine reads without a token; all else needs
one.
All times are Unix seconds, durations seconds.
"""
_SCHEME: Final = "what `http.token` in the state directory of the controller holds, or a line of `http.token_file`"
_PROBLEMS: Final[Mapping[int, tuple[str, str]]] = {
    400: ("BadRequest", "It cannot be read: a name or the body is not what this document says."),
    401: ("Unauthorized", "The token is missing, or is not known."),
    403: (
        "Forbidden",
        "The token is another user's; a browser sends it for another site, or asks a loopback address by its name.",
    ),
    404: ("NotFound", "No such run trains on this node now."),
    408: ("RequestTimeout", "The body did not arrive in time."),
    409: ("Conflict", "The run cannot be paused, or not by this controller."),
    413: ("TooLarge", "The body is longer than 4 KiB."),
    415: ("UnsupportedMediaType", "The body is not `application/json` in UTF-8, uncompressed."),
    422: ("Unprocessable", "It can be read, but asks for more time than the training lets a pause last."),
    503: ("Unavailable", "Too many are asking: ask again."),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What is asked and answered.

    Attributes:
        summary: what it does.
        path, method: where.
        answer: the type of the answer.
        status: that of the answer.
        body: the type of the body; None: there is none.
        problems: the statuses of refusals, beside 403 and 503.
        content_type: of the answer.
        other_answer: the status at which the answer says no, in the same type; None: there is none.
        access: whether a token is needed: `open` (never), `remote` (from other machines) or `write` (always).
    """

    summary: str
    path: str
    method: str = "GET"
    answer: Any = str
    status: int = 200
    body: Any = None
    problems: tuple[int, ...] = ()
    content_type: str = JSON
    other_answer: int | None = None
    access: Literal["open", "remote", "write"] = "open"


_OF_A_RUN: Final = (400, 401, 404)
_WITH_BODY: Final = (*_OF_A_RUN, 408, 413, 415)
OPERATIONS: Final[Mapping[str, Operation]] = {
    "live": Operation(summary="Whether the process lives", path="/healthz", answer=Liveness),
    "ready": Operation(
        summary="Whether the controller can do its work", path="/readyz", answer=Readiness, other_answer=503
    ),
    "metrics": Operation(summary="Metrics for Prometheus", path="/metrics", content_type="text/plain"),
    "listRuns": Operation(
        summary="The runs that train on this node now, with their pauses",
        path="/v1/runs",
        answer=list[ListedRun],
        problems=(401,),
        access="remote",
    ),
    "showPause": Operation(
        summary="The pauses of a run",
        path=f"{PATH}/pause",
        answer=PauseState,
        problems=_OF_A_RUN,
        access="remote",
    ),
    "pause": Operation(
        summary="Ask a run to pause, or change until when and why it does",
        path=f"{PATH}/pause",
        method="POST",
        answer=PauseState,
        status=202,
        body=PauseRequest,
        problems=(*_WITH_BODY, 409, 422),
        access="write",
    ),
    "resume": Operation(
        summary="End the pause of a run, if it has one",
        path=f"{PATH}/resume",
        method="POST",
        answer=PauseState,
        body=ResumeRequest,
        problems=_WITH_BODY,
        access="write",
    ),
}
"""What is served, by the name of its route."""


def document() -> bytes:
    """Return the document as JSON, two spaces deep, with a line break at its end."""
    types = [kind for each in OPERATIONS.values() for kind in (each.answer, each.body) if kind is not None]
    refs, components = schemas_of(types)
    paths: dict[str, dict[str, Any]] = {}
    for name, each in OPERATIONS.items():
        paths.setdefault(each.path, path_item(each.path))[each.method.lower()] = _operation(name, each, refs)
    return as_json(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "gridchase controller",
                "version": "1",
                "description": _DESCRIPTION,
                "license": LICENSE,
            },
            "servers": [{"url": "http://127.0.0.1:9321", "description": "where it serves by default"}],
            "paths": paths,
            "components": {
                "schemas": components,
                "parameters": path_parameters(),
                "responses": {
                    name: problem_answer(status, description, refs) for status, (name, description) in _PROBLEMS.items()
                },
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": _SCHEME}},
            },
        }
    )


def _operation(name: str, operation: Operation, refs: Mapping[str, Any]) -> dict[str, Any]:
    statuses = sorted({403, 503, *operation.problems})
    schema = refs[repr(operation.answer)]
    responses = {f"{status}": {"$ref": f"#/components/responses/{_PROBLEMS[status][0]}"} for status in statuses}
    responses[f"{operation.status}"] = answer("The answer.", operation.content_type, schema)
    if operation.other_answer is not None:
        responses[f"{operation.other_answer}"] = answer("It cannot.", operation.content_type, schema)
    found: dict[str, Any] = {
        "operationId": name,
        "summary": operation.summary,
        "responses": dict(sorted(responses.items())),
    }
    if operation.access != "open":
        found["security"] = [{"token": []}, *([{}] if operation.access == "remote" else [])]
    if operation.body is not None:
        found["requestBody"] = {"required": True, "content": {JSON: {"schema": refs[repr(operation.body)]}}}
    return found


if __name__ == "__main__":
    sys.stdout.write(document().decode())
