"""`gridchase check`: checks GPUs, broker, signal and permissions, and explains each fault. It changes nothing."""

import argparse
import asyncio
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from controller.cli.broker import listens, own_address
from controller.cli.configuration import TRY_SIMULATION, add_configuration, add_simulation
from controller.cli.output import Terminal, print_json, shown
from controller.cli.wiring import backend_of, opened_sources, read_password
from controller.config import Config, SignalConfig, load_config
from controller.errors import BackendError, ConfigError, GpuError, JournalError
from controller.gpu.journal.storage import Journal
from controller.gpu.node_lock import lock_holders
from controller.gpu.processes import ProcFileSystem
from controller.http.health import NO_GPU
from controller.orders.open_door import OPEN_DOOR, anybody, open_doors, order_routes
from controller.ports import Gpu
from controller.runtime.clock import SystemClock
from gridchase.cli.bus_routes import (
    NODE,
    TRAINING,
    faults_of,
    leaf_of,
    node_routes,
    probing,
    training_routes,
)
from policies.providers.base import (
    SignalDataError,
    SignalError,
    SignalLimitedError,
    SignalRefusedError,
    SignalUnavailableError,
)
from policies.providers.catalogue import Source
from policies.providers.sources.mqtt import FIRST_WAIT_S, MqttProvider
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import DAY_S, HOUR_S
from publishers.messages.topics import PROBE, RunKey, Topics
from publishers.mqtt.broker_address import BrokerAddress
from publishers.mqtt.bus_config import BUS_SETTINGS
from publishers.mqtt.topic_probe import Party, RouteResult, probe_routes
from publishers.shared.files.private_dir import unsafe_dir_fault
from publishers.training.settings import BROKER_SETTINGS, PublisherOptions, Settings, SettingsError, resolve

CAP_SYS_ADMIN: Final = 21
FETCH_TIMEOUT_S: Final = 45.0
LOOK_BACK_S: Final = DAY_S
LOOK_AHEAD_S: Final = DAY_S
_MEANINGS: Final[dict[type[SignalError], str]] = {
    SignalUnavailableError: "the controller retries, and uses the next provider or its own forecast meanwhile",
    SignalLimitedError: "too many requests, perhaps by other programs with the same token; the controller waits",
    SignalRefusedError: "it fails until the token, the zone or the subscription is corrected",
    SignalDataError: "its values are not used, because they are not what was requested",
}


@dataclass(slots=True, kw_only=True)
class Finding:
    """What was checked, what was found, and what is wrong with it; nothing if `fault` is empty.

    Where `is_checked` is false it could not be checked now, and nothing is known to be wrong: `found` says why.
    """

    what: str
    found: str
    fault: str = ""
    is_checked: bool = True


@dataclass(slots=True, kw_only=True)
class GpuCheck:
    """A GPU with its five limits [W], and what is wrong with it."""

    uuid: str
    index: int
    model: str
    min_power_limit_w: float | None = None
    max_power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    requested_power_limit_w: float | None = None
    enforced_power_limit_w: float | None = None
    power_w: float | None = None
    has_energy_counter: bool = False
    faults: list[str] = field(default_factory=list)


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add_configuration(verb)
    add_simulation(verb)
    verb.add_argument("--json", action="store_true", help="print JSON")

    def do(options: argparse.Namespace) -> int:
        config = load_config(options.config, options.set)
        return check(config, as_json=options.json, has_file=options.config is not None)

    verb.set_defaults(do=do)


def check(config: Config, *, as_json: bool, has_file: bool) -> int:
    """Print what was found and what is wrong; return 0 if nothing is.

    Args:
        config: of the controller.
        as_json: whether to print JSON.
        has_file: whether it is of a file: without one, `gridchase up` may be what comes next, and brings a broker.
    """
    gpus, findings = asyncio.run(_check(config, may_start_broker=not has_file))
    faults = [line for finding in findings for line in finding.fault.splitlines()]
    faults += [f"{gpu.uuid}: {fault}" for gpu in gpus for fault in gpu.faults]
    if as_json:
        report = {"gpus": [asdict(gpu) for gpu in gpus], "findings": [asdict(f) for f in findings], "faults": faults}
        print_json(report)
    else:
        _print(gpus, findings, faults)
    return int(bool(faults))


async def _check(config: Config, *, may_start_broker: bool) -> tuple[list[GpuCheck], list[Finding]]:
    findings = []
    backend = backend_of(config, SystemClock())
    gpus: list[GpuCheck] = []
    try:
        opened = await backend.open()
        gpus = [await _check_gpu(gpu, config) for gpu in opened]
        faults = [f"a GPU is not managed: {error}" for error in backend.faults] + ([] if gpus else [NO_GPU])
        findings.append(Finding(what="driver", found=backend.driver, fault="\n".join(faults)))
        if config.gpu.backend == "nvml":
            findings.append(await _check_processes(opened, config))
        await backend.close()
    except BackendError as error:
        findings.append(Finding(what="driver", found="none", fault=f"{error}\n{TRY_SIMULATION}"))
    findings += [
        *await _check_bus(config, may_start_broker=may_start_broker),
        *await _check_signal(config.signal, now_s=SystemClock().now_s()),
        _check_permission(config),
        _check_state(config),
        *_check_locks(config, [gpu.uuid for gpu in gpus]),
    ]
    return gpus, findings


async def _check_gpu(gpu: Gpu, config: Config) -> GpuCheck:
    result = GpuCheck(uuid=gpu.uuid, index=gpu.index, model=gpu.model)
    try:
        limits, live, sample = await gpu.read_range(), await gpu.read_limit(), await gpu.read_sample()
        result.min_power_limit_w = limits.min_power_limit_w
        result.max_power_limit_w = limits.max_power_limit_w
        result.default_power_limit_w = limits.default_power_limit_w
        result.requested_power_limit_w = live.requested_power_limit_w
        result.enforced_power_limit_w = live.enforced_power_limit_w
        result.power_w = sample.power_w
        result.has_energy_counter = sample.energy_j is not None
        floor_w = max(limits.min_power_limit_w, config.gpu.min_power_limit_w)
        if floor_w == live.requested_power_limit_w:
            result.faults.append(
                f"its lowest limit is its current one, {floor_w:g} W, which is never exceeded: nothing can be saved"
            )
        if config.gpu.min_power_limit_w > live.requested_power_limit_w:
            result.faults.append(
                f"gpu.min_power_limit_w = {config.gpu.min_power_limit_w:g} is above the current limit, "
                f"{live.requested_power_limit_w:g} W, which is never exceeded: no limit will be set"
            )
        if await gpu.read_mig():
            result.faults.append("it is partitioned (MIG): a limit would affect every tenant, so none will be set")
        if await gpu.read_persistence() is False:
            result.faults.append("persistence mode is off, so the driver may forget limits; run nvidia-persistenced")
    except GpuError as error:
        result.faults.append(str(error))
    return result


async def _check_processes(gpus: Sequence[Gpu], config: Config) -> Finding:
    """Check whether it can be seen who computes on the GPUs: where it cannot, no limit is set for a claim."""
    found, remedy = "who computes on the GPUs can be seen", "set gpu.trust_bus if only you may publish"
    if config.gpu.trust_bus:
        return Finding(what="processes", found="not needed: gpu.trust_bus is set")
    if not ProcFileSystem().sees_all:
        why = "this pid namespace hides the processes of others (hostPID: true, --pid=host)"
        return Finding(what="processes", found="hidden", fault=f"{why}: GPUs are only measured; or {remedy}")
    hidden = []
    for gpu in gpus:
        with suppress(GpuError):  # told of the GPU already
            if await gpu.read_processes() is None:
                hidden.append(gpu.uuid)
    fault = f"the driver does not list the processes of {', '.join(hidden)}: only measured; {remedy}" if hidden else ""
    return Finding(what="processes", found="hidden" if hidden else found, fault=fault)


async def _check_bus(config: Config, *, may_start_broker: bool) -> list[Finding]:
    """Send a message on each topic that this node and a training here use, and see who receives it."""
    bus = config.bus
    own = own_address(bus.url) if may_start_broker and not bus.username else None
    if own is not None and not await listens(*own):
        absent = f"no broker answers at {bus.url} yet: `gridchase up` starts one; topics are checked beside it"
        return [Finding(what="broker", found=absent, is_checked=False)]
    try:
        password = read_password(bus)
    except ConfigError as error:
        return [Finding(what="broker", found=bus.url, fault=str(error))]
    address = BrokerAddress(url=bus.url, username=bus.username, password=password, ca_file=bus.ca_file)
    training, remark = _training_here(config)
    key = training.key if training is not None else RunKey("nobody", PROBE, secrets.token_hex(6))
    topics, signal = Topics(bus.root), config.signal
    signal_leaf = {"energy": "", "price": "price"}.get(signal.kind, "carbon")
    answers_orders = config.orders.over_bus
    routes = node_routes(topics, config.node.name, key, signal=signal_leaf, answers_orders=answers_orders)
    parties = [Party(name=NODE, address=address, names=BUS_SETTINGS)]
    if answers_orders:
        routes += order_routes(topics, key, node=config.node.name, reader=NODE)
        parties.append(anybody(bus))
    if training is not None:
        routes += training_routes(training)
        parties.append(Party(name=TRAINING, address=training.broker, names=BROKER_SETTINGS))
    report = await asyncio.to_thread(probe_routes, parties, routes)
    faults = [report.faults[NODE]] if NODE in report.faults else report.limits
    findings = [Finding(what="broker", found=bus.url, fault="\n".join(f"{bus.url}: {fault}" for fault in faults))]
    if NODE in report.faults:
        return findings
    findings += [_topics_of(NODE, report.results, topics), *_open_doors(report.results)]
    if training is None:
        findings.append(Finding(what=f"topics of {TRAINING}", found=f"not checked: {remark}", is_checked=False))
    elif TRAINING in report.faults:
        findings.append(Finding(what=f"topics of {TRAINING}", found="none", fault=report.faults[TRAINING]))
    else:
        findings.append(_topics_of(TRAINING, report.results, topics))
    return findings


def _open_doors(results: Sequence[RouteResult]) -> list[Finding]:
    """Return a fault for orders that have arrived from whoever has no password."""
    found = ", ".join(each.route.topic for each in open_doors(results))
    return [Finding(what="orders over the bus", found=found, fault=OPEN_DOOR)] if found else []


def _training_here(config: Config) -> tuple[Settings | None, str]:
    """Return how a training on this machine connects, as far as this environment tells; else None, and why."""
    is_told = bool(os.environ.get("GRIDCHASE_BROKER"))
    if not is_told and config.bus.username:
        return None, (
            "set GRIDCHASE_BROKER and GRIDCHASE_PASSWORD_FILE as a training here has them, or run "
            "`gridchase doctor` as one"
        )
    options = PublisherOptions(job=PROBE, run=PROBE, rank=0, world_size=1, gpus=[])
    if not is_told:
        options |= PublisherOptions(broker=config.bus.url, root=config.bus.root)
    try:
        return probing(resolve(os.environ, **options)), ""
    except SettingsError as error:
        return None, str(error)


def _topics_of(writer: str, results: Sequence[RouteResult], topics: Topics) -> Finding:
    own = [result for result in results if result.route.writer == writer]
    faults = faults_of(own, topics)
    unproven = sorted({leaf_of(result.route.topic, topics) for result in own if not result.is_proven})
    found = f"{sum(result.is_proven for result in own)} of {len(own)} arrive or are accepted"
    if unproven:
        found += f"; the broker does not tell about {', '.join(unproven)}, which nobody here may read"
    return Finding(what=f"topics of {writer}", found=found, fault="\n".join(faults))


async def _check_signal(config: SignalConfig, *, now_s: float) -> list[Finding]:
    """Ask each provider once; return what it answers, and what is wrong with it."""
    if config.kind == "energy":
        return [Finding(what="signal (energy)", found="plain energy")]
    return [await _check_provider(config, number, now_s=now_s) for number in range(len(config.provider))]


async def _check_provider(config: SignalConfig, number: int, *, now_s: float) -> Finding:
    provider = config.provider[number]
    what = f"signal ({config.kind}, {number + 1} of {len(config.provider)})"
    alone = msgspec.structs.replace(config, provider=(provider,))
    try:
        async with opened_sources(alone) as sources, asyncio.timeout(FETCH_TIMEOUT_S):
            return await _ask(sources[0], what=what, now_s=now_s)
    except ConfigError as error:  # in this configuration it is the first provider
        fault = str(error).replace("signal.provider[0]", f"signal.provider[{number}]")
        return Finding(what=what, found=provider.name, fault=fault)
    except SignalError as error:
        meaning = _MEANINGS.get(type(error), "")
        return Finding(what=what, found=provider.name, fault=f"{error}; {meaning}" if meaning else str(error))
    except TimeoutError:
        fault = f"no answer in {FETCH_TIMEOUT_S:g} s; {_MEANINGS[SignalUnavailableError]}"
        return Finding(what=what, found=provider.name, fault=f"{provider.name}: {fault}")


async def _ask(source: Source, *, what: str, now_s: float) -> Finding:
    provider = source.provider
    history = await provider.fetch_history(since_s=now_s - LOOK_BACK_S, now_s=now_s)
    name = f"{provider.name} ({provider.losses})" if provider.losses else provider.name
    age_s = history.age_s(now_s) if history is not None else float("inf")
    if isinstance(provider, MqttProvider) and not provider.has_received:
        silent = f"{provider.name}: no message in {FIRST_WAIT_S:g} s: the signal begins with the first one"
        return Finding(what=what, found=silent, is_checked=False)
    if history is None or age_s > max(source.max_age_s, source.lag_s):
        fault = f"{name} has no current value: the plan will not follow the grid"
        return Finding(what=what, found=name, fault=fault)
    try:
        forecast = await provider.fetch_forecast(now_s=now_s, until_s=now_s + LOOK_AHEAD_S)
    except SignalError as error:
        return Finding(
            what=what, found=f"{name}: {_value(history, now_s, age_s)}; only the controller's own forecasts: {error}"
        )
    ahead = (
        f"its forecast reaches {(forecast.ends_s - now_s) / HOUR_S:.0f} h ahead" if forecast else "it has no forecast"
    )
    return Finding(what=what, found=f"{name}: {_value(history, now_s, age_s)}; {ahead}")


def _value(history: Signal, now_s: float, age_s: float) -> str:
    value = history.value_at(now_s if age_s == 0 else now_s - age_s - 1e-3)
    shown = "?" if value is None else f"{value:.4g}"
    return f"{shown} {history.unit}, {history.kind}" + (f", {age_s / HOUR_S:.1f} h old" if age_s else "")


def _check_permission(config: Config) -> Finding:
    """Check whether this process may write limits; the controller's process may have other capabilities."""
    if config.gpu.backend != "nvml":
        return Finding(what="permission", found="not needed by the simulation")
    if _capabilities() >> CAP_SYS_ADMIN & 1:
        return Finding(what="permission", found="CAP_SYS_ADMIN")
    fault = "no CAP_SYS_ADMIN: limits can only be read, not set; see deploy/gridchase-controller.service"
    return Finding(what="permission", found="none", fault=fault)


def _check_state(config: Config) -> Finding:
    state_dir = Path(config.node.state_dir)
    nearest = next(path for path in (state_dir, *state_dir.parents) if os.access(path, os.F_OK))
    if not os.access(nearest, os.W_OK | os.X_OK):
        return Finding(what="state", found=str(state_dir), fault=f"{nearest} cannot be written; set node.state_dir")
    if nearest == state_dir and (fault := unsafe_dir_fault(state_dir)):
        return Finding(what="state", found=str(state_dir), fault=f"{state_dir}: {fault}")
    try:
        journal = Journal.read(state_dir)
    except JournalError as error:
        return Finding(what="state", found=str(state_dir), fault=str(error))
    if journal.damage:
        return Finding(what="state", found=str(state_dir), fault="; ".join(journal.damage))
    held = journal.entries
    return Finding(what="state", found=f"{state_dir}: {len(held)} limits held" if held else str(state_dir))


def _check_locks(config: Config, gpu_uuids: Sequence[str]) -> list[Finding]:
    """Check who holds the GPUs: a controller may, anything else keeps them from one."""
    if config.gpu.backend != "nvml":
        return []
    holders = lock_holders(Path(config.node.state_dir), gpu_uuids)
    found = [f"process {pid} ({_command(pid)})" for pid in sorted(set(holders.values()))]
    faults = [
        f"{uuid}: locked by process {pid} ({_command(pid)}), which is not gridchase: a controller leaves this GPU out"
        for uuid, pid in holders.items()
        if not _is_gridchase(_command(pid))
    ]
    return [Finding(what="locks", found=", ".join(found) or "free", fault="\n".join(faults))]


def _is_gridchase(command: str) -> bool:
    words = command.split()
    return any(Path(word).name == "gridchase" for word in words) or words[1:3] == ["-m", "controller"]


def _command(pid: int) -> str:
    """Return the command line of a process, or "unknown"."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "unknown"
    return b" ".join(words).decode(errors="replace").strip() or "unknown"


def _capabilities() -> int:
    """Return the effective capabilities of this process as a bit mask."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)


def _print(gpus: list[GpuCheck], findings: list[Finding], faults: list[str]) -> None:
    console = Terminal()
    for gpu in gpus:
        watts = {
            "min": gpu.min_power_limit_w,
            "max": gpu.max_power_limit_w,
            "default": gpu.default_power_limit_w,
            "requested": gpu.requested_power_limit_w,
            "enforced": gpu.enforced_power_limit_w,
        }
        limits = ", ".join(f"{name} {'?' if limit_w is None else f'{limit_w:g}'}" for name, limit_w in watts.items())
        counter = "" if gpu.has_energy_counter else ", no energy counter: power is integrated"
        draw = "" if gpu.power_w is None else f"; draws {gpu.power_w:.0f} W{counter}"
        console.print(f"{gpu.index}: {gpu.model}, {gpu.uuid}\n   power limits [W]: {limits}{draw}", soft_wrap=True)
    for finding in findings:
        mark = "[red]✗[/red]" if finding.fault else "[green]✓[/green]" if finding.is_checked else "[yellow]–[/yellow]"  # noqa: RUF001
        console.print(f"{mark} {finding.what}: {shown(finding.found)}")
    for fault in faults:
        console.print(f"[red]wrong:[/red] {shown(fault)}", soft_wrap=True, highlight=False)
    if not faults:
        are_all_checked = all(finding.is_checked for finding in findings)
        console.print("nothing is wrong" if are_all_checked else "nothing is wrong with what could be checked")
