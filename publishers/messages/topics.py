"""The topics of the bus: every name is built and parsed here.

<root>/job/<job>/run/<run>/rank/<rank>/{status,iterations}   published by training processes (MessagePack)
<root>/job/<job>/run/<run>/{metric,trial/request,trial/times,trial/failure}
                                                             published by training processes (MessagePack)
<root>/job/<job>/run/<run>/trial/answer                      published by the policy service (MessagePack)
<root>/job/<job>/run/<run>/{profile,plan,energy}             published by the controller of rank 0 (JSON)
<root>/job/<job>/run/<run>/command                           published by the policy service (JSON)
<root>/job/<job>/run/<run>/node/<node>/{profile,energy}      one node's part of a run (JSON)
<root>/node/<node>/status                                    published by the controller (JSON)
<root>/node/<node>/gpu/<uuid>/{energy,limit}                 published by the controller (JSON)
<root>/grid/<zone>/{carbon,price}                            published by the controller (JSON)
"""

import re
from dataclasses import dataclass
from typing import Final

DEFAULT_ROOT: Final = "gridchase/v1"
MAX_RANK: Final = 65_535
MAX_TOPIC_LENGTH: Final = 512
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_RANK: Final = re.compile(r"[0-9]{1,5}\Z")
_RUN_LEAVES: Final = frozenset(
    {"metric", "trial/request", "trial/answer", "trial/times", "trial/failure", "profile", "plan", "energy", "command"}
)
_PART_LEAVES: Final = frozenset({"profile", "energy"})
_RANK_LEAVES: Final = frozenset({"status", "iterations"})
_GPU_LEAVES: Final = frozenset({"energy", "limit"})
_GRID_LEAVES: Final = frozenset({"carbon", "price"})


def is_name(text: str) -> bool:
    """Return whether `text` may name a job, a run, a node, a GPU or a zone: `[A-Za-z0-9._-]`, 1 to 64 of them."""
    return _NAME.match(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTopic:
    """A parsed topic; `leaf` is what follows the last identifier: `iterations`, `trial/request`, …."""

    leaf: str
    job: str | None = None
    run: str | None = None
    rank: int | None = None
    node: str | None = None
    gpu_uuid: str | None = None
    zone: str | None = None


class Topics:
    """The topics under one root."""

    def __init__(self, root: str = DEFAULT_ROOT) -> None:
        self.root = root

    def rank(self, job: str, run: str, rank: int, leaf: str) -> str:
        """Return a rank's topic; `leaf` is `status` or `iterations`."""
        return f"{self.root}/job/{job}/run/{run}/rank/{rank}/{leaf}"

    def run(self, job: str, run: str, leaf: str) -> str:
        """Return a run's topic; `leaf` is `metric`, `trial/request`, `trial/answer`, `trial/times`, `profile`, …."""
        return f"{self.root}/job/{job}/run/{run}/{leaf}"

    def run_on_node(self, job: str, run: str, node: str, leaf: str = "energy") -> str:
        """Return the topic of one node's part of a run; `leaf` is `energy` or `profile`."""
        return f"{self.root}/job/{job}/run/{run}/node/{node}/{leaf}"

    def node_status(self, node: str) -> str:
        """Return the topic of a node's birth and last will."""
        return f"{self.root}/node/{node}/status"

    def gpu(self, node: str, gpu_uuid: str, leaf: str) -> str:
        """Return a GPU's topic; `leaf` is `energy` or `limit`."""
        return f"{self.root}/node/{node}/gpu/{gpu_uuid}/{leaf}"

    def grid(self, zone: str, leaf: str) -> str:
        """Return a zone's topic; `leaf` is `carbon` or `price`."""
        return f"{self.root}/grid/{zone}/{leaf}"

    def all_ranks(self, leaf: str) -> str:
        """Return the filter that matches every rank's `status` or `iterations`."""
        return f"{self.root}/job/+/run/+/rank/+/{leaf}"

    def all_runs(self, leaf: str) -> str:
        """Return the filter that matches every run's `metric`, `profile`, `energy`, …."""
        return f"{self.root}/job/+/run/+/{leaf}"

    def parse(self, topic: str) -> ParsedTopic | None:
        """Return the parts of a topic, or None if it is foreign; never raises, since brokers may deliver any topic.

        amqtt, for one, sends retained messages that were not subscribed to.
        """
        prefix = f"{self.root}/"
        if len(topic) > MAX_TOPIC_LENGTH or not topic.startswith(prefix):
            return None
        match topic.removeprefix(prefix).split("/"):
            case ["job", job, "run", run, *rest] if is_name(job) and is_name(run):
                return _parse_run(job, run, rest)
            case ["node", node, "status"] if is_name(node):
                return ParsedTopic(leaf="status", node=node)
            case ["node", node, "gpu", gpu_uuid, leaf] if is_name(node) and is_name(gpu_uuid) and leaf in _GPU_LEAVES:
                return ParsedTopic(leaf=leaf, node=node, gpu_uuid=gpu_uuid)
            case ["grid", zone, leaf] if is_name(zone) and leaf in _GRID_LEAVES:
                return ParsedTopic(leaf=leaf, zone=zone)
            case _:
                return None


def _parse_run(job: str, run: str, rest: list[str]) -> ParsedTopic | None:
    match rest:
        case ["rank", rank, leaf] if _RANK.match(rank) and int(rank) <= MAX_RANK and leaf in _RANK_LEAVES:
            return ParsedTopic(leaf=leaf, job=job, run=run, rank=int(rank))
        case ["node", node, leaf] if is_name(node) and leaf in _PART_LEAVES:
            return ParsedTopic(leaf=leaf, job=job, run=run, node=node)
        case _ if (leaf := "/".join(rest)) in _RUN_LEAVES:
            return ParsedTopic(leaf=leaf, job=job, run=run)
        case _:
            return None
