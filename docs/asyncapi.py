"""Makes docs/asyncapi.yaml: `python docs/asyncapi.py`.

The schemas come from the records of `publishers.messages`, with their bounds; the channels, and what each field means,
from the tables of docs/topics.md.
"""

import re
import sys
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from publishers.messages import reports, training
from publishers.messages.codec import Message
from publishers.messages.topics import DEFAULT_ROOT

DOCS: Final = Path(__file__).parent
DOCUMENT: Final = DOCS / "asyncapi.yaml"
CONTENT_TYPES: Final = {"JSON": "application/json", "MessagePack": "application/vnd.msgpack"}
PARAMETERS: Final = {
    "boot_id": "the boot of the machine, `/proc/sys/kernel/random/boot_id`",
    "user": "the user on the broker, else the login name",
    "job": "the name under which the training recurs",
    "run": "the recurrence",
    "rank": "the number of the process in its run",
    "node": "the node, `node.name`",
    "uuid": "the UUID of the GPU",
    "zone": "the zone of the grid, `signal.zone`",
}


class Channel(NamedTuple):
    """A row of the overview: a topic below the root, and what is published there."""

    topic: str
    record: str
    content_format: str
    qos: str
    retained: str
    sent: str

    @property
    def key(self) -> str:
        """Return a name for it, such as `run.trial.request`."""
        return ".".join(level for level in self.topic.split("/") if not level.startswith("<"))


def describe_bus() -> dict[str, Any]:
    """Return the AsyncAPI document (version 3.0.0)."""
    text = (DOCS / "topics.md").read_text(encoding="utf-8")
    channels = list(_channels(text))
    kinds = {each.record: _record(each.record) for each in channels}
    _, schemas = msgspec.json.schema_components(kinds.values(), ref_template="#/components/schemas/{name}")
    meanings = _meanings(text)
    for name, schema in schemas.items():
        properties = {field: _known(each) for field, each in schema["properties"].items()}
        for field, meaning in meanings[name].items():
            properties[field]["description"] = meaning
        schema |= {"title": name, "description": cleandoc(schema["description"]), "properties": properties}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "gridchase",
            "version": "1.0.0",
            "description": "What gridchase publishes over MQTT 3.1.1. Names in topics are escaped, see topics.md.",
            "license": {"name": "Apache-2.0"},
        },
        "servers": {"local": {"host": "127.0.0.1:1883", "protocol": "mqtt", "protocolVersion": "3.1.1"}},
        "channels": {each.key: _channel(each) for each in channels},
        "operations": {each.key: _operation(each) for each in channels},
        "components": {
            "parameters": {name: {"description": meaning} for name, meaning in PARAMETERS.items()},
            "messages": {each.record: _message(each, kinds[each.record]) for each in channels},
            "schemas": {name: schemas[name] for name in sorted(schemas)},
        },
    }


def _known(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a field that is there: null stands for absent in Python alone, never on the bus."""
    schema = {name: _known(each) if name == "items" else each for name, each in schema.items()}
    choices = [_known(each) for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    if len(choices) == 1:
        schema = choices[0]
    elif choices:
        schema = schema | {"anyOf": choices}
    if schema.get("default", "") is None:
        del schema["default"]
    if "pattern" in schema:  # as ECMA-262 writes it
        schema = schema | {"pattern": schema["pattern"].replace(r"\A", "^").replace(r"\Z", "$")}
    if schema.pop("contentEncoding", None):  # in JSON; MessagePack has bytes
        schema["format"] = "binary"
    return schema


def _record(name: str) -> type[Message]:
    kind: type[Message] = getattr(reports, name, None) or getattr(training, name)
    return kind


def _channels(text: str) -> Iterator[Channel]:
    """Yield the rows of the overview that have a record."""
    overview = text.split("## Overview", maxsplit=1)[1].split("\n## ", maxsplit=1)[0]
    for line in overview.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        record = re.match(r"\[`(\w+)`\]", cells[1]) if line.startswith("| `") else None
        if record:
            yield Channel(cells[0].strip("`"), record[1], *cells[2:])


def _channel(channel: Channel) -> dict[str, Any]:
    names = re.findall(r"<(\w+)>", channel.topic)
    return {
        "address": f"{DEFAULT_ROOT}/{channel.topic.replace('<', '{').replace('>', '}')}",
        "messages": {channel.record: {"$ref": f"#/components/messages/{channel.record}"}},
        "parameters": {name: {"$ref": f"#/components/parameters/{name}"} for name in names},
    }


def _operation(channel: Channel) -> dict[str, Any]:
    """Return who sends how; a channel with two qualities of service has the higher one for its last message."""
    return {
        "action": "send",
        "channel": {"$ref": f"#/channels/{channel.key}"},
        "summary": _plain(channel.sent),
        "bindings": {"mqtt": {"qos": int(channel.qos[0]), "retain": channel.retained == "yes"}},
    }


def _message(channel: Channel, kind: type[Message]) -> dict[str, Any]:
    return {
        "name": channel.record,
        "summary": (kind.__doc__ or "").partition("\n")[0],
        "contentType": CONTENT_TYPES[channel.content_format],
        "payload": {"$ref": f"#/components/schemas/{channel.record}"},
    }


def _meanings(text: str) -> dict[str, dict[str, str]]:
    """Return what each field of each record means, with its unit."""
    sections = re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    return {name: dict(_fields(body)) for name, body in sections}


def _fields(body: str) -> Iterator[tuple[str, str]]:
    for line in body.splitlines():
        if line.startswith("| `"):
            field, _, unit, meaning = (cell.strip() for cell in line.strip("|").split("|", 3))
            yield field.strip("`"), _plain(meaning + (f" [{unit}]" if unit else ""))


def _plain(text: str) -> str:
    """Return markdown without its links."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def main() -> int:
    """Write the document."""
    document = yaml.safe_dump(describe_bus(), sort_keys=False, allow_unicode=True, width=120)
    DOCUMENT.write_text(f"# Made by `python docs/asyncapi.py`.\n{document}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
