"""The OpenAPI document: what is committed is what the code serves, and it keeps to the rules of OpenAPI."""

import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from policies.service.http.openapi import document
from policies.service.http.routes import OPERATIONS, Operation
from publishers.shared.http.problems import Problem

ROOT = Path(__file__).parents[4]
COMMITTED = ROOT / "docs" / "policy-api.json"
PAGE = (ROOT / "docs" / "policy-http.md").read_text(encoding="utf-8")
SOURCES = ROOT / "policies" / "service"
DOCUMENT: dict[str, Any] = msgspec.json.decode(document())
DONE: list[tuple[Operation, dict[str, Any]]] = [
    (operation, DOCUMENT["paths"][operation.path][operation.method.lower()]) for operation in OPERATIONS
]


def test_the_committed_document_is_that_of_the_code() -> None:
    assert COMMITTED.read_bytes() == document(), (
        "write it anew: python -m policies.service.http.openapi > docs/policy-api.json"
    )


def test_every_operation_is_there_once_under_a_name_of_its_own() -> None:
    named = [
        one["operationId"] for item in DOCUMENT["paths"].values() for key, one in item.items() if key != "parameters"
    ]
    assert sorted(named) == sorted({operation.name for operation in OPERATIONS})
    assert len(named) == len(OPERATIONS)


def test_writes_need_a_token_and_reads_do_not() -> None:
    assert {operation.name for operation, one in DONE if "security" in one} == {
        operation.name for operation in OPERATIONS if operation.method != "GET"
    }
    assert all(("401" in one["responses"]) == operation.is_write for operation, one in DONE)


def test_every_reference_leads_somewhere() -> None:
    references = re.findall(r'"\$ref": "#/([^"]*)"', document().decode())
    assert len(references) > 50
    for reference in references:
        found = DOCUMENT
        for key in reference.split("/"):
            found = found[key]


def test_every_parameter_of_a_path_is_described() -> None:
    for path, item in DOCUMENT["paths"].items():
        described = [one["$ref"].rsplit("/")[-1] for one in item.get("parameters", [])]
        assert described == re.findall(r"{(\w+)}", path)


@pytest.mark.parametrize("name", [operation.name for operation, one in DONE if "requestBody" in one])
def test_the_examples_are_what_their_schema_says(name: str) -> None:
    (content,) = (one["requestBody"]["content"]["application/json"] for done, one in DONE if done.name == name)
    schema = content["schema"] | {"components": DOCUMENT["components"]}
    assert content["examples"]
    for example in content["examples"].values():
        jsonschema_rs.validate(schema, example["value"])


def test_the_page_tells_every_reason_of_a_refusal() -> None:
    shared = (ROOT / "publishers/shared/http").glob("*.py")
    sources = [*(SOURCES / "http").glob("*.py"), SOURCES / "errors.py", *shared]
    code = "".join(source.read_text(encoding="utf-8") for source in sources)
    given = re.findall(
        r'(?:HTTPStatus\.[A-Z_]+, |status, |unavailable\()"(\w+)"|^    reason = "(\w+)"', code, re.MULTILINE
    )
    told = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| \d+ \|([^|]*)\|", PAGE, re.MULTILINE)))
    assert {first or second for first, second in given} == set(told)


def test_the_page_shows_a_problem() -> None:
    (shown,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert list(msgspec.json.decode(shown)) == list(Problem.__struct_fields__)


def test_no_pattern_is_in_the_dialect_of_python() -> None:
    patterns = re.findall(r'"pattern": ("[^"]*")', document().decode())
    assert patterns
    assert [one for one in map(msgspec.json.decode, patterns) if not re.fullmatch(r"\^((?!\\[AZz]).)*\$", one)] == []
