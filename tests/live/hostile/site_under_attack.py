"""A site with an honest job on its first GPU, and what an attempt of the tenant does to it."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import msgpack

from publishers.shared.boot_id import read_boot_id
from tests.live.broker.site import SiteBroker, SiteClient, password_of, site_broker
from tests.live.conftest import free_port, wait_until
from tests.live.hostile.world import JOB, MARK, NODE, ROOT, RUN, TENANT, VICTIM, World
from tests.live.nvml_stub.machine import StubMachine

PRIOR_W: Final = 300.0
PLANNED_W: Final = 220.0
MAX_EXTRA_SLOWDOWN: Final = 0.002
MAX_LOG_BYTES: Final = 200_000
"""That an attempt may add to the controller's log."""
_SPEEDUP_RATIO: Final = 25.0
"""30 ms an iteration: floods keep the cores busy, and much shorter ones would be timed wrong beside them."""
_SAMPLE_S: Final = 0.02
_STEADY_S: Final = 6.0
"""After which the curve is not measured any further."""
_START_TIMEOUT_S: Final = 120.0
_ENDING_TIMEOUT_S: Final = 60.0
_RESTARTS: Final = frozenset({"squat_the_locks"})
"""Attempts beside which the controller is restarted: it gives the limit back, which is checked there."""
_OBSERVERS: Final = {
    VICTIM: "trainings",
    "gpu02": "nodes",
    **dict.fromkeys(("policy", "dashboard", "web", "operator"), "services"),
}
_SETTINGS: Final = {
    "profiler.settle_s": "0.2",
    "profiler.window_s": "0.6",
    "profiler.block_s": "0.5",
    "profiler.n_blocks": "4",
    "plan.period_s": "0.5",
    "plan.max_slowdown": "1.3",
    "energy.period_s": "0.5",
    "node.name": NODE,
    # The plan is this floor, whatever the last digits of the curve, so that only an attack can change the limit; one
    # that drowns the job out for ten seconds does.
    "gpu.min_power_limit_w": str(PLANNED_W),
    "job.lease_s": "10",
    "orders.over_bus": "true",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of an attempt: what the tenant reports, what is wrong (nothing), and what the honest job felt."""

    name: str
    report: dict[str, Any]
    faults: list[str]
    limits_w: list[float]
    slowdown_ratio: float
    broker_rss_mib: float


class Samples:
    """The GPUs over time, read from the driver itself: the limits, and the speed of the honest job."""

    def __init__(self, machine: StubMachine) -> None:
        self._machine = machine
        self._samples = list[tuple[float, float, float]]()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._ended.set()
        self._thread.join()

    def limits_w(self) -> list[float]:
        """Return which limits the honest job's GPU had [W]."""
        return sorted({limit_w for limit_w, _, _ in self._samples})

    def last_limit_w(self) -> float:
        """Return the limit that the honest job's GPU has in the end [W]."""
        return self._samples[-1][0]

    def other_limits_w(self) -> list[float]:
        """Return which limits the other GPU had [W]."""
        return sorted({limit_w for _, limit_w, _ in self._samples})

    def iterations_per_s(self) -> float:
        """Return the mean speed of the honest job [1/s]."""
        return sum(speed for _, _, speed in self._samples) / len(self._samples)

    def _run(self) -> None:
        first, second = self._machine.gpu(0), self._machine.gpu(1)
        while not self._ended.wait(_SAMPLE_S):
            self._samples.append(
                (first.requested_power_limit_w, second.requested_power_limit_w, 1 / first.iteration_time_s())
            )


class SiteUnderAttack:
    """The broker of a site, a controller, the honest job, and a tenant with a password and a shell."""

    def __init__(self, site: SiteBroker, machine: StubMachine, directory: Path) -> None:
        self.site = site
        self.machine = machine
        self.directory = directory
        self._children = list[subprocess.Popen[bytes]]()
        self._http_port = free_port()
        self._shared_dir, self._link_target = directory / "shared", directory / "target"
        self._shared_dir.mkdir()
        self._shared_dir.chmod(0o1777)
        self._link_target.mkdir(0o700)
        self.prior_iterations_per_s = 1 / machine.gpu(0).iteration_time_s()
        self.controller = self.start_controller()
        self.training = self._start_training()
        self._world_file = directory / "world.json"

    def start_controller(self) -> "subprocess.Popen[bytes]":
        """Start the controller of the node."""
        settings = _SETTINGS | {
            "bus.url": self.site.url("nodes"),
            "bus.username": NODE,
            "bus.password_file": self._password_file(NODE),
            "bus.ca_file": str(self.site.ca_file),
            "node.state_dir": str(self.directory / "state"),
            "http.port": str(self._http_port),
        }
        self._controller_started_s = time.time()
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        return self._start("controller.log", "-m", "controller", "controller", *words)

    def make_attempt(self, name: str, *, duration_s: float, usual_slowdown_ratio: float) -> Outcome:
        """Let the tenant make an attempt, and return what became of it."""
        log_bytes = self.log_file.stat().st_size
        with ExitStack() as stack:
            observers = [stack.enter_context(self._observer(user, door)) for user, door in _OBSERVERS.items()]
            samples = stack.enter_context(Samples(self.machine))
            report, faults = self._let_the_tenant(name, duration_s)
            for observer in observers:
                faults += [f"forged: {topic}" for topic in _forged(observer)]
            if name not in _RESTARTS:
                faults += self._given_back(observers[-1], last_limit_w=samples.last_limit_w())
        slowdown_ratio = 1 - samples.iterations_per_s() / self.prior_iterations_per_s
        if slowdown_ratio > usual_slowdown_ratio + MAX_EXTRA_SLOWDOWN:
            faults.append(f"the honest job is {100 * (slowdown_ratio - usual_slowdown_ratio):.2f} points slower")
        if samples.other_limits_w() != [PRIOR_W]:
            faults.append(f"the other GPU had {samples.other_limits_w()} W")
        faults += [f"{key}: {report[key]}" for key in ("got_in", "received") if report.get(key)]
        faults += self._faults_of_survivors(log_bytes)
        return Outcome(
            name=name,
            report=report,
            faults=faults,
            limits_w=samples.limits_w(),
            slowdown_ratio=slowdown_ratio,
            broker_rss_mib=self.broker_rss_mib(),
        )

    def watch(self, duration_s: float) -> tuple[float, list[float]]:
        """Return the honest job's slowdown while nobody attacks, and its limits [W]."""
        with Samples(self.machine) as samples:
            threading.Event().wait(duration_s)
        return 1 - samples.iterations_per_s() / self.prior_iterations_per_s, samples.limits_w()

    def wait_for_the_plan(self) -> None:
        """Wait until the controller has measured the job and plans."""

        def is_planned() -> bool:
            last = _received(dashboard, "/limit")[-1:]
            return any(
                each["time_s"] > self._controller_started_s
                and each.get("power_limit_w") == PLANNED_W
                and time.time() - each["time_s"] > _STEADY_S
                for each in last
            )

        with self.site.client("services", "dashboard") as dashboard:
            dashboard.subscribe(f"{ROOT}/node/{NODE}/gpu/{self.machine.gpu(0).uuid}/limit")
            wait_until(is_planned, _START_TIMEOUT_S)

    @property
    def log_file(self) -> Path:
        """Return where the controller logs."""
        return self.directory / "controller.log"

    def broker_rss_mib(self) -> float:
        """Return the broker's resident memory [MiB]."""
        return self.site.process.rss_mib

    def close(self) -> None:
        """End every child."""
        for child in reversed(self._children):
            if child.poll() is None:
                child.terminate()
                try:
                    child.wait(_ENDING_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()

    def world(self, duration_s: float) -> World:
        """Return what the tenant can know."""
        return World(
            ports={door: self.site.ports[door] for door in ("trainings", "nodes", "services")},
            ca_pem=self.site.ca_file.read_text(),
            password=password_of(TENANT),
            boot_id=read_boot_id(),
            gpu_uuids=[self.machine.gpu(index).uuid for index in (0, 1)],
            victim_pid=self.training.pid,
            controller_pid=self.controller.pid,
            http_port=self._http_port,
            state_dir=str(self.directory / "state"),
            broker_dir=str(self.site.directory),
            shared_dir=str(self._shared_dir),
            link_target=str(self._link_target),
            duration_s=duration_s,
        )

    def tenant(self, name: str, duration_s: float) -> "subprocess.Popen[bytes]":
        """Start an attempt; the tenant's process computes on the second GPU."""
        self.world(duration_s).write(self._world_file)
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.live.hostile.tenant", str(self._world_file), name],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._children.append(child)
        self.machine.gpu(1).pids = frozenset({child.pid})
        return child

    def _given_back(self, observer: SiteClient, *, last_limit_w: float) -> list[str]:
        """Return why the honest job's GPU had its prior limit, other than for a planned look at the highest one."""
        changes = _received(observer, f"{self.machine.gpu(0).uuid}/limit")
        reasons = {each["reason"] for each in changes if (each.get("power_limit_w") or 0.0) >= PRIOR_W}
        if last_limit_w >= PRIOR_W and not reasons:
            return ["the honest job's limit was given back, and nobody was told"]
        return [f"the honest job's limit was given back: {reason}" for reason in sorted(reasons - {"refining"})]

    def _let_the_tenant(self, name: str, duration_s: float) -> tuple[dict[str, Any], list[str]]:
        child = self.tenant(name, duration_s)
        assert child.stdout is not None
        line = child.stdout.readline()
        faults = self._react(name)
        child.kill()
        _, errors = child.communicate(timeout=_ENDING_TIMEOUT_S)
        if not line:
            return {}, [f"the attempt itself failed: {errors.decode(errors='replace')[-600:]}"]
        return json.loads(line), faults

    def _react(self, name: str) -> list[str]:
        """Do what an attempt has waited for, while its process still lives, and return what is wrong then."""
        if name in _RESTARTS:
            return self._restart_the_controller()
        if name == "plant_a_link_for_the_state_directory":
            return self._use_the_planted_link()
        return []

    def _restart_the_controller(self) -> list[str]:
        self.controller.terminate()
        code = self.controller.wait(_ENDING_TIMEOUT_S)
        given_back = self.machine.gpu(0).requested_power_limit_w == PRIOR_W
        self.controller = self.start_controller()
        try:
            self.wait_for_the_plan()
        except TimeoutError:
            return ["the controller holds no limit after a restart"]
        return [] if code == 0 and given_back else [f"the controller ended with {code}, limit given back: {given_back}"]

    def _use_the_planted_link(self) -> list[str]:
        settings = ("gpu.backend=simulation", "http.port=-1", f"node.state_dir={self._shared_dir}/state")
        words = [word for setting in settings for word in ("--set", setting)]
        careless = self._start("careless.log", "-m", "controller", "controller", *words)
        try:
            code = careless.wait(_ENDING_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return ["a controller has followed the link"]
        written = [path.name for path in self._link_target.iterdir()]
        told = "belongs to user" in (self.directory / "careless.log").read_text()
        return [] if code == 2 and told and not written else [f"written through the link: {written}; exit code {code}"]

    def _faults_of_survivors(self, log_bytes: int) -> list[str]:
        faults = [
            f"{what} has ended: {child.poll()}"
            for what, child in (("the controller", self.controller), ("the training", self.training))
            if child.poll() is not None
        ]
        if self.site.process.exit_code is not None:
            faults.append(f"the broker has ended: {self.site.process.exit_code}: {self.site.process.log[-300:]}")
            self.site.start()
        added = self.log_file.read_bytes()[log_bytes:]
        if len(added) > MAX_LOG_BYTES:
            faults.append(f"{len(added):,} bytes in the controller's log")
        if any(byte < 0x20 and byte != 0x0A for byte in added):
            faults.append("control characters in the controller's log")
        with self.site.client("nodes", "gpu02") as node:
            topic = f"{ROOT}/host/{read_boot_id()}/user/{VICTIM}/job/{JOB}/run/{RUN}/rank/0/status"
            node.subscribe(topic)
            node.subscribe(f"{ROOT}/fence")
            states = [msgpack.unpackb(payload)["state"] for payload in node.received.get(topic, [])]
            if "running" not in states:
                faults.append(f"the honest job's retained status: {states}")
        return faults

    def _password_file(self, user: str) -> str:
        file = self.directory / f"{user}.password"
        file.touch(0o600)
        file.write_text(password_of(user))
        return str(file)

    def _start_training(self) -> "subprocess.Popen[bytes]":
        environment = {
            "GRIDCHASE_BROKER": self.site.url("trainings").replace("//", f"//{VICTIM}@"),
            "GRIDCHASE_JOB": JOB,
            "GRIDCHASE_PASSWORD_FILE": self._password_file(VICTIM),
            "GRIDCHASE_CA_FILE": str(self.site.ca_file),
            "GRIDCHASE_RUN": RUN,
            "RANK": "0",
            "WORLD_SIZE": "1",
        }
        child = self._start("training.log", "-m", "tests.live.training_on_stub", "100000", **environment)
        self.machine.gpu(0).pids = frozenset({child.pid})
        return child

    def _start(self, log: str, *arguments: str, **environment: str) -> "subprocess.Popen[bytes]":
        with (self.directory / log).open("ab") as output:
            child = subprocess.Popen(
                [sys.executable, *arguments],
                env={**os.environ, **self.machine.environment(), **environment},
                stdout=output,
                stderr=output,
            )
        self._children.append(child)
        return child

    @contextmanager
    def _observer(self, user: str, door: str) -> Iterator[SiteClient]:
        with self.site.client(door, user) as client:
            below = ("node", "grid", f"user/{VICTIM}", f"host/+/user/{VICTIM}")
            client.subscribe(*(f"{ROOT}/{each}/#" for each in below))
            yield client


def _forged(observer: SiteClient) -> list[str]:
    return sorted(
        topic for topic, payloads in observer.received.items() if any(MARK in payload for payload in payloads)
    )


def _received(client: SiteClient, ending: str) -> list[dict[str, Any]]:
    found = [payloads for topic, payloads in list(client.received.items()) if topic.endswith(ending)]
    return [json.loads(payload) for payloads in found for payload in list(payloads) if payload]


@contextmanager
def site_under_attack(directory: Path, library: Path) -> Iterator[SiteUnderAttack]:
    """Run a site with an honest job, until it is planned and after."""
    (directory / "broker").mkdir()
    users: dict[str, Sequence[str]] = {
        "trainings": [VICTIM, TENANT],
        "nodes": [NODE, "gpu02"],
        "services": ["policy", "dashboard", "web", "operator"],
    }
    machine = StubMachine.create(library, directory / "nvml_state", n_gpus=2, speedup_ratio=_SPEEDUP_RATIO)
    with site_broker(directory / "broker", users) as site:
        under_attack = SiteUnderAttack(site, machine, directory)
        try:
            under_attack.wait_for_the_plan()
            yield under_attack
        finally:
            under_attack.close()


def description(name: str) -> str:
    """Return an attempt in words."""
    words = name.replace("_", " ").replace("30 000", "30,000").replace("gpu", "GPU").replace("qos", "QoS")
    return re.sub(r"\b(victim|node)s\b", r"\1's", words).replace("others ", "others' ")
