"""Attempts of a local user: locks, signals, files, and the controller's HTTP port."""

import contextlib
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

from tests.live.hostile.attempt import Action, Report, attempt
from tests.live.hostile.world import NODE, World


@attempt
def squat_the_locks(world: World) -> Report:
    """Every abstract socket that a controller might bind, held until the attempt is ended."""
    names = [f"\0gridchase/gpu/{uuid}" for uuid in world.gpu_uuids]
    names += ["\0gridchase", "\0gridchase/node", f"\0gridchase/{NODE}", f"\0gridchase{world.state_dir}"]
    held = []
    for name in names:
        squatter = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(OSError):
            squatter.bind(name)
            squatter.listen()
            held.append(squatter)
    for path in ("/run/lock/gridchase", "/tmp/gridchase", f"/tmp/gridchase-{NODE}"):  # noqa: S108 — the attack
        with contextlib.suppress(OSError):
            Path(path).mkdir(mode=0o777)
    sys.stdout.write(json.dumps({"held": len(held)}) + "\n")
    sys.stdout.flush()
    time.sleep(300.0)  # until we are killed
    return {}


@attempt
def plant_a_link_for_the_state_directory(world: World) -> Report:
    """Where a careless operator put it: in a directory like /tmp."""
    Path(world.shared_dir, "state").symlink_to(world.link_target)
    return {}


@attempt
def touch_what_is_not_ours(world: World) -> Report:
    """Signals, the state directory, the broker's passwords, another's memory."""
    done = []
    actions: dict[str, Action] = {
        "signal the controller": lambda: os.kill(world.controller_pid, signal.SIGTERM),
        "signal the victim": lambda: os.kill(world.victim_pid, signal.SIGKILL),
        "list the state directory": lambda: list(Path(world.state_dir).iterdir()),
        "read the journal": lambda: Path(world.state_dir, "journal.json").read_bytes(),
        "write to the state directory": lambda: Path(world.state_dir, "x").write_text("x"),
        "read the passwords": lambda: Path(world.broker_dir, "nodes.passwd").read_bytes(),
        "read the controller's environment": lambda: Path(f"/proc/{world.controller_pid}/environ").read_bytes(),
    }
    for name, action in actions.items():
        with contextlib.suppress(OSError):
            action()
            done.append(name)
    return {"got_in": done}


@attempt
def ask_for_changes_over_http(world: World) -> Report:
    """Requests that write, with a foreign Host, of other methods."""
    answers = []
    for method, path in (("POST", "/limit"), ("PUT", "/"), ("DELETE", "/runs"), ("POST", "/metrics"), ("TRACE", "/")):
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", world.http_port), timeout=2.0) as client,
        ):
            client.sendall(
                f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
            )
            answers.append(client.recv(64).split(b" ")[1:2])
    return {"got_in": [str(answer) for answer in answers if answer and answer[0].startswith(b"2")]}
