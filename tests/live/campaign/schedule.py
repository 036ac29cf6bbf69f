"""One schedule of the campaign with real processes: drawn from a seed, lived through, and judged."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from controller.gpu.journal.storage import FILE_NAME, Journal
from tests.live.campaign.training import CampaignTraining
from tests.live.conftest import _PLAIN, Mosquitto, wait_until
from tests.live.node import QUICK
from tests.live.nvml_stub.fixtures import compile_library
from tests.live.nvml_stub.machine import StubMachine

if TYPE_CHECKING:
    from collections.abc import Callable

PRIOR_W: Final = 280.0
FLOOR_W: Final = 110.0
START_TIMEOUT_S: Final = 60.0
EXIT_TIMEOUT_S: Final = 60.0
"""How long a process may take to end, whatever does not answer."""
N_GPUS: Final = 2
MAX_LOG: Final = 3_000
DISK_MODES: Final = {"works": 0, "full": 1, "read_only": 2, "hung": 3}
SETTINGS: Final = QUICK | {"gpu.min_power_limit_w": f"{FLOOR_W:g}", "profiler.n_blocks": "20", "profiler.block_s": "1"}
LABELS: Final = {
    "late": "write takes effect late (50 ms to 3 s)",
    "late_readback": "write is read back late (50 to 900 ms)",
    "clamped": "board clamps",
    "ignored": "write ignored",
    "all ignored": "write ignored",
    "hung": "driver hangs at writes",
    "refused": "write refused",
    "lost": "GPU lost",
    "another writer": "another writer",
    "driver reload": "driver reloaded",
    "not ready": "GPU not ready at a start",
    "journal gone": "journal deleted",
    "mended": "",
    "disk full": "disk full",
    "disk read_only": "disk read-only",
    "disk hung": "disk hangs",
    "disk works": "",
    "broker killed": "broker killed",
    "broker back": "",
    "run finished": "run ended",
    "run silent": "training falls silent",
    "suspended": "SIGSTOP, and SIGCONT a second later",
}
"""What may happen, and what tables call it; "" is no fault."""
FAULTS: Final = tuple(LABELS)
ENDS: Final = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGKILL", "SIGKILL and a restart", "SIGTERM twice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A schedule: faults with what passes before each [s], how the controller ends, what is repeated by `seed`."""

    seed: int
    faults: tuple[tuple[float, str, int], ...]
    end: str
    starts_faulty: bool

    def labels(self) -> set[str]:
        """Return what tables call its faults."""
        faults = {LABELS[fault] for _, fault, _ in self.faults}
        return {*filter(None, faults), self.end}


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOutcome:
    """What came of it; `violations` is empty if it passed."""

    plan: Plan
    violations: tuple[str, ...]
    history: tuple[str, ...]
    n_writes: int
    n_kills: int
    n_kept: int
    log: str = ""

    def __str__(self) -> str:
        """Return it for people."""
        return "\n".join([f"seed {self.plan.seed}: {self.plan}", *self.history, self.log, *self.violations])


def run_live_schedule(seed: int, folder: Path, library: Path, disk_library: Path) -> LiveOutcome:
    """Live through the schedule of a seed, in a folder that is made for it."""
    return LiveWorld(draw_plan(seed), folder, library, disk_library).run()


def compile_disk(directory: Path) -> Path:
    """Compile the faulty disk into a directory; skip where there is no compiler."""
    return compile_library(Path(__file__).with_name("faulty_disk.c"), directory / "faulty_disk.so")


def draw_plan(seed: int) -> Plan:
    """Return the schedule of a seed."""
    chosen = random.Random(seed)  # noqa: S311 — a schedule is no secret
    faults = tuple(
        (chosen.choice([0.0, 0.2, 0.6, 1.5]), chosen.choice(FAULTS), chosen.randrange(N_GPUS))
        for _ in range(chosen.randint(1, 4))
    )
    return Plan(seed=seed, faults=faults, end=chosen.choice(ENDS), starts_faulty=chosen.random() < 0.2)


class LiveWorld:
    """A node of the campaign: stub, broker, disk, training, and a controller.

    Args:
        plan: what happens.
        folder: for everything.
        library: the stub's.
        disk_library: the faulty disk's.

    Attributes:
        ends: each process that has ended: what it was, its exit code, and the limits after it [W].
        held_w: the limits when the controller was ended [W].
    """

    def __init__(self, plan: Plan, folder: Path, library: Path, disk_library: Path) -> None:
        self.violations: list[str] = []
        self.history: list[str] = []
        self.ends: list[tuple[str, int, list[float]]] = []
        self.held_w: list[float] = []
        self.n_kills = self.n_kept = 0
        self._plan = plan
        self._random = random.Random(plan.seed)  # noqa: S311 — sizes of faults
        self._folder = folder
        self._began_s = time.monotonic()
        self._disk = folder / "disk"
        self._disk.mkdir(parents=True)
        self._mode_file = self._disk / "mode"
        self._mode_file.write_bytes(b"\0")
        self._machine = StubMachine.create(library, folder / "machine", n_gpus=N_GPUS, speedup_ratio=100.0)
        self._gpus = [self._machine.gpu(index) for index in range(N_GPUS)]
        for gpu in self._gpus:
            gpu.set_requested_power_limit_w(PRIOR_W)
        self._right_w = [{PRIOR_W} for _ in self._gpus]
        (folder / "broker").mkdir()
        self._broker = Mosquitto(folder / "broker", _PLAIN)
        self._broker.start()
        self._training = CampaignTraining(self._machine, self._broker.port)
        self._environment = {
            **os.environ,
            **self._machine.environment(),
            "LD_PRELOAD": str(disk_library),
            "GRIDCHASE_FAULTY_DISK": str(self._mode_file),
        }

    def run(self) -> LiveOutcome:
        """Live through it."""
        child = self._start("controller")
        try:
            if not self._plan.starts_faulty:
                wait_until(lambda: child.poll() is not None or self._n_writes() >= N_GPUS, START_TIMEOUT_S)
            for pause_s, fault, number in self._plan.faults:
                _pass(pause_s)
                self._note(f"{fault} ({number})")
                self._cause(fault, number, child)
            _pass(self._random.choice([0.0, 0.3, 1.0, 2.5]))
            self._end(child)
            self._finish()
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            self.violations.append(f"not in time: {str(error)[-60:]}")
        finally:
            self._close(child)
        return LiveOutcome(
            plan=self._plan,
            violations=tuple(self.violations),
            history=tuple(self.history),
            n_writes=self._n_writes(),
            n_kills=self.n_kills,
            n_kept=self.n_kept,
            log="\n".join(path.read_text()[-MAX_LOG:] for path in self._folder.glob("*.log"))
            if self.violations
            else "",
        )

    def _cause(self, fault: str, number: int, child: "subprocess.Popen[bytes]") -> None:
        gpu = self._gpus[number]
        late_ms = self._random.choice([50, 300, 900, 3_000])
        causes: dict[str, Callable[[], object]] = {
            "late": lambda: gpu.fault_writes(delay_ms=late_ms),
            "late_readback": lambda: gpu.fault_writes(readback_delay_ms=min(late_ms, 900)),
            "clamped": lambda: gpu.fault_writes(min_power_limit_w=152.0, max_power_limit_w=251.0),
            "ignored": lambda: gpu.fault_writes(n_ignored=self._random.randint(1, 4)),
            "all ignored": lambda: gpu.fault_writes(n_ignored=None),
            "hung": lambda: gpu.hang("nvmlDeviceSetPowerManagementLimit", 600_000),
            "refused": lambda: setattr(gpu, "writable", False),
            "lost": lambda: setattr(gpu, "lost", True),
            "another writer": lambda: self._write_externally(number),
            "driver reload": lambda: self._reload(number),
            "not ready": lambda: gpu.fail("nvmlDeviceGetUUID", 27),
            "journal gone": lambda: (self._disk / "state" / FILE_NAME).unlink(missing_ok=True),
            "mended": lambda: self._mend(number),
            "broker killed": self._broker.kill,
            "broker back": self._revive_broker,
            "run finished": lambda: self._training.end("finished"),
            "run silent": lambda: self._training.end(""),
            "suspended": lambda: self._suspend(child),
        }
        if fault.startswith("disk "):
            self._set_disk(fault.removeprefix("disk "))
        else:
            causes[fault]()

    def _end(self, child: "subprocess.Popen[bytes]") -> None:
        """End the controller as planned, and restore what a killed one has left, as systemd does."""
        name, _, more = self._plan.end.partition(" ")
        self._note(self._plan.end)
        number = signal.Signals[name]
        self.held_w = [gpu.requested_power_limit_w for gpu in self._gpus]
        if child.poll() is None:
            child.send_signal(number)
            if more == "twice":
                _pass(0.05)
                if child.poll() is None:
                    child.send_signal(number)
        code = child.wait(EXIT_TIMEOUT_S)
        self._check_told("controller", code)
        if number is signal.SIGKILL and code == -number:
            self.n_kills += 1
        if more == "and a restart":
            code = self._restart()
        if code:
            self._restore()

    def _restart(self) -> int:
        """Start a controller while a GPU is not ready, stop it some time after it is, and return its exit code."""
        gpu = self._gpus[self._random.randrange(N_GPUS)]
        gpu.fail("nvmlDeviceGetUUID", 27)
        child = self._start("controller")
        try:
            _pass(2.0)
            gpu.fail("nvmlDeviceGetUUID", 0)
            _pass(self._random.choice([0.0, 1.0, 4.0]))
            child.send_signal(signal.SIGTERM)
            code = child.wait(EXIT_TIMEOUT_S)
        finally:
            child.kill()
        self._check_told("restarted controller", code)
        return code

    def _finish(self) -> None:
        """End all faults; restore what could not be restored before; then nothing may be stranded."""
        self._note("all faults are over")
        for number in range(N_GPUS):
            self._mend(number)
        self._set_disk("works")
        wait_until(self._has_no_late_write)
        if Journal.read(self._disk / "state").entries and (code := self._restore()) != 0:
            self.violations.append(f"`gridchase restore` exits with {code} although all faults are over")
        for gpu, right_w in zip(self._gpus, self._right_w, strict=True):
            limit_w = gpu.requested_power_limit_w
            if limit_w not in right_w:
                self.violations.append(f"GPU {gpu.raw.index}: stranded at {limit_w:g} W instead of {sorted(right_w)} W")
            for _, written_w in gpu.writes:
                if not FLOOR_W <= written_w <= max(right_w):
                    self.violations.append(f"GPU {gpu.raw.index}: {written_w:g} W written, above {max(right_w):g} W")

    def _has_no_late_write(self) -> bool:
        for gpu in self._gpus:
            gpu.set_external_limit_w(None)  # the stub carries out what is due only when it is called
        return not any(gpu.raw.pending_mw for gpu in self._gpus)

    def _restore(self) -> int:
        code = self._start("restore").wait(EXIT_TIMEOUT_S)
        self._check_told("restore", code)
        return code

    def _check_told(self, who: str, code: int) -> None:
        limits_w = [gpu.requested_power_limit_w for gpu in self._gpus]
        self.ends.append((who, code, limits_w))
        self._note(f"{who}: exit code {code}, limits {limits_w} W")
        is_back = all(limit_w in right_w for limit_w, right_w in zip(limits_w, self._right_w, strict=True))
        if not is_back:
            self.n_kept += 1
            if code == 0:
                self.violations.append(f"{who}: exit code 0 with limits {limits_w} W")

    def _write_externally(self, number: int) -> None:
        limit_w = 122.5 + 5 * self._random.randrange(30) + len(self.history) / 1_000
        self._right_w[number].add(limit_w)
        self._gpus[number].set_requested_power_limit_w(limit_w)

    def _reload(self, number: int) -> None:
        self._right_w[number].add(300.0)
        self._gpus[number].reload_driver()

    def _mend(self, number: int) -> None:
        gpu = self._gpus[number]
        gpu.fault_writes()
        gpu.hang("nvmlDeviceSetPowerManagementLimit", 0)
        gpu.fail("nvmlDeviceGetUUID", 0)
        gpu.writable, gpu.lost = True, False

    def _revive_broker(self) -> None:
        self._broker.kill()
        self._broker.start()

    def _suspend(self, child: "subprocess.Popen[bytes]") -> None:
        if child.poll() is None:
            child.send_signal(signal.SIGSTOP)
            _pass(1.0)
            child.send_signal(signal.SIGCONT)

    def _set_disk(self, mode: str) -> None:
        with self._mode_file.open("r+b") as file:
            file.write(bytes([DISK_MODES[mode]]))

    def _start(self, verb: str) -> "subprocess.Popen[bytes]":
        settings = SETTINGS | {"node.name": "n1", "node.state_dir": str(self._disk / "state")}
        settings["bus.url"] = self._broker.url
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        with (self._folder / f"{verb}.log").open("ab") as log:
            command = [sys.executable, "-m", "controller", verb, *words]
            return subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)

    def _n_writes(self) -> int:
        return sum(gpu.raw.n_writes for gpu in self._gpus)

    def _note(self, what: str) -> None:
        self.history.append(f"{time.monotonic() - self._began_s:7.2f} s  {what}")

    def _close(self, child: "subprocess.Popen[bytes]") -> None:
        self._set_disk("works")
        for number in range(N_GPUS):
            self._mend(number)
        if child.poll() is None:
            child.kill()
            child.wait(EXIT_TIMEOUT_S)
        self._training.close()
        self._broker.kill()


def _pass(duration_s: float) -> None:
    """Let time pass: a schedule says when a fault comes, whatever the controller does just then."""
    threading.Event().wait(duration_s)
