"""The topics of the bus: every name is built and parsed here.

<root>/host/<boot_id>/user/<user>/job/<job>/run/<run>/rank/<rank>/{status,iterations}
                                                        by training processes (MessagePack)
<root>/user/<user>/job/<job>/run/<run>/…
    metric, trial/request, trial/times, trial/failure   by training processes (MessagePack)
    trial/answer                                        by the policy service (MessagePack)
    command                                             by the policy service and the controller (JSON)
    profile, schedule, energy, notice, set/result       by the controller of rank 0 (JSON)
    set                                                 by operators (JSON)
    node/<node>/{profile,energy}                        by the controller of one node of the run (JSON)
<root>/user/<user>/job/<job>/posterior                  by the policy service (JSON)
<root>/node/<node>/…
    status                                              by the controller (JSON)
    gpu/<uuid>/{energy,limit,set/result}                by the controller (JSON)
    gpu/<uuid>/set                                      by operators (JSON)
    plan/<user>/<job>/<run>                             by the controller, to the other nodes of the run (JSON)
<root>/grid/<zone>/{carbon,price}                       by the controller (JSON)

In each `<…>` every character outside `[A-Za-z0-9_-]` is written as `~` and two lower-case hex digits for each of its
bytes in UTF-8: MQTT forbids `+`, `#` and `/` there, RabbitMQ takes `.` for `/`, and NATS takes neither dot nor space.
"""

import re
from typing import Final, NamedTuple

from msgspec import Struct

DEFAULT_ROOT: Final = "gridchase/v1"
PROBE: Final = "gridchase-check"
"""The job of what is sent to test a broker, and the beginning of the other names in it: nobody acts on them."""
MAX_RANK: Final = 65_535
MAX_TOPIC_LENGTH: Final = 2_048
MAX_LABEL_BYTES: Final = 128
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]+\Z")
_ESCAPED: Final = re.compile(r"(?:[A-Za-z0-9_-]|~[0-9a-f]{2})+\Z")
_UNSAFE: Final = re.compile(rb"[^A-Za-z0-9_-]")
_ESCAPE: Final = re.compile(rb"~([0-9a-f]{2})")
_RANK: Final = re.compile(r"(?:0|[1-9][0-9]{0,4})\Z")
_RUN_LEAVES: Final = frozenset(
    {
        "metric",
        "trial/request",
        "trial/answer",
        "trial/times",
        "trial/failure",
        "profile",
        "schedule",
        "energy",
        "command",
        "notice",
        "set",
        "set/result",
    }
)
_JOB_LEAVES: Final = frozenset({"posterior"})
_PART_LEAVES: Final = frozenset({"profile", "energy"})
_RANK_LEAVES: Final = frozenset({"status", "iterations"})
_GPU_LEAVES: Final = frozenset({"energy", "limit", "set", "set/result"})
_GRID_LEAVES: Final = frozenset({"carbon", "price"})
_OWNERS: Final = frozenset({b"user", b"node", b"grid"})


class RunKey(NamedTuple):
    """Which run: two users' jobs of one name are two jobs."""

    user: str
    job: str
    run: str

    def __str__(self) -> str:
        """Return how logs name it."""
        return "/".join(self)


class JobName(NamedTuple):
    """Which job."""

    user: str
    job: str


def is_name(text: str) -> bool:
    """Return whether `text` may name a job, a run, a node, a GPU or a zone: `[A-Za-z0-9._-]`, 1 to 64 of them."""
    return _NAME.match(text) is not None


def is_label(text: str) -> bool:
    """Return whether `text` may name a user or a boot: printable characters, 1 to 128 bytes of UTF-8."""
    return text.isprintable() and 1 <= len(text.encode()) <= MAX_LABEL_BYTES


def escape_level(text: str) -> str:
    """Return a level of a topic that names `text`."""
    if _PLAIN.match(text):
        return text
    return _UNSAFE.sub(lambda match: b"~" + match[0].hex().encode(), text.encode("utf-8", "backslashreplace")).decode()


def unescape_level(level: str) -> str | None:
    """Return what a level names; None where `escape_level` would not have written it so."""
    if _PLAIN.match(level):
        return level
    if not _ESCAPED.match(level):
        return None
    try:
        text = _ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()), level.encode("ascii")).decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if escape_level(text) == level else None


class ParsedTopic(Struct, frozen=True, kw_only=True):
    """A parsed topic; `leaf` is what follows the last identifier: `iterations`, `trial/request`, `plan`, …."""

    leaf: str
    boot_id: str | None = None
    run: RunKey | None = None
    rank: int | None = None
    node: str | None = None
    gpu_uuid: str | None = None
    zone: str | None = None
    job: JobName | None = None


class Topics:
    """The topics under one root, and the filters that match several; in a filter None stands for any."""

    def __init__(self, root: str = DEFAULT_ROOT) -> None:
        self.root = root
        self._prefix = f"{root}/".encode()

    def rank(self, boot_id: str, run: RunKey, rank: int, leaf: str) -> str:
        """Return a rank's topic; `leaf` is `status` or `iterations`."""
        return self.rank_filter(leaf, boot_id=boot_id, run=run, rank=rank)

    def run(self, run: RunKey, leaf: str) -> str:
        """Return a run's topic; `leaf` is `metric`, `trial/request`, `trial/answer`, `trial/times`, `profile`, …."""
        return self.run_filter(leaf, run=run)

    def job(self, job: JobName | None, leaf: str) -> str:
        """Return a job's topic, or the filter of all jobs; `leaf` is `posterior`."""
        user, name = job or (None, None)
        return f"{self.root}/user/{_level(user)}/job/{_level(name)}/{leaf}"

    def run_on_node(self, run: RunKey, node: str, leaf: str = "energy") -> str:
        """Return the topic of one node's part of a run; `leaf` is `energy` or `profile`."""
        return f"{self.root}/{_run_levels(run)}/node/{_level(node)}/{leaf}"

    def node_status(self, node: str | None) -> str:
        """Return the topic of a node's birth and last will."""
        return f"{self.root}/node/{_level(node)}/status"

    def gpu(self, node: str | None, gpu_uuid: str | None, leaf: str) -> str:
        """Return a GPU's topic; `leaf` is `energy` or `limit`."""
        return f"{self.root}/node/{_level(node)}/gpu/{_level(gpu_uuid)}/{leaf}"

    def plan(self, node: str, run: RunKey) -> str:
        """Return the topic of the plan that a node has for a run."""
        return self.plan_filter(node=node, run=run)

    def grid(self, zone: str | None, leaf: str) -> str:
        """Return a zone's topic, or the filter of all zones; `leaf` is `carbon` or `price`."""
        return f"{self.root}/grid/{_level(zone)}/{leaf}"

    def rank_filter(
        self, leaf: str, *, boot_id: str | None = None, run: RunKey | None = None, rank: int | None = None
    ) -> str:
        """Return the filter that matches `status` or `iterations` of ranks."""
        of_rank = "+" if rank is None else rank
        return f"{self.root}/host/{_level(boot_id)}/{_run_levels(run)}/rank/{of_rank}/{leaf}"

    def run_filter(self, leaf: str, *, run: RunKey | None = None) -> str:
        """Return the filter that matches `metric`, `profile`, `energy`, … of runs."""
        return f"{self.root}/{_run_levels(run)}/{leaf}"

    def part_filter(self, leaf: str, *, run: RunKey | None = None) -> str:
        """Return the filter that matches the parts of all nodes, `energy` or `profile`."""
        return f"{self.root}/{_run_levels(run)}/node/+/{leaf}"

    def plan_filter(self, *, node: str | None = None, run: RunKey | None = None) -> str:
        """Return the filter that matches the plans of nodes for runs."""
        return f"{self.root}/node/{_level(node)}/plan/{'/'.join(map(_level, run or (None, None, None)))}"

    def sender(self, topic: bytes) -> tuple[bytes, bytes]:
        """Return the levels that say whose a topic is (`user/ada`) and, where a rank publishes, of which host and run.

        b"" stands for none of ours. Only cut, not parsed: this is asked of every message, also in a flood.
        """
        if len(topic) > MAX_TOPIC_LENGTH or not topic.startswith(self._prefix):
            return b"", b""
        levels = topic[len(self._prefix) :].split(b"/", 8)
        host = levels[:2] if levels[0] == b"host" else []
        levels = levels[len(host) :]
        if len(levels) < 2 or levels[0] not in _OWNERS:  # noqa: PLR2004 — what it is, and its name
            return b"", b""
        return b"/".join(levels[:2]), b"/".join(host + levels[:6]) if host else b""

    def parse(self, topic: str) -> ParsedTopic | None:
        """Return the parts of a topic, or None if it is foreign; never raises, since brokers may deliver any topic.

        amqtt, for one, sends retained messages that were not subscribed to. What is not written as this class writes
        it is foreign, too: one thing has one topic.
        """
        prefix = f"{self.root}/"
        if len(topic) > MAX_TOPIC_LENGTH or not topic.startswith(prefix):
            return None
        match topic.removeprefix(prefix).split("/"):
            case ["host", boot, "user", user, "job", job, "run", run, "rank", rank, leaf] if leaf in _RANK_LEAVES:
                return _parse_rank(boot, _run_key(user, job, run), rank, leaf)
            case ["user", user, "job", job, *rest]:
                return _parse_job(user, job, rest)
            case ["node", node, *rest] if (name := _name(node)) is not None:
                return _parse_node(name, rest)
            case ["grid", zone, leaf] if leaf in _GRID_LEAVES and (name := _name(zone)) is not None:
                return ParsedTopic(leaf=leaf, zone=name)
            case _:
                return None


def _level(name: str | None) -> str:
    return "+" if name is None else escape_level(name)


def _run_levels(run: RunKey | None) -> str:
    user, job, name = run or (None, None, None)
    return f"user/{_level(user)}/job/{_level(job)}/run/{_level(name)}"


def _name(level: str) -> str | None:
    name = unescape_level(level)
    return name if name is not None and is_name(name) else None


def _label(level: str) -> str | None:
    label = unescape_level(level)
    return label if label is not None and is_label(label) else None


def _run_key(user_level: str, job_level: str, run_level: str) -> RunKey | None:
    user, job, run = _label(user_level), _name(job_level), _name(run_level)
    return None if user is None or job is None or run is None else RunKey(user, job, run)


def _parse_rank(boot_level: str, run: RunKey | None, rank: str, leaf: str) -> ParsedTopic | None:
    boot_id = _label(boot_level)
    if run is None or boot_id is None or not _RANK.match(rank) or int(rank) > MAX_RANK:
        return None
    return ParsedTopic(leaf=leaf, boot_id=boot_id, run=run, rank=int(rank))


def _parse_run(run: RunKey | None, rest: list[str]) -> ParsedTopic | None:
    match rest:
        case _ if run is None:
            return None
        case ["node", node, leaf] if leaf in _PART_LEAVES and (name := _name(node)) is not None:
            return ParsedTopic(leaf=leaf, run=run, node=name)
        case _ if (leaf := "/".join(rest)) in _RUN_LEAVES:
            return ParsedTopic(leaf=leaf, run=run)
        case _:
            return None


def _parse_job(user_level: str, job_level: str, rest: list[str]) -> ParsedTopic | None:
    user, job = _label(user_level), _name(job_level)
    match rest:
        case ["run", run, *of_run]:
            return _parse_run(_run_key(user_level, job_level, run), of_run)
        case [leaf] if leaf in _JOB_LEAVES and user is not None and job is not None:
            return ParsedTopic(leaf=leaf, job=JobName(user, job))
        case _:
            return None


def _parse_node(node: str, rest: list[str]) -> ParsedTopic | None:
    match rest:
        case ["status"]:
            return ParsedTopic(leaf="status", node=node)
        case ["gpu", gpu_uuid, *leaves] if (leaf := "/".join(leaves)) in _GPU_LEAVES:
            uuid = _name(gpu_uuid)
            return None if uuid is None else ParsedTopic(leaf=leaf, node=node, gpu_uuid=uuid)
        case ["plan", user, job, run] if (key := _run_key(user, job, run)) is not None:
            return ParsedTopic(leaf="plan", node=node, run=key)
        case _:
            return None
