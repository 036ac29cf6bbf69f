"""The topics that a training and a controller use, as routes to probe, and what it means where one does not arrive.

Needs the base install alone: `gridchase doctor` runs where only the training side is installed.
"""

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import msgspec

from publishers.messages.codec import encode
from publishers.messages.reports import LimitChange, ProfileReport
from publishers.messages.topics import PROBE, RunKey, Topics
from publishers.mqtt.topic_probe import Route, RouteResult
from publishers.training.settings import Settings

NODE: Final = "the controller"
TRAINING: Final = "the training"
_NOTE: Final = {"detail": "sent by gridchase to test the broker"}
"""What is sent where a whole message would say what is not so."""
_LOSSES: Final = {
    "status": "no run is seen, so no limit is set for one",
    "iterations": "no speed is seen, so nothing is profiled",
    "metric": "the policy service does not see when a run reaches its target",
    "trial/request": "the policy service chooses no batch size",
    "trial/times": "the policy service does not learn how fast each batch size is",
    "trial/failure": "the policy service does not learn which batch sizes fail",
    "trial/answer": "a training never gets its batch size",
    "command": "a training does not hear when it is asked to stop, or to pause",
    "notice": "a training does not hear why no limit is set",
    "energy": "dashboards do not see it",
    "limit": "dashboards do not see it",
    "profile": "dashboards do not see it",
    "schedule": "dashboards do not see it",
    "plan": "the other nodes of a run do not follow its plan",
    "carbon": "nobody else sees the signal",
    "price": "nobody else sees the signal",
}


def probing(settings: Settings) -> Settings:
    """Return the settings of a training, for a run of the job that tests the broker; it claims no GPU."""
    return replace(settings, job=PROBE, run=secrets.token_hex(6), rank=0, world_size=1, gpus=())


def training_routes(settings: Settings) -> list[Route]:
    """Return what a training publishes; its status says that it has finished, so that no controller starts a run."""
    topics, key, boot_id = Topics(settings.root), settings.key, settings.boot_id
    status = msgspec.structs.replace(settings.status(started_at_s=time.time()), state="finished")
    note = msgspec.msgpack.encode(_NOTE)
    routes = [
        Route(
            topic=topics.rank(boot_id, key, 0, "status"),
            writer=TRAINING,
            readers={
                NODE: topics.rank_filter("status", boot_id=boot_id),
                TRAINING: topics.rank(boot_id, key, 0, "status"),
            },
            payload=encode(status),
            retain=True,
        ),
        Route(
            topic=topics.rank(boot_id, key, 0, "iterations"),
            writer=TRAINING,
            readers={NODE: topics.rank_filter("iterations", boot_id=boot_id)},
            payload=note,
            qos=0,
        ),
    ]
    leaves = ("metric", "trial/request", "trial/times", "trial/failure")
    return routes + [Route(topic=topics.run(key, leaf), writer=TRAINING, readers={}, payload=note) for leaf in leaves]


def node_routes(topics: Topics, node: str, key: RunKey, *, signal: str, answers_orders: bool = False) -> list[Route]:
    """Return what the controller of a node publishes about a run, its GPUs and the signal.

    Its own status is left out, because others would believe it; so is what has no reader that takes part. The run, the
    GPU and the zone have names that no others have, so that nobody mistakes the messages for real ones.

    Args:
        topics: the topics of the bus.
        node: the name of the node.
        key: the run.
        signal: the last level of the signal's topic, `carbon` or `price`; "" where none is published.
        answers_orders: whether it obeys orders of operators.
    """
    gpu_uuid = zone = f"{PROBE}-{key.run}"
    now_s, note = time.time(), msgspec.json.encode(_NOTE)
    limit = LimitChange(time_s=now_s, reason="check", detail="sent by gridchase check")
    profile = ProfileReport(state="waiting", gpu_model="", n_gpus=0, points=[])
    run_topics = {leaf: topics.run(key, leaf) for leaf in ("profile", "schedule", "energy", "notice", "command")}
    parts = {leaf: topics.run_on_node(key, node, leaf) for leaf in ("energy", "profile")}
    gpu_topics = {leaf: topics.gpu(node, gpu_uuid, leaf) for leaf in ("energy", "limit")}
    routes = [
        Route(
            topic=run_topics["profile"],
            writer=NODE,
            readers=_to_training(run_topics["profile"]),
            payload=encode(profile),
            retain=True,
        ),
        *(
            Route(topic=run_topics[leaf], writer=NODE, readers=_to_training(run_topics[leaf]), payload=note)
            for leaf in ("schedule", "energy", "notice", "command")
        ),
        *(
            Route(topic=topic, writer=NODE, readers={NODE: topics.part_filter(leaf, run=key)}, payload=note)
            for leaf, topic in parts.items()
        ),
        Route(topic=gpu_topics["energy"], writer=NODE, readers={NODE: gpu_topics["energy"]}, payload=note, qos=0),
        Route(
            topic=gpu_topics["limit"],
            writer=NODE,
            readers={NODE: gpu_topics["limit"]},
            payload=encode(limit),
            retain=True,
        ),
        Route(topic=topics.plan(node, key), writer=NODE, readers={NODE: topics.plan_filter(run=key)}, payload=note),
    ]
    if signal:
        topic = topics.grid(zone, signal)
        routes.append(Route(topic=topic, writer=NODE, readers={NODE: topic}, payload=note))
    if answers_orders:
        routes.append(Route(topic=topics.run(key, "set/result"), writer=NODE, readers={}, payload=note))
    return routes


def faults_of(results: Sequence[RouteResult], topics: Topics) -> list[str]:
    """Return a sentence for each fault: the topic, who does not see it, and what that means."""
    faults = []
    for result in results:
        topic, leaf = result.route.topic, leaf_of(result.route.topic, topics)
        loss = _LOSSES.get(leaf, "")
        if result.refusal:
            faults.append(f"{topic}: {result.route.writer} may not publish it ({result.refusal}): {loss}")
        if result.unseen_by:
            names = " and ".join(result.unseen_by)
            faults.append(f"{topic}: published by {result.route.writer}, not received by {names}: {loss}")
        if result.forgotten_for:
            names = " and ".join(result.forgotten_for)
            faults.append(f"{topic}: retained, but not delivered to {names} after a later start: {loss} then")
        faults += [f"{topic}: {remark}" for remark in result.remarks]
    return faults


def leaf_of(topic: str, topics: Topics) -> str:
    """Return the end of a topic that says what it is about: `status`, `trial/request`, `plan`, …."""
    parsed = topics.parse(topic)
    return parsed.leaf if parsed is not None else topic.rpartition("/")[2]


def _to_training(topic: str) -> dict[str, str]:
    return {TRAINING: topic}
