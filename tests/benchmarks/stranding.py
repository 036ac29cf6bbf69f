"""What a limit is after a fault, with Zeus and with us, on one stub: `python -m tests.benchmarks.stranding`.

Zeus runs in an environment of its own: `python3 -m venv DIR; DIR/bin/pip install 'zeus==0.16.*'`, then `--zeus
DIR/bin/python`; without it its lines are left out. `--write` writes the table into docs/faults.md.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.benchmarks.campaign import machine, write_page
from tests.live.campaign.schedule import PRIOR_W, LiveWorld, Plan, compile_disk
from tests.live.conftest import wait_until
from tests.live.nvml_stub.fixtures import compile_stub
from tests.live.nvml_stub.machine import StubMachine

TIMEOUT_S: Final = 120.0
CASES: Final = {
    "SIGTERM": ("SIGTERM", ""),
    "SIGHUP (the terminal is closed)": ("SIGHUP", ""),
    "SIGKILL": ("SIGKILL", ""),
    "SIGINT, and the driver ignores writes": ("SIGINT", "all ignored"),
    "SIGTERM, and the disk is full": ("SIGTERM", "disk full"),
}


def zeus(python: str, end: str, fault: str, folder: Path, library: Path) -> str:
    """Return what became of the limit under Zeus."""
    stub = StubMachine.create(library, folder / "zeus-machine", speedup_ratio=100.0)
    gpu = stub.gpu()
    gpu.set_requested_power_limit_w(PRIOR_W)
    gpu.busy = True
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | stub.environment()
    child_file = Path(__file__).with_name("stranding_child.py")
    child = subprocess.Popen([python, child_file], env=environment, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: child.poll() is not None or gpu.raw.n_writes >= 4, TIMEOUT_S)
        if child.poll() is not None:
            return f"ended by itself with {child.returncode}"
        if fault == "all ignored":
            gpu.fault_writes(n_ignored=None)
        held_w = gpu.requested_power_limit_w
        child.send_signal(signal.Signals[end])
        code = child.wait(TIMEOUT_S)
    finally:
        child.kill()
        child.wait()
    highest_w = max(limit_w for _, limit_w in gpu.writes)
    return f"{held_w:g} → {gpu.requested_power_limit_w:g} W, exit code {code}; highest write {highest_w:g} W | nothing"


def ours(end: str, fault: str, folder: Path, libraries: tuple[Path, Path]) -> str:
    """Return what became of the limits under the controller, and after `gridchase restore`."""
    plan = Plan(seed=0, faults=((2.0, fault or "mended", 0), (0.0, fault or "mended", 1)), end=end, starts_faulty=False)
    world = LiveWorld(plan, folder, *libraries)
    world.run()
    (_, code, limits_w), *later = world.ends
    shown = " and ".join(f"{limit_w:g}" for limit_w in limits_w)
    held = " and ".join(f"{limit_w:g}" for limit_w in world.held_w)
    restored = "; ".join(
        f"exit code {code}: {' and '.join(f'{limit_w:g}' for limit_w in after_w)} W" for _, code, after_w in later
    )
    return f"{held} → {shown} W, exit code {code} | {restored or 'nothing to do'}"


def main(arguments: list[str] | None = None) -> int:
    """Run both in each case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--zeus", metavar="PYTHON", help="the Python of an environment with zeus")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    if not options.zeus:
        print("Zeus is skipped: see the first lines of this file", file=sys.stderr)
    lines = [
        "| case | who | limit before → after, exit code | `gridchase restore`, run after it |",
        "|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        libraries = compile_stub(folder), compile_disk(folder)
        for number, (case, (end, fault)) in enumerate(CASES.items()):
            place = folder / str(number)
            place.mkdir()
            if options.zeus:
                lines.append(f"| {case} | Zeus | {zeus(options.zeus, end, fault, place, libraries[0])} |")
            lines.append(f"| {case} | gridchase | {ours(end, fault, place / 'ours', libraries)} |")
            print(lines[-1], flush=True)
    text = f"{machine()}; prior limit {PRIOR_W:g} W, default 300 W.\n\n" + "\n".join(lines)
    print(text)
    if options.write:
        write_page("side by side", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
