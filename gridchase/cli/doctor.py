"""`gridchase doctor`: what a training in this environment would be called, and whether its messages arrive.

It needs the base install alone, and changes nothing: it speaks as a job of its own.
"""

import argparse
import json
import os
import time
from dataclasses import asdict, dataclass
from typing import Final

import msgspec

from gridchase.cli.bus_routes import TRAINING, faults_of, probing, training_routes
from publishers.messages.codec import DecodeError, Outgoing, decode, encode
from publishers.messages.reports import HEARD, Notice
from publishers.messages.topics import Topics
from publishers.mqtt.topic_probe import Party, probe_routes, publish_and_wait
from publishers.shared.printable import printable
from publishers.training.coerce import QUIET, is_switched_on
from publishers.training.run.run_search import RunSearch
from publishers.training.settings import (
    BROKER_SETTINGS,
    VARIABLES,
    PublisherOptions,
    Settings,
    SettingsError,
    resolve,
    why_off,
)

HEARD_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A setting, its value, and where that comes from."""

    setting: str
    value: str
    source: str


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    verb.add_argument("--job", help="the job's name, where the training passes job=…")
    verb.add_argument("--broker", metavar="URL", help="the broker's URL, where the training passes broker=…")
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(do=lambda options: doctor(job=options.job, broker=options.broker, as_json=options.json))


def doctor(*, job: str | None, broker: str | None, as_json: bool) -> int:
    """Print what a training here would use, and whether its messages arrive; return 0 if nothing is wrong."""
    if reason := why_off():
        return _print([], [], [f"publishing is off: {reason}"], as_json=as_json)
    given = PublisherOptions(job=job, broker=broker)
    try:
        settings = resolve(os.environ, **given)
        settings = RunSearch(settings).find(is_due=True, is_last=True) or settings
    except SettingsError as error:
        return _print([], [], error.faults, as_json=as_json)
    found = findings(settings, given)
    notes, faults = _try_bus(probing(settings))
    return _print(found, notes, faults, as_json=as_json)


def findings(settings: Settings, given: PublisherOptions) -> list[Found]:
    """Return each setting with its value and its source; a password is never shown."""
    address = settings.broker
    gpus = ", ".join(str(gpu) for gpu in settings.gpus) or "those on which the driver sees the process"
    values = {
        "job": settings.job,
        "run": "random for each process" if settings.run_is_random else settings.run,
        "rank": f"{settings.rank} of {settings.world_size}",
        "gpus": gpus,
        "broker": address.url,
        "user": settings.user,
        "password": "set" if address.password else "none",
        "root": settings.root,
        "CA file": address.ca_file or "those of the system",
        "pausable": "yes" if settings.pausable else "no",
        "early stop": "yes" if settings.early_stop else "no",
        "emissions file": str(settings.emissions_path or "none"),
        "quiet": "yes" if is_switched_on(QUIET) else "no",
        "boot id": settings.boot_id,
    }
    sources = {name: _source(name, given) for name in values}
    if not address.username:
        sources["user"] = "login name"
    if not address.password:
        sources["password"] = "default"  # noqa: S105 — where it comes from, not a password
    return [Found(setting=name, value=value, source=sources[name]) for name, value in values.items()]


def _source(setting: str, given: PublisherOptions) -> str:
    """Return the argument or the variable that a setting comes from, or "default"."""
    if given.get(setting) is not None:
        return f"--{setting}"
    return next((variable for variable in VARIABLES.get(setting, ()) if os.environ.get(variable)), "default")


def _try_bus(settings: Settings) -> tuple[list[str], list[str]]:
    """Publish as a training does; return what arrived, and what is wrong."""
    party = Party(name=TRAINING, address=settings.broker, names=BROKER_SETTINGS)
    routes = training_routes(settings)
    report = probe_routes([party], routes)
    if report.faults:
        return [], list(report.faults.values())
    if faults := [*report.limits, *faults_of(report.results, Topics(settings.root))]:
        return [], faults
    n_told = sum(result.is_proven for result in report.results)
    notes = [f"{n_told} of the {len(routes)} topics that a training publishes arrive or are accepted by the broker"]
    node = _node_that_hears(party, settings)
    if node is None:
        fault = (
            f"no controller of this machine answers at {settings.broker.url} below {settings.root!r}: does `gridchase "
            f"controller` run here, with this broker and this bus.root, and the same boot id ({settings.boot_id})?"
        )
        return notes, [fault]
    return [*notes, f"the controller of node {node} hears this environment"], []


def _node_that_hears(party: Party, settings: Settings) -> str | None:
    """Start and end a run that claims no GPU; return the node whose controller has said that it hears it."""
    topics, running = Topics(settings.root), settings.status(started_at_s=time.time())
    topic = topics.rank(settings.boot_id, settings.key, settings.rank, "status")
    finished = msgspec.structs.replace(running, state="finished")
    notices = publish_and_wait(
        party,
        Outgoing(topic=topic, payload=encode(running), qos=1),
        replies=topics.run(settings.key, "notice"),
        until=lambda payload: _hearing_node(payload) is not None,
        afterwards=[Outgoing(topic=topic, payload=encode(finished), qos=1)],
        timeout_s=HEARD_TIMEOUT_S,
    )
    return next((node for payload in notices if (node := _hearing_node(payload)) is not None), None)


def _hearing_node(payload: bytes) -> str | None:
    try:
        notice = decode(payload, Notice)
    except DecodeError:
        return None
    return notice.node if notice.code == HEARD else None


def _print(found: list[Found], notes: list[str], faults: list[str], *, as_json: bool) -> int:
    if as_json:
        report = {"settings": [asdict(each) for each in found], "notes": notes, "faults": faults}
        print(json.dumps(report, indent=2))
        return int(bool(faults))
    values = [printable(each.value) for each in found]
    width = max(map(len, values), default=0)
    name_width = max((len(each.setting) for each in found), default=0)
    for each, value in zip(found, values, strict=True):
        print(f"{each.setting:<{name_width}}  {value:<{width}}  ({each.source})")
    for note in notes:
        print(f"ok: {printable(note)}")
    for fault in faults:
        print(f"wrong: {printable(fault)}")
    if not faults:
        print("nothing is wrong")
    return int(bool(faults))
