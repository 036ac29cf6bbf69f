"""The AsyncAPI document: it is that of the records and of the page of topics, and messages on the bus obey it."""

import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgpack
import pytest
import yaml

from publishers.messages.codec import Message
from tests.publishers.messages.test_golden import GOLDEN

DOCS = Path(__file__).parents[1] / "docs"


@cache
def document() -> dict[str, Any]:
    """Return the document in the repository."""
    read: dict[str, Any] = yaml.load((DOCS / "asyncapi.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)
    return read


def described() -> dict[str, Any]:
    """Return the document as `python docs/asyncapi.py` makes it."""
    spec = importlib.util.spec_from_file_location("docs_asyncapi", DOCS / "asyncapi.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: dict[str, Any] = module.describe_bus()
    return made


def test_the_document_is_up_to_date() -> None:
    assert document() == described(), "run `python docs/asyncapi.py`"


def test_every_field_has_a_description() -> None:
    schemas = document()["components"]["schemas"]
    fields = {f"{name}.{field}": each for name in schemas for field, each in schemas[name]["properties"].items()}
    assert [name for name, each in fields.items() if not each.get("description")] == []


def validator(record: str) -> jsonschema_rs.Draft202012Validator:
    """Return what checks a message of a record."""
    components = document()["components"]
    return jsonschema_rs.Draft202012Validator(
        {"$ref": f"#/components/schemas/{record}", "components": {"schemas": components["schemas"]}}
    )


@pytest.mark.parametrize(("message", "payload"), GOLDEN, ids=[type(message).__name__ for message, _ in GOLDEN])
def test_a_message_obeys_its_schema(message: Message, payload: bytes) -> None:
    fields = msgpack.unpackb(payload) if message.packed else json.loads(payload)
    texts = {name: "…" if isinstance(value, bytes) else value for name, value in fields.items()}
    checker = validator(type(message).__name__)
    checker.validate(texts)
    for name in required_fields(type(message).__name__):
        assert not checker.is_valid({key: value for key, value in texts.items() if key != name})


def required_fields(record: str) -> list[str]:
    """Return the fields that a record must have."""
    required: list[str] = document()["components"]["schemas"][record].get("required", [])
    return required
