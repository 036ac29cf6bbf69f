"""What the OpenAPI 3.1 documents of our HTTP APIs have in common: schemas, paths, parameters, and answers."""

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from publishers.shared.http.problems import PROBLEM, Problem
from publishers.shared.http.requests import JSON, PathName, UserName

USER: Final = "ada"
JOB: Final = "resnet50"
RUN: Final = "night-17"
"""The names in examples."""
_LICENSE: Final = {"name": "Apache-2.0", "identifier": "Apache-2.0"}
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
    404: ("NotFound", "There is no such thing."),
    408: ("RequestTimeout", "The body did not arrive in time."),
    409: ("Conflict", "It cannot be done now."),
    413: ("TooLarge", "The body is too long."),
    415: ("UnsupportedMediaType", "The body is not `application/json` in UTF-8, uncompressed."),
    422: ("Unprocessable", "It can be read, but is wrong in itself."),
    503: ("Unavailable", "Too many are asking: ask again."),
}
"""The name of each refusal, and what it means where an API does not say that more exactly."""
_PROBLEM_HEADERS: Final = {401: "WWW-Authenticate", 503: "Retry-After"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What is asked and answered.

    Attributes:
        summary: what it does.
        path, method: where.
        answer: the type of the answer.
        status: that of the answer.
        query: the type of the parameters; None: there are none.
        body: the type of the body; None: there is none.
        problems: the statuses of refusals, beside 403 and 503.
        content_type: of the answer.
        other_content_types: of the same answer as text, where that is asked for.
        other_answer: the status at which the answer says no, in the same type; None: there is none.
        access: whether a token is needed: `open` (never), `remote` (from other machines) or `write` (always).
    """

    summary: str
    path: str
    method: str = "GET"
    answer: Any = str
    status: int = 200
    query: type[msgspec.Struct] | None = None
    body: Any = None
    problems: tuple[int, ...] = ()
    content_type: str = JSON
    other_content_types: tuple[str, ...] = ()
    other_answer: int | None = None
    access: Literal["open", "remote", "write"] = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """What its document says of an API as a whole.

    Attributes:
        title: its name.
        description: what it is for, in Markdown.
        port: where it serves by default.
        problems: what refusals mean here, by status, where that is more than everywhere.
        scheme: what a token is; "": there is none.
    """

    title: str
    description: str
    port: int
    problems: Mapping[int, str]
    scheme: str = ""


def describe(api: Api, operations: Mapping[str, Operation]) -> bytes:
    """Return the document of an API as JSON; the operations are by the name of their route."""
    types = [kind for each in operations.values() for kind in (each.answer, each.body) if kind is not None]
    schemas = schemas_of(types)
    paths: dict[str, dict[str, Any]] = {}
    for name, each in operations.items():
        paths.setdefault(each.path, path_item(each.path))[each.method.lower()] = _operation(name, each, schemas[0])
    return frame(api, paths, schemas)


def _operation(name: str, operation: Operation, refs: Mapping[str, Any]) -> dict[str, Any]:
    schema = refs[repr(operation.answer)]
    responses = {f"{status}": problem_ref(status) for status in (403, 503, *operation.problems)}
    given = answer("The answer.", operation.content_type, schema)
    given["content"] |= {each: {"schema": {"type": "string"}} for each in operation.other_content_types}
    responses[f"{operation.status}"] = given
    if operation.other_answer is not None:
        responses[f"{operation.other_answer}"] = answer("It cannot.", operation.content_type, schema)
    found: dict[str, Any] = {
        "operationId": name,
        "summary": operation.summary,
        "responses": dict(sorted(responses.items())),
    }
    if operation.query is not None:
        found["parameters"] = query_parameters(operation.query)
    if operation.access != "open":
        found["security"] = [{"token": []}, *([{}] if operation.access == "remote" else [])]
    if operation.body is not None:
        found["requestBody"] = {"required": True, "content": {JSON: {"schema": refs[repr(operation.body)]}}}
    return found


def frame(api: Api, paths: Mapping[str, Any], schemas: tuple[dict[str, Any], dict[str, Any]]) -> bytes:
    """Return a document as JSON, two spaces deep, with a line break at its end.

    Args:
        api: of which API.
        paths: the items, by path.
        schemas: as of `schemas_of`.
    """
    refs, components = schemas
    parts: dict[str, Any] = {"schemas": components}
    if any("parameters" in item for item in paths.values()):
        parts["parameters"] = _path_parameters()
    parts["responses"] = _problems_of(api, paths, refs)
    if api.scheme:
        parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer", "description": api.scheme}}
    document = {
        "openapi": "3.1.0",
        "info": {"title": api.title, "version": "1", "description": api.description, "license": _LICENSE},
        "servers": [{"url": f"http://127.0.0.1:{api.port}", "description": "where it serves by default"}],
        "paths": paths,
        "components": parts,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _problems_of(api: Api, paths: Mapping[str, Any], refs: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the refusals that the paths refer to, by name."""
    operations = [one for item in paths.values() for key, one in item.items() if key != "parameters"]
    given = [response for one in operations for response in one["responses"].values()]
    return {
        name: _problem_answer(status, api.problems.get(status, sentence), refs)
        for status, (name, sentence) in _PROBLEMS.items()
        if problem_ref(status) in given
    }


def problem_ref(status: int) -> dict[str, str]:
    """Return the reference to what a refusal with a status is."""
    return {"$ref": f"#/components/responses/{_PROBLEMS[status][0]}"}


def schemas_of(types: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema of each type and of `Problem`, by `repr`, and those of the records that they refer to."""
    kinds = [*types, Problem]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    refs = {repr(kind): portable(schema) for kind, schema in zip(kinds, schemas, strict=True)}
    return refs, {name: portable(one) for name, one in components.items()}


def path_item(path: str) -> dict[str, Any]:
    """Return the item of a path, with the parameters that it names."""
    keys = re.findall(r"{(\w+)}", path)
    return {"parameters": [{"$ref": f"#/components/parameters/{key}"} for key in keys]} if keys else {}


def _path_parameters() -> dict[str, Any]:
    return {
        key: {
            "name": key,
            "in": "path",
            "required": True,
            "description": description,
            "schema": portable(msgspec.json.schema(kind)),
            "example": example,
        }
        for key, (description, example, kind) in _PARAMETERS.items()
    }


def query_parameters(query: type[msgspec.Struct]) -> list[dict[str, Any]]:
    """Return the parameters behind the path."""
    _, components = schemas_of([query])
    properties: dict[str, Any] = components[query.__name__]["properties"]
    return [{"name": name, "in": "query", "required": False, "schema": one} for name, one in properties.items()]


def answer(description: str, content_type: str, schema: Any) -> dict[str, Any]:  # noqa: ANN401 — a JSON value
    """Return an answer with a body."""
    return {"description": description, "content": {content_type: {"schema": schema}}}


def _problem_answer(status: int, description: str, refs: Mapping[str, Any]) -> dict[str, Any]:
    found = answer(description, PROBLEM, refs[repr(Problem)])
    if header := _PROBLEM_HEADERS.get(status):
        found["headers"] = {header: {"required": True, "schema": {"type": "string"}}}
    return found


def portable(schema: Any) -> Any:  # noqa: ANN401 — a JSON value
    r"""Return a schema whose patterns every dialect reads (`^…$`; `\A…\Z` is Python's), its descriptions as written."""
    match schema:
        case dict():
            return {key: _mended(key, portable(value)) for key, value in schema.items()}
        case list():
            return [portable(item) for item in schema]
        case _:
            return schema


def _mended(key: str, value: Any) -> Any:  # noqa: ANN401 — a JSON value
    if key == "pattern" and isinstance(value, str):
        return value.replace(r"\A", "^").replace(r"\Z", "$")
    if key == "description" and isinstance(value, str):
        return inspect.cleandoc(value)
    return value
