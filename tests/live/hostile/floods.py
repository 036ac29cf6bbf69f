"""Attempts to fill, choke, crash or confuse the broker and the controller."""

import contextlib
import secrets
import socket
import time

from tests.live.hostile.attempt import INVENTED_PID, Report, attempt, fenced, iterations, status
from tests.live.hostile.raw_client import RawClient, packet, publication, text
from tests.live.hostile.world import MARK, ROOT, TENANT, World

_NEW_JOBS_PER_S = 10_000.0


@attempt
def flood_with_30_000_retained_statuses(world: World) -> Report:
    """Statuses of jobs that do not exist, half of them below this machine, half below machines that do not exist."""
    client = world.tenant()
    for begin in range(0, 30_000, 500):
        client.publish(
            *(
                publication(
                    world.rank("status", job=f"j{k}", host="" if k % 2 else f"host{k}"),
                    status(world, pid=INVENTED_PID + k),
                    qos=1,
                    retain=True,
                    number=k,
                )
                for k in range(begin, begin + 500)
            )
        )
    return fenced(client) | {"messages": 30_000}


def flood(world: World, *packets: bytes, streams: int = 1) -> Report:
    """Send the packets again and again."""
    clients, end_s, n_sent = [world.tenant() for _ in range(streams)], time.monotonic() + world.duration_s, 0
    while time.monotonic() < end_s:
        for client in clients:
            with contextlib.suppress(TimeoutError, OSError):
                client.publish(*packets)
                n_sent += len(packets)
    return {"messages": n_sent}


@attempt
def flood_iterations_at_qos_0(world: World) -> Report:
    """Small messages below this machine, as fast as the broker takes them."""
    return flood(world, *(publication(world.rank("iterations"), iterations(k)) for k in range(200)))


@attempt
def flood_statuses_at_qos_1(world: World) -> Report:
    """Acknowledged messages below this machine, as fast as the broker takes them."""
    topic = world.rank("status")
    return flood(world, *(publication(topic, status(world), qos=1, number=k) for k in range(200)))


@attempt
def flood_with_ever_new_jobs(world: World) -> Report:
    """20,000 messages a second of jobs that do not exist, each with a status and iterations: no name comes twice."""
    client, n_sent, began_s = world.tenant(), 0, time.monotonic()
    while (passed_s := time.monotonic() - began_s) < world.duration_s:
        n_due = min(2 * _NEW_JOBS_PER_S * passed_s - n_sent, 2_000.0)
        packets = list[bytes]()
        for k in range(n_sent, n_sent + round(n_due)):
            job, run = f"j{k // 2}", f"r{k // 2}"
            if k % 2:
                topic = world.rank("status", job=job, run=run)
                packets.append(publication(topic, status(world, run=run), qos=1, number=k))
            else:
                packets.append(publication(world.rank("iterations", job=job, run=run), iterations(0, run=run)))
        client.publish(*packets)
        n_sent += len(packets)
        time.sleep(0.01)
    return {"messages": n_sent}


@attempt
def flood_with_large_messages(world: World) -> Report:
    """200 KB each, below this machine."""
    return flood(world, publication(world.rank("iterations"), bytes(200_000)))


@attempt
def flood_oneself_and_never_read(world: World) -> Report:
    """Fifty subscribers that read nothing, of large messages to themselves: the broker queues them."""
    deaf = []
    for _ in range(50):
        client = world.tenant()
        client.subscribe(f"{ROOT}/host/+/user/{TENANT}/job/+/run/+/rank/+/status")
        deaf.append(client)
    return flood(world, publication(world.rank("status", host="nowhere"), bytes(200_000)))


@attempt
def claim_with_300_empty_runs(world: World) -> Report:
    """Runs without iterations, of jobs without processes; and 3,000 ranks of one run."""
    client = world.tenant()
    for k in range(300):
        client.publish(publication(world.rank("status", job=f"e{k}", run=f"r{k}"), status(world, run=f"r{k}"), qos=1))
    for k in range(3_000):
        fields = status(world, run="wide", world_size=65_535, gpus=[])
        client.publish(publication(world.rank("status", run="wide", rank=k), fields, qos=1))
    time.sleep(world.duration_s)
    return {"messages": 3_300}


@attempt
def use_hostile_names(world: World) -> Report:
    """Control characters, terminal escapes, broken escapes, very long and empty names, in topics and payloads."""
    evil = [
        "\x1b[2J\x1b]0;owned\x07",
        "\u202e\u2066x",
        "a\r\nlevel=ERROR forged",
        "~",
        "~g0",
        "~2E",
        "~c0~80",
        "x" * 3_000,
        "..",
        " ",
    ]
    client = world.tenant()
    for name in evil:
        payloads = [
            status(world, run=name, host=name, gpus=[name]),
            status(world, host=name, gpus=[name] * 64),
            name.encode(),
        ]
        for payload in payloads:
            for topic in (
                world.rank("status", job=name),
                world.rank("status", run=name),
                world.rank("status", host=name),
                world.rank("status"),
            ):
                with contextlib.suppress(OSError):
                    client.publish(publication(topic, payload, qos=1))
                    continue
                client.close()
                client = world.tenant()
    for broken in (b"\xff\xfe", b"a\0b", "\ud800".encode("utf-8", "surrogatepass")):
        for malformed in (broken, f"{ROOT}/host/{world.boot_id}/user/{TENANT}/job/".encode() + broken):
            with contextlib.suppress(OSError):
                client.publish(publication(malformed, MARK))
            client.close()
            client = world.tenant()
    return {}


@attempt
def send_huge_messages(world: World) -> Report:
    """1 MiB, 10 MiB, and the announcement of 256 MiB that never come."""
    n_cut = 0
    for body in (bytes(1 << 20), bytes(10 << 20)):
        client = world.tenant()
        try:
            client.publish(publication(world.rank("status"), body, qos=1))
            n_cut += next(client.packets(2.0), None) is None
        except OSError:
            n_cut += 1
        client.close()
    waiting = [world.tenant() for _ in range(20)]
    for client in waiting:
        with contextlib.suppress(OSError):
            client.socket.sendall(b"\x30\xff\xff\xff\x7f" + text(world.rank("status")))
    time.sleep(1.0)
    return {"disconnected": n_cut}


_HOSTILE_TIMES: tuple[object, ...] = (float("nan"), float("inf"), -1, 2**63, "x", [[]])
_HOSTILE_GPUS: tuple[object, ...] = ([-1], [2**63], ["GPU-"] * 40_000, {"a": 1}, [None])


@attempt
def send_hostile_messagepack(world: World) -> Report:
    """Nesting 100,000 deep, lengths of 4 GiB, extension types, numbers that are none."""
    bodies = [
        *(
            b"\x91" * 100_000,
            b"\x81\xa1a" * 50_000,
            b"\xdd\xff\xff\xff\xff",
            b"\xc6\xff\xff\xff\xff",
            b"\xdf\xff\xff\xff\xff",
        ),
        *(b"\xc7\x08\xff" + bytes(8), b"\xd6\xff" + bytes(4), b"\xc1", b"", bytes(200_000)),
        *(status(world, started_at_s=time_s) for time_s in _HOSTILE_TIMES),
        *(status(world, pid=pid) for pid in (-1, 0, 2**64 - 1, None, True)),
        *(status(world, gpus=gpus) for gpus in _HOSTILE_GPUS),
    ]
    client = world.tenant()
    for leaf in ("status", "iterations"):
        for body in bodies:
            client.publish(publication(world.rank(leaf), body, qos=1))
    return fenced(client) | {"messages": 2 * len(bodies)}


@attempt
def break_the_protocol(world: World) -> Report:
    """Packets that a client may not send, or not then."""
    for junk in (
        packet(0x10, b"") * 2,
        packet(0x20, b"\0\0"),
        packet(0xF0, b""),
        secrets.token_bytes(4_096),
        packet(0x82, b"\0\0"),
        b"\x30\x80\x80\x80\x80\x01",
    ):
        client = world.tenant()
        with contextlib.suppress(OSError):
            client.publish(junk)
        client.close()
    return {}


@attempt
def reconnect_without_end(world: World) -> Report:
    """A TLS handshake costs the broker more than us."""
    n, end_s = 0, time.monotonic() + world.duration_s
    while time.monotonic() < end_s:
        world.tenant().close()
        n += 1
    return {"connections": n}


def hold_open(port: int, n: int, first_bytes: bytes, hold_s: float) -> Report:
    """Open connections that never say all that they should."""
    connections = list[socket.socket]()
    with contextlib.ExitStack() as stack:
        for _ in range(n):
            try:
                connection = socket.create_connection(("127.0.0.1", port), timeout=0.5)
            except OSError:
                continue
            stack.enter_context(connection)
            connections.append(connection)
            with contextlib.suppress(OSError):
                connection.sendall(first_bytes)
        time.sleep(hold_s)
    return {"connections": len(connections)}


@attempt
def hold_half_open_connections_to_the_broker(world: World) -> Report:
    """500 at the tenant's door and 400 at the nodes': silent ones, half a TLS handshake, TLS without a word of MQTT."""
    silent = hold_open(world.ports["nodes"], 400, b"\x16\x03\x01\x02\x00\x01", 0.0)
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.callback(RawClient(world.door()).close)
        return silent | hold_open(world.ports["trainings"], 400, b"", world.duration_s)


@attempt
def hold_half_open_connections_to_the_controller(world: World) -> Report:
    """1,100 requests to its health page that never end."""
    return hold_open(world.http_port, 1_100, b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-A: ", world.duration_s)
