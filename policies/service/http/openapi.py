"""The OpenAPI 3.1 document of the HTTP API, generated from the table of operations and the types of the records.

`python -m policies.service.http.openapi > docs/policy-api.json` regenerates it; a test keeps the two equal.
"""

import inspect
import re
import sys
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from policies.service.http.routes import JOB, OPERATIONS, RUN, USER, Operation, PathName, UserName
from publishers.shared.http.problems import PROBLEM, Problem
from publishers.shared.http.requests import JSON

VERSION: Final = "1"
_DESCRIPTION: Final = """\
Which batch size the next run of a recurring training should use, learned from run to run.

Reading is open; writing needs a token: an operator's, or that of the user whose jobs it is about.
All times are Unix seconds, energies joules, powers watts.
A run that cannot be told a batch size takes its default: it never waits for this service.
"""
_SCHEME: Final = "what `http.token` in the state directory of the service holds, or a line of `token_file`"
_PARAMETERS: Final = {
    "user": ("Whose job it is: the broker's user or, without one, the login name.", USER, UserName),
    "job": ("The name of the job.", JOB, PathName),
    "run": ("The identity of the run, as `GRIDCHASE_RUN` or its launcher gives it.", RUN, PathName),
}
_PROBLEMS: Final[Mapping[int, tuple[str, str]]] = {
    400: ("BadRequest", "It cannot be read: a name, a parameter or the body is not what this document says."),
    401: ("Unauthorized", "The token is missing, or is not known."),
    403: (
        "Forbidden",
        "The token is another user's; a browser sends it for another site, or asks a loopback address by its name.",
    ),
    404: ("NotFound", "There is no such job, or no such trial."),
    408: ("RequestTimeout", "The body did not arrive in time."),
    409: (
        "Conflict",
        "The job has other candidates or another default, its user has too many, or the trial has ended otherwise.",
    ),
    413: ("TooLarge", "The body is longer than 1 MiB, or an import than 64 MiB."),
    415: ("UnsupportedMediaType", "The body is not `application/json` in UTF-8, uncompressed."),
    422: ("Unprocessable", "It can be read, but is wrong in itself: a default that is no candidate, duplicates."),
    503: ("Unavailable", "The database does not answer, or too many are asking. Nothing was taken in: ask again."),
}
_RESPONSE_HEADERS: Final = {401: "WWW-Authenticate", 503: "Retry-After"}
_EVERYWHERE: Final = (400, 403, 503)
_WRITES: Final = (401,)
_BODIES: Final = (408, 413, 415)


def document() -> bytes:
    """Return the document as JSON, two spaces deep, with a line break at its end."""
    return msgspec.json.format(msgspec.json.encode(_document()), indent=2) + b"\n"


def _document() -> dict[str, Any]:
    types = [kind for operation in OPERATIONS for kind in _types_of(operation)]
    schemas, components = _schemas([*types, Problem])
    refs = dict(zip(map(repr, [*types, Problem]), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        item = paths.setdefault(operation.path, _path_item(operation.path))
        item[operation.method.lower()] = _operation(operation, refs)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "gridchase policy service",
            "version": VERSION,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:9322", "description": "where it serves by default"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "parameters": {key: _parameter(key) for key in _PARAMETERS},
            "responses": {name: _problem(status, refs) for status, (name, _) in _PROBLEMS.items()},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": _SCHEME}},
        },
    }


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
    if parameters := _query_parameters(operation.query):
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
    responses = {f"{status}": {"$ref": f"#/components/responses/{_PROBLEMS[status][0]}"} for status in sorted(statuses)}
    for status, kind in operation.other_answers.items():
        responses[f"{status}"] = _answer("It cannot.", JSON, refs[repr(kind)])
    if operation.answer is None:
        return {"204": {"description": "It is done."}} | responses
    answer = _answer("The answer.", operation.content_type, refs[repr(operation.answer)])
    if operation.name == "requestBatchSize":
        answer["links"] = _links()
    return {"200": answer} | responses


def _answer(description: str, content_type: str, schema: Any) -> dict[str, Any]:  # noqa: ANN401 — a JSON value
    return {"description": description, "content": {content_type: {"schema": schema}}}


def _links() -> dict[str, Any]:
    """Return what can be done with a trial that was just created."""
    job = {"user": "$request.path.user", "job": "$request.path.job"}
    of_run = job | {"run": "$response.body#/run"}
    links = {"trial": ("showTrial", of_run), "result": ("reportResult", of_run), "posterior": ("showPosterior", job)}
    return {name: {"operationId": target, "parameters": given} for name, (target, given) in links.items()}


def _problem(status: int, refs: Mapping[str, Any]) -> dict[str, Any]:
    answer = _answer(_PROBLEMS[status][1], PROBLEM, refs[repr(Problem)])
    if header := _RESPONSE_HEADERS.get(status):
        answer["headers"] = {header: {"required": True, "schema": {"type": "string"}}}
    return answer


def _path_item(path: str) -> dict[str, Any]:
    keys = re.findall(r"{(\w+)}", path)
    return {"parameters": [{"$ref": f"#/components/parameters/{key}"} for key in keys]} if keys else {}


def _parameter(key: str) -> dict[str, Any]:
    description, example, kind = _PARAMETERS[key]
    schema = _portable(msgspec.json.schema(kind))
    return {
        "name": key,
        "in": "path",
        "required": True,
        "description": description,
        "schema": schema,
        "example": example,
    }


def _query_parameters(query: type[msgspec.Struct]) -> list[dict[str, Any]]:
    _, components = _schemas([query])
    properties: dict[str, Any] = components[query.__name__]["properties"]
    return [{"name": name, "in": "query", "required": False, "schema": one} for name, one in properties.items()]


def _schemas(types: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the schema of each type, and those of the records that they refer to."""
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    return [_portable(schema) for schema in schemas], {name: _portable(one) for name, one in components.items()}


def _portable(schema: Any) -> Any:  # noqa: ANN401 — a JSON value
    r"""Return a schema whose patterns every dialect reads (`^…$`; `\A…\Z` is Python's), its descriptions as written."""
    match schema:
        case dict():
            return {key: _mended(key, _portable(value)) for key, value in schema.items()}
        case list():
            return [_portable(item) for item in schema]
        case _:
            return schema


def _mended(key: str, value: Any) -> Any:  # noqa: ANN401 — a JSON value
    if key == "pattern" and isinstance(value, str):
        return value.replace(r"\A", "^").replace(r"\Z", "$")
    if key == "description" and isinstance(value, str):
        return inspect.cleandoc(value)
    return value


if __name__ == "__main__":
    sys.stdout.write(document().decode())
