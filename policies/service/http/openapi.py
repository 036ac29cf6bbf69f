"""The OpenAPI 3.1 document of the HTTP API, generated from the table of operations and the types of the records.

`python -m policies.service.http.openapi > docs/policy-api.json` regenerates it; a test keeps the two equal.
"""

import sys
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from policies.service.http.routes import OPERATIONS, Operation
from publishers.shared.http.openapi import Api, answer, frame, path_item, problem_ref, query_parameters, schemas_of
from publishers.shared.http.requests import JSON

_DESCRIPTION: Final = """\
Which batch size the next run of a recurring training should use, learned from run to run.

Reading is open; writing needs a token: an operator's, or that of the user whose jobs it is about.
All times are Unix seconds, energies joules, powers watts.
A run that cannot be told a batch size takes its default: it never waits for this service.
"""
_API: Final = Api(
    title="gridchase policy service",
    description=_DESCRIPTION,
    port=9322,
    problems={
        404: "There is no such job, or no such trial.",
        409: "The job has other candidates or another default, its user too many, or the trial has ended otherwise.",
        413: "The body is longer than 1 MiB, or an import than 64 MiB.",
        422: "It can be read, but is wrong in itself: a default that is no candidate, duplicates.",
        503: "The database does not answer, or too many are asking. Nothing was taken in: ask again.",
    },
    scheme="what `http.token` in the state directory of the service holds, or a line of `token_file`",
)
_EVERYWHERE: Final = (400, 403, 503)
_WRITES: Final = (401,)
_BODIES: Final = (408, 413, 415)


def document() -> bytes:
    """Return the document as JSON."""
    schemas = schemas_of([kind for operation in OPERATIONS for kind in _types_of(operation)])
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        item = paths.setdefault(operation.path, path_item(operation.path))
        item[operation.method.lower()] = _operation(operation, schemas[0])
    return frame(_API, paths, schemas)


def _types_of(operation: Operation) -> list[Any]:
    kinds = [operation.answer, operation.body, *operation.other_answers.values()]
    return [kind for kind in kinds if kind is not None]


def _operation(operation: Operation, refs: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": ["service" if operation.is_about_the_service else "trials"],
        "responses": _responses(operation, refs),
    }
    if parameters := query_parameters(operation.query):
        found["parameters"] = parameters
    if operation.is_write:
        found["security"] = [{"token": []}]
    if operation.body is not None:
        named = {name: {"value": msgspec.to_builtins(body)} for name, body in operation.examples.items()}
        content = {"schema": refs[repr(operation.body)], "examples": named}
        found["requestBody"] = {"required": True, "content": {JSON: content}}
    return found


def _responses(operation: Operation, refs: Mapping[str, Any]) -> dict[str, Any]:
    statuses = {*_EVERYWHERE, *operation.problems}
    statuses |= {*_WRITES} if operation.is_write else set()
    statuses |= {*_BODIES} if operation.body is not None else set()
    responses = {f"{status}": problem_ref(status) for status in sorted(statuses)}
    for status, kind in operation.other_answers.items():
        responses[f"{status}"] = answer("It cannot.", JSON, refs[repr(kind)])
    if operation.answer is None:
        return {"204": {"description": "It is done."}} | responses
    found = answer("The answer.", operation.content_type, refs[repr(operation.answer)])
    if operation.name == "requestBatchSize":
        found["links"] = _links()
    return {"200": found} | responses


def _links() -> dict[str, Any]:
    """Return what can be done with a trial that was just created."""
    job = {"user": "$request.path.user", "job": "$request.path.job"}
    of_run = job | {"run": "$response.body#/run"}
    links = {"trial": ("showTrial", of_run), "result": ("reportResult", of_run), "posterior": ("showPosterior", job)}
    return {name: {"operationId": target, "parameters": given} for name, (target, given) in links.items()}


if __name__ == "__main__":
    sys.stdout.write(document().decode())
