"""What the OpenAPI 3.1 documents of our HTTP APIs have in common: schemas, paths, parameters, and answers."""

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from publishers.shared.http.problems import PROBLEM, Problem
from publishers.shared.http.requests import PathName, UserName

USER: Final = "ada"
JOB: Final = "resnet50"
RUN: Final = "night-17"
"""The names in examples."""
LICENSE: Final = {"name": "Apache-2.0", "identifier": "Apache-2.0"}
_PARAMETERS: Final = {
    "user": ("Whose job it is: the broker's user or, without one, the login name.", USER, UserName),
    "job": ("The name of the job.", JOB, PathName),
    "run": ("The identity of the run, as `GRIDCHASE_RUN` or its launcher gives it.", RUN, PathName),
}
_PROBLEM_HEADERS: Final = {401: "WWW-Authenticate", 503: "Retry-After"}


def as_json(document: dict[str, Any]) -> bytes:
    """Return a document as JSON, two spaces deep, with a line break at its end."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


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


def path_parameters() -> dict[str, Any]:
    """Return the parameters that paths may name: user, job and run."""
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


def answer(description: str, content_type: str, schema: Any) -> dict[str, Any]:  # noqa: ANN401 — a JSON value
    """Return an answer with a body."""
    return {"description": description, "content": {content_type: {"schema": schema}}}


def problem_answer(status: int, description: str, refs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a request that is refused with a status."""
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
