"""What an attempt is, and the messages that many of them send."""

import struct
import time
from collections.abc import Callable
from typing import Final

import msgpack

from tests.live.hostile.raw_client import RawClient, packet
from tests.live.hostile.world import RUN, TENANT, World

INVENTED_PID: Final = 3_999_999
_STARTED_AT_S: Final = time.time()
Report = dict[str, object]
Action = Callable[[], object]
ATTEMPTS: dict[str, Callable[[World], Report]] = {}


def attempt(function: Callable[[World], Report]) -> Callable[[World], Report]:
    """Register an attempt under its name."""
    ATTEMPTS[function.__name__] = function
    return function


def status(world: World, **fields: object) -> bytes:
    """Return a status as a real training would publish it."""
    return bytes(
        msgpack.packb(
            {
                "run": RUN,
                "state": "running",
                "host": "h",
                "boot_id": world.boot_id,
                "pid": INVENTED_PID,
                "gpus": [world.gpu_uuids[0]],
                "world_size": 1,
                "started_at_s": _STARTED_AT_S,
                "heartbeat_s": 1.0,
                "user": TENANT,
                "batch_size": 64,
                **fields,
            }
        )
    )


def iterations(seq: int, *, run: str = RUN, n: int = 20) -> bytes:
    """Return iterations of the last moment."""
    end_ns = time.monotonic_ns()
    ends = struct.pack(f"<{n}q", *(end_ns - (n - 1 - k) * 1_000_000 for k in range(n)))
    first, begin_ns = seq * n, end_ns - n * 1_000_000
    fields = {"run": run, "seq": seq, "first": first, "begin_ns": begin_ns, "end_ns": ends, "epoch": 0, "dropped": 0}
    return bytes(msgpack.packb(fields))


def fenced(client: RawClient) -> Report:
    """Wait until the broker has dealt with all that was sent."""
    client.socket.sendall(packet(0xC0, b""))
    for first, _ in client.packets(30.0):
        if first == 0xD0:
            return {}
    return {"disconnected": True}
