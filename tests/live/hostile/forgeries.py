"""Attempts to speak, listen and claim in others' names."""

import contextlib
import ctypes
import json
import os
import struct
import time
from pathlib import Path

from publishers.messages.topics import RunKey
from publishers.shared.process_identity import run_mark
from tests.live.broker.rules import RULES
from tests.live.hostile.attempt import Report, attempt, fenced, iterations, status
from tests.live.hostile.raw_client import RawClient, publication
from tests.live.hostile.world import JOB, MARK, NODE, ROOT, RUN, TENANT, VICTIM, World

PR_SET_NAME = 15
_LIBC = ctypes.CDLL(None)
MARKED_S = 20.0
"""The controller looks every 15 s who computes on a GPU."""


@attempt
def log_in_without_or_with_anothers_password(world: World) -> Report:
    """Try every door anonymously, with our own password as somebody else, and with guesses."""
    welcome = []
    tries = [("", ""), (VICTIM, world.password), (VICTIM, "password"), (NODE, world.password), ("policy", "policy")]
    tries += [(user, world.password) for user in ("web", "operator")]
    for door in world.ports:
        for user, password in [*tries, *([(TENANT, world.password)] if door != "trainings" else [])]:
            client = RawClient(world.door(door))
            if client.log_in(user, password) == 0:
                welcome.append(f"{user or 'nobody'} at {door}")
            client.close()
    return {"got_in": welcome}


def others_topics(world: World) -> list[str]:
    """Return every topic of the bus, in others' names."""
    names = {
        "boot_id": world.boot_id,
        "user": VICTIM,
        "job": JOB,
        "run": RUN,
        "rank": "0",
        "node": NODE,
        "zone": "local",
        "uuid": world.gpu_uuids[0],
        "random": "0",
        "other": "log",
    }
    topics = set()
    for template in RULES:
        topic = template
        for name, value in names.items():
            topic = topic.replace(f"<{name}>", value)
        topics.add(f"{ROOT}/{topic}")
    own = f"{ROOT}/user/{TENANT}/job/{JOB}/run/{RUN}"
    return sorted(topics) + [
        f"{own}/{leaf}" for leaf in ("command", "notice", "energy", "profile", "schedule", "trial/answer", "set")
    ]


@attempt
def publish_in_others_names(world: World) -> Report:
    """Status, plan, command, notice, set, reports: as the victim, the node, the policy service, an operator."""
    client, now_s = world.tenant(), time.time()
    order = {"time_s": now_s, "action": "pin", "correlation": "m-1", "by": MARK.decode(), "why": MARK.decode()}
    forged = {"command": "stop", "reason": MARK.decode()}, order | {"power_limit_w": 100.0, "until_s": now_s + 3_600}
    for topic in others_topics(world):
        for payload in (MARK, *(json.dumps(each).encode() for each in forged)):
            client.publish(
                *(publication(topic, payload, qos=qos, retain=retain) for qos in (0, 1) for retain in (False, True))
            )
    return fenced(client)


@attempt
def clear_others_retained_messages(world: World) -> Report:
    """Empty retained messages on everybody's topics."""
    client = world.tenant()
    client.publish(*(publication(topic, b"", qos=1, retain=True) for topic in others_topics(world)))
    return fenced(client)


@attempt
def leave_wills_in_others_names(world: World) -> Report:
    """Last wills that say that the victim is lost, and the node offline."""
    lost = status(world, state="lost", user=VICTIM, pid=world.victim_pid, host=MARK.decode())
    for will in ((world.rank("status", user=VICTIM), lost), (f"{ROOT}/node/{NODE}/status", MARK)):
        client = world.tenant(will=will)
        client.close()
    return {}


@attempt
def read_others_topics(world: World) -> Report:
    """Subscribe to everything, with wildcards and one by one."""
    client = world.tenant()
    client.subscribe("#", "$SYS/#", "+/#", f"{ROOT}/#", *others_topics(world)[:-6])
    received = set[str]()
    for first, body in client.packets(world.duration_s):
        if first >> 4 == 3:
            (length,) = struct.unpack_from(">H", body)
            received.add(body[2 : 2 + length].decode())
    return {"received": sorted(topic for topic in received if f"user/{TENANT}/" not in topic)}


def claim(world: World, **fields: object) -> Report:
    """Claim a GPU for as long as the attempt lasts, with heartbeats and iterations like an honest job's."""
    job = f"job-{os.getpid()}"  # no attempt is hindered by what the one before has left
    client, end_s, seq = world.tenant(), time.monotonic() + world.duration_s, 0
    while time.monotonic() < end_s:
        client.publish(
            publication(world.rank("status", job=job), status(world, **fields), qos=1, retain=True),
            publication(world.rank("iterations", job=job), iterations(seq)),
        )
        seq += 1
        time.sleep(0.1)
    client.publish(publication(world.rank("status", job=job), b"", qos=1, retain=True))
    return {"messages": 2 * seq}


@attempt
def claim_the_victims_gpu_with_an_invented_pid(world: World) -> Report:
    """A job that does not exist says that it trains on the victim's GPU."""
    return claim(world)


@attempt
def claim_the_victims_gpu_with_the_victims_pid(world: World) -> Report:
    """The pid is real, and computes there: but it is another user's."""
    return claim(world, pid=world.victim_pid)


@attempt
def claim_the_victims_gpu_from_another_board(world: World) -> Report:
    """The tenant's own process, which computes on the second GPU, claims the first."""
    return claim(world, pid=os.getpid())


@attempt
def claim_both_gpus(world: World) -> Report:
    """The tenant's own process claims its own board together with the victim's."""
    return claim(world, pid=os.getpid(), gpus=[world.gpu_uuids[1], world.gpu_uuids[0]])


@attempt
def claim_an_idle_gpu_with_an_invented_pid(world: World) -> Report:
    """Nobody computes on the second GPU."""
    return claim(world, gpus=[world.gpu_uuids[1]])


@attempt
def claim_in_the_payload_to_be_the_victim(world: World) -> Report:
    """The tenant's topic, and the victim's names and pid in the payload."""
    return claim(world, user=VICTIM, pid=world.victim_pid)


@attempt
def bear_the_victims_mark(world: World) -> Report:
    """The tenant's process on the second GPU bears the mark of the victim's run, which anybody can compute."""
    _LIBC.prctl(PR_SET_NAME, run_mark(RunKey(VICTIM, JOB, RUN)).encode())
    time.sleep(max(world.duration_s, MARKED_S))
    return {}


@attempt
def take_the_nodes_client_id(world: World) -> Report:
    """Connect under every client id that a node's controller could be guessed to have."""
    guesses = [
        NODE,
        f"gridchase-{NODE}",
        f"gridchase-controller-{NODE}",
        f"gridchase/{NODE}",
        f"gc-{NODE}",
        "controller",
    ]
    guesses += [f"gridchase-{NODE}-{world.boot_id}", f"{NODE}-{world.boot_id}", world.boot_id]
    with contextlib.suppress(OSError):
        guesses += [path.read_text().strip() for path in Path(world.state_dir).iterdir() if path.is_file()]
    end_s = time.monotonic() + world.duration_s
    while time.monotonic() < end_s:
        for client_id in guesses:
            client = RawClient(world.door())
            client.log_in(TENANT, world.password, client_id=client_id[:200])
            client.close()
    return {"guesses": len(guesses)}
