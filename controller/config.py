"""The controller's configuration: one TOML file, frozen records with working defaults, every fault reported at once.

`deploy/controller.toml` shows every key; a test keeps it equal to these defaults. Values are read once, here, and
passed down by section; nothing below the command line reads a file or the environment.
"""

import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, time, timedelta
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Meta

from controller.errors import ConfigError
from policies.providers.base import ProviderSettings
from policies.providers.catalogue import CATALOGUE, CatalogueEntry
from policies.providers.sources.mqtt import MqttSettings
from policies.savings.holdout import MAX_HOLDOUT_RATIO
from policies.vocabulary.units import HOUR_S
from publishers.mqtt.bus_config import BusConfig, bus_faults
from publishers.shared.toml_config import Section, SectionReaders, build_record, load_sections, redacted_repr

NameOrNone = Annotated[
    str, Meta(pattern=r"\A[A-Za-z0-9._-]{0,64}\Z", description="at most 64 characters of A-Z a-z 0-9 . _ -")
]
Seconds = Annotated[float, Meta(ge=0.05, le=86_400)]

PAUSE_WINDOWS: Final = 15
_REMOVED_KEYS: Final = {
    "profiler": {"step_w": "each limit is the part profiler.step_ratio of the one before; plan.step_w is another thing"}
}
_HOURS: Final = re.compile(r"(?P<number>\d{1,6}(\.\d{1,6})?)h")
_GOAL_KEYS: Final = frozenset({"objective", "deadline", "budget"})
"""The keys that say together what a job must keep."""
_JOB_PATTERN: Final = re.compile(r"[A-Za-z0-9._*?\[\]!-]{1,64}")
_WINDOW: Final = re.compile(
    r"((?P<day>(mon|fri|sun)(day)?|tue(sday)?|wed(nesday)?|thu(rsday)?|sat(urday)?) )?"
    r"(?P<hour>\d{1,2}):(?P<minute>\d\d)( (?P<zone>[A-Za-z][\w+/-]*))?",
    re.IGNORECASE,
)
_WEEKDAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DEADLINE: Final = (
    'must be a moment with its zone, as "2026-07-01T18:00:00+02:00", hours after a start, as "36h", or the time of a'
    ' day or a week that comes next, as "8:00" or "Mon 8:00 Europe/Berlin" (without a zone by this machine\'s clock)'
)


class NodeConfig(Section, frozen=True, kw_only=True):
    """This node: its name on the bus, and the directory of the journal, the lock and the profiles."""

    name: NameOrNone = ""
    state_dir: str = ""


class OrdersConfig(Section, frozen=True, kw_only=True):
    """Whether orders of operators are obeyed over the bus: the broker's rules must let nobody else write them."""

    over_bus: bool = False


class GpuConfig(Section, frozen=True, kw_only=True):
    """Which GPUs, the operator's own floor and ceiling [W] (0 means none), and whether unproven claims are believed."""

    backend: Literal["nvml", "simulation"] = "nvml"
    min_power_limit_w: Annotated[float, Meta(ge=0, le=10_000)] = 0.0
    max_power_limit_w: Annotated[float, Meta(ge=0, le=10_000)] = 0.0
    allow_above_prior: bool = False
    trust_bus: bool = False


class ProfilerConfig(Section, frozen=True, kw_only=True):
    """How the curve is measured: from the prior limit down by a ratio, then again and again at the planned limits."""

    settle_s: Annotated[float, Meta(ge=0, le=86_400)] = 0.5
    window_s: Annotated[float, Meta(ge=0.1, le=86_400)] = 0.5
    step_ratio: Annotated[float, Meta(ge=0.5, le=0.98)] = 0.8
    tolerance_ratio: Annotated[float, Meta(ge=0.001, le=0.5)] = 0.03
    block_s: Annotated[float, Meta(ge=0.1, le=86_400)] = 2.0
    n_blocks: Annotated[int, Meta(ge=0, le=10_000)] = 60

    @property
    def pause_s(self) -> float:
        """Return after how long without an iteration a job is paused [s]."""
        return PAUSE_WINDOWS * (self.settle_s + self.window_s)


class PlanRules(Section, frozen=True, kw_only=True):
    """The objective of a plan, how often it is made, and how much a change must save."""

    objective: Literal["slowdown", "eta", "deadline", "budget"] = "slowdown"
    max_slowdown: Annotated[float, Meta(ge=1, le=10)] = 1.03
    eta: Annotated[float, Meta(ge=0, le=1)] = 0.5
    deadline: str = ""
    budget: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
    period_s: Annotated[float, Meta(ge=0.05, le=86_400)] = 300.0
    min_dwell_s: Annotated[float, Meta(ge=0, le=86_400)] = 60.0
    min_gain_ratio: Annotated[float, Meta(ge=0, lt=1)] = 0.001
    step_w: Annotated[float, Meta(ge=1, le=1_000)] = 5.0
    share_slack: bool = False
    may_pause: bool = False
    holdout_ratio: Annotated[float, Meta(ge=0, le=MAX_HOLDOUT_RATIO)] = 0.0


class JobPlan(Section, frozen=True, kw_only=True):
    """A `[[plan.job]]` table: the jobs that it is for, by name or pattern, and the `keys` that it sets."""

    name: str
    rules: PlanRules = PlanRules()
    keys: tuple[str, ...] = ()


class PlanConfig(PlanRules, frozen=True, kw_only=True):
    """The plan of every job, unless a `[[plan.job]]` table says otherwise."""

    observe: bool = False
    job: tuple[JobPlan, ...] = ()

    def may_hold_out(self, job: str) -> bool:
        """Return whether runs of a job may be held out: none that must meet a deadline or keep a budget."""
        return not self.observe and self.rules_of(job).objective not in {"deadline", "budget"}

    def job_holdout_ratio(self, job: str) -> float:
        """Return the share of a job's runs that is held out."""
        return self.rules_of(job).holdout_ratio if self.may_hold_out(job) else 0.0

    def rules_of(self, job: str) -> PlanRules:
        """Return the rules for a job: by the table of its name, else by the first whose pattern fits, else these."""
        fitting = [table for table in self.job if fnmatchcase(job, table.name)]
        exact = [table for table in fitting if table.name == job]
        return self._with(next(iter(exact + fitting), None))

    def faults(self) -> Iterator[str]:
        """Yield what is wrong between keys, here and in each table."""
        yield from _goal_faults("plan", self._with(None))
        for number, table in enumerate(self.job):
            if not _GOAL_KEYS.isdisjoint(table.keys):  # what it inherits from [plan] is reported there
                yield from _goal_faults(f"plan.job[{number}]", self._with(table))

    def _with(self, table: JobPlan | None) -> PlanRules:
        rules = {key: getattr(self, key) for key in PlanRules.__struct_fields__}
        return PlanRules(**rules | ({key: getattr(table.rules, key) for key in table.keys} if table else {}))


class ProviderConfig(Section, frozen=True, kw_only=True):
    """A `[[signal.provider]]` table: which provider, and the settings that are its own."""

    name: str
    settings: ProviderSettings


class SignalConfig(Section, frozen=True, kw_only=True):
    """What the plan follows: carbon [g/kWh], price [money/kWh], or plain energy; and the providers, in this order."""

    kind: Literal["carbon", "price", "energy"] = "energy"
    zone: NameOrNone = ""
    period_s: Seconds = 60.0
    provider: tuple[ProviderConfig, ...] = ()

    @property
    def topic_zone(self) -> str:
        """Return the zone's name on the bus: `zone`, else as the first provider calls it, else `local`."""
        named = self.zone or (getattr(self.provider[0].settings, "zone", "") if self.provider else "")
        return re.sub(r"[^A-Za-z0-9._-]", "-", named) or "local"


class EnergyConfig(Section, frozen=True, kw_only=True):
    """How often energy is published, and what a GPU watt costs beside itself."""

    period_s: Seconds = 5.0
    host_power_w: Annotated[float, Meta(ge=0, le=100_000)] = 0.0
    pue: Annotated[float, Meta(ge=1, le=5)] = 1.0


class JobConfig(Section, frozen=True, kw_only=True):
    """When a job that is silent, or does not iterate any more, loses its hold."""

    lease_s: Annotated[float, Meta(ge=1, le=86_400)] = 60.0
    idle_s: Annotated[float, Meta(ge=1, le=86_400)] = 60.0


class Retention(Section, frozen=True, kw_only=True):
    """For how many days runs, decisions and energies are kept.

    Quarter-hours that are older are merged into days, which are kept as long as runs.
    """

    quarter_days: Annotated[int, Meta(ge=1, le=3_660)] = 35
    decision_days: Annotated[int, Meta(ge=1, le=3_660)] = 35
    run_days: Annotated[int, Meta(ge=1, le=36_600)] = 1_830


class HistoryConfig(Retention, frozen=True, kw_only=True):
    """Whether a record is kept, and how long."""

    enabled: bool = True


class HttpConfig(Section, frozen=True, kw_only=True):
    """Where /healthz, /readyz, /metrics, pauses and pins are served; port 0 takes a free one, -1 none.

    Pauses need a token: the controller's own, in its state directory, or one of `token_file`, one a line.
    """

    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Meta(ge=-1, le=65_535)] = 9321
    token_file: str = ""


class Config(Section, frozen=True, kw_only=True):
    """The whole configuration."""

    bus: BusConfig = BusConfig()
    node: NodeConfig = NodeConfig()
    gpu: GpuConfig = GpuConfig()
    profiler: ProfilerConfig = ProfilerConfig()
    plan: PlanConfig = PlanConfig()
    signal: SignalConfig = SignalConfig()
    energy: EnergyConfig = EnergyConfig()
    job: JobConfig = JobConfig()
    history: HistoryConfig = HistoryConfig()
    http: HttpConfig = HttpConfig()
    orders: OrdersConfig = OrdersConfig()


def load_config(path: Path | None, overrides: Sequence[str] = ()) -> Config:
    """Return the configuration in the TOML file at `path` (or the defaults), with `section.key=value` overrides.

    Raises:
        ConfigError: with every fault there is: unknown keys, wrong types, values out of bounds, a file that is missing.
    """
    config, faults = load_sections(
        Config, path, overrides, cross_key_faults=cross_key_faults, readers=_readers, removed_keys=_REMOVED_KEYS
    )
    if faults:
        raise ConfigError(faults)
    return with_node_defaults(config)


def load_for_restore(path: Path | None, overrides: Sequence[str] = ()) -> tuple[Config, list[str]]:
    """Return the configuration as far as it is right, and its faults, which must not keep limits from being restored.

    What is wrong falls back to its default. A wrong `gpu.backend` becomes NVML: GPUs are found by their UUIDs.

    Raises:
        ConfigError: `node.state_dir` is wrong: nobody knows where the journal is.
    """
    config, faults = load_sections(
        Config, path, overrides, cross_key_faults=lambda _: (), readers=_readers, removed_keys=_REMOVED_KEYS
    )
    if fatal := [fault for fault in faults if fault.startswith(("node.state_dir ", "node =", "--set node.state_dir="))]:
        raise ConfigError(fatal)
    return with_node_defaults(config), faults


def is_state_dir_known(path: Path | None, overrides: Sequence[str], faults: Sequence[str]) -> bool:
    """Return whether the state directory is the operator's choice: not if the file that may name it has a fault."""
    is_given = any(text.startswith("node.state_dir=") for text in overrides)
    return path is None or is_given or not any(fault.startswith(f"{path}: ") for fault in faults)


def cross_key_faults(config: Config) -> list[str]:
    """Return the faults that concern more than one key."""
    return [
        *_gpu_faults(config.gpu),
        *_signal_faults(config.signal),
        *_loop_faults(config),
        *bus_faults(config.bus),
        *_order_faults(config),
        *config.plan.faults(),
    ]


def with_node_defaults(config: Config) -> Config:
    """Return the configuration with the node's name and state directory filled in where they are empty."""
    name = config.node.name or re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64]
    state_dir = config.node.state_dir or str(default_state_dir())
    return msgspec.structs.replace(config, node=NodeConfig(name=name or "node", state_dir=state_dir))


def default_state_dir() -> Path:
    """Return /var/lib/gridchase for root, else the user's own state directory."""
    if os.geteuid() == 0:
        return Path("/var/lib/gridchase")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "gridchase"


def deadline_s(deadline: str, *, started_at_s: float) -> float:
    """Return the moment of a deadline [Unix s], for a run that started at a time [Unix s].

    Raises:
        ValueError: it is neither a moment with a zone, nor a number of hours, nor a time of a day or a week.

    >>> deadline_s("36h", started_at_s=1_000.0)
    130600.0
    """
    if match := _HOURS.fullmatch(deadline):
        return started_at_s + float(match["number"]) * HOUR_S
    if match := _WINDOW.fullmatch(deadline):
        return _next_time_s(match, started_at_s)
    moment = datetime.fromisoformat(deadline)
    if moment.tzinfo is None:
        raise ValueError(f"{deadline!r} has no zone")
    return moment.timestamp()


def _next_time_s(window: re.Match[str], after_s: float) -> float:
    """Return when a time of a day, or of a week, comes next after a moment [Unix s].

    Raises:
        ValueError: there is no such time, or no such zone.
    """
    try:
        zone = ZoneInfo(window["zone"]) if window["zone"] else None
    except (KeyError, OSError) as error:  # a part of the world alone (`Europe`) is a folder
        raise ValueError(f"{window['zone']!r} is no time zone") from error
    at, day = time(int(window["hour"]), int(window["minute"]), tzinfo=zone), (window["day"] or "")[:3].lower()
    today = datetime.fromtimestamp(after_s, zone).date()
    moments = (datetime.combine(today + timedelta(days=n), at) for n in range(9))
    return next(
        moment.timestamp()
        for moment in moments
        if moment.timestamp() > after_s and day in {"", _WEEKDAYS[moment.weekday()]}
    )


def _gpu_faults(gpu: GpuConfig) -> Iterator[str]:
    low_w, high_w = gpu.min_power_limit_w, gpu.max_power_limit_w
    if high_w and low_w > high_w:
        yield f"gpu.min_power_limit_w = {low_w:g}: must be at most gpu.max_power_limit_w = {high_w:g}"


def _order_faults(config: Config) -> Iterator[str]:
    """Reject orders on a broker that does not know who sends them."""
    if config.orders.over_bus and not config.bus.username:
        yield 'bus.username = "": must be set, because orders.over_bus is: its broker must know who sends an order'


def _signal_faults(signal: SignalConfig) -> Iterator[str]:
    if signal.kind != "energy" and not signal.provider:
        yield (
            f'signal.provider: is missing, because signal.kind = "{signal.kind}": add a [[signal.provider]] table with '
            f"name = {' or '.join(map(repr, CATALOGUE[signal.kind]))}"
        )
    kinds = {provider.settings.signal_kind() for provider in signal.provider}
    if signal.kind != "energy" and any((kind == "price") != (signal.kind == "price") for kind in kinds):
        yield f'signal.kind = "{signal.kind}": a provider gives values of kind {" and ".join(sorted(kinds))}'
    elif len(kinds) > 1:
        yield f"signal.provider: mixes {' and '.join(sorted(kinds))} intensities, whose grams are not the same"
    for number, provider in enumerate(signal.provider):
        yield from (f"signal.provider[{number}].{fault}" for fault in provider.settings.all_faults())


def _loop_faults(config: Config) -> Iterator[str]:
    """Reject a provider that reads what this controller publishes."""
    own = f"{config.bus.root}/grid/{config.signal.topic_zone}/{config.signal.kind}"
    for number, provider in enumerate(config.signal.provider):
        if isinstance(provider.settings, MqttSettings) and provider.settings.topic == own:
            yield f"signal.provider[{number}].topic = {own!r}: is what this controller publishes; set signal.zone"


def _goal_faults(path: str, rules: PlanRules) -> Iterator[str]:
    if rules.objective == "deadline" and not rules.deadline:
        yield f'{path}.deadline = "": {_DEADLINE}, because {path}.objective = "deadline"'
    if rules.objective == "budget" and not rules.budget:
        yield (
            f'{path}.budget = 0: must be above 0 (g of carbon, money, or kWh where signal.kind = "energy"), because '
            f'{path}.objective = "budget"'
        )


def _readers(tables: Mapping[str, Any]) -> SectionReaders:
    signal = tables.get("signal")
    kind = signal.get("kind", "energy") if isinstance(signal, dict) else "energy"
    return {
        "signal": {"provider": partial(_read_providers, str(kind))},
        "plan": {"deadline": _read_deadline, "job": _read_job_plans},
    }


def _read_providers(kind: str, path: str, value: object, faults: list[str]) -> tuple[ProviderConfig, ...]:
    entries = CATALOGUE.get(kind, {})
    if kind == "energy" and value:
        faults.append('signal.kind = "energy": is the same everywhere and asks no provider; use "carbon" or "price"')
    tables = _read_list(path, value, faults)
    read = [_read_provider(entries, f"{path}[{number}]", table, faults) for number, table in enumerate(tables)]
    return tuple(provider for provider in read if provider is not None)


def _read_provider(
    entries: Mapping[str, CatalogueEntry], path: str, value: object, faults: list[str]
) -> ProviderConfig | None:
    table = dict(value) if isinstance(value, dict) else {}
    name = table.pop("name", None)
    entry = entries.get(name) if isinstance(name, str) else None
    if entry is None:
        if entries:  # without any, the kind is wrong, and that is reported elsewhere
            faults.append(f"{path}.name = {redacted_repr(name)}: must be {' or '.join(map(repr, entries))}")
        return None
    settings = build_record(path, entry.settings, table, faults)
    return None if settings is None else ProviderConfig(name=str(name), settings=settings)


def _read_job_plans(path: str, value: object, faults: list[str]) -> tuple[JobPlan, ...]:
    tables = _read_list(path, value, faults)
    read = [_read_job_plan(f"{path}[{number}]", table, faults) for number, table in enumerate(tables)]
    return tuple(table for table in read if table is not None)


def _read_job_plan(path: str, value: object, faults: list[str]) -> JobPlan | None:
    table: dict[str, Any] = dict(value) if isinstance(value, dict) else {}
    name = table.pop("name", None)
    rules = build_record(path, PlanRules, table, faults, readers={"deadline": _read_deadline})
    if not isinstance(name, str) or not _JOB_PATTERN.fullmatch(name):
        faults.append(f'{path}.name = {redacted_repr(name)}: must be a job\'s name, or a pattern of them as "bert-*"')
        return None
    keys = tuple(key for key in table if key in PlanRules.__struct_fields__)
    return None if rules is None else JobPlan(name=name, rules=rules, keys=keys)


def _read_deadline(path: str, value: object, faults: list[str]) -> str:
    """Return a deadline as text; TOML has a type for moments."""
    text = value.isoformat() if isinstance(value, datetime) else value
    if isinstance(text, str) and (not text or _is_deadline(text)):
        return text
    faults.append(f"{path} = {redacted_repr(str(text))}: {_DEADLINE}")
    return ""


def _is_deadline(text: str) -> bool:
    try:
        deadline_s(text, started_at_s=0.0)
    except (ValueError, OverflowError):
        return False
    return True


def _read_list(path: str, value: object, faults: list[str]) -> list[object]:
    if isinstance(value, list):
        return value
    faults.append(f"{path} = {redacted_repr(value)}: must be a list of tables, each [[{path}]]")
    return []
