"""The settings of a training process: from arguments, else the environment, else defaults.

| setting | argument, else |
|---|---|
| broker | `GRIDCHASE_BROKER` (`mqtt://host:port` or `mqtts://…`, also `user:password@`), else `mqtt://127.0.0.1:1883` |
| user | username, else the login name |
| job | `GRIDCHASE_JOB` |
| run, rank, world_size | see `run_search.py`: they may be known only when the training begins |
| gpus | see `run/visible_gpus.py` |
| username, password | the broker's URL; the password also from the file `GRIDCHASE_PASSWORD_FILE` |
| ca_file | `GRIDCHASE_CA_FILE`, else the system's authorities |
| root | `GRIDCHASE_ROOT`, else `gridchase/v1` |
| emissions_file | `GRIDCHASE_EMISSIONS_FILE`, else none is written |
"""

import math
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, TypedDict, Unpack

import msgspec
from msgspec import Meta

from publishers.messages.codec import GpuRef
from publishers.messages.topics import DEFAULT_ROOT, MAX_LABEL_BYTES, MAX_RANK, RunKey, is_label, is_name
from publishers.messages.training import RankStatus
from publishers.mqtt.broker_address import (
    DEFAULT_URL,
    BrokerAddress,
    BrokerAddressError,
    SettingNames,
    without_password,
)
from publishers.shared.boot_id import read_boot_id
from publishers.shared.files.lookup import file_fault
from publishers.shared.process_identity import read_login_name, read_pid_namespace
from publishers.training.coerce import DISABLED, is_allowed, is_switched_on, to_int, to_text, warn_once
from publishers.training.run.launchers import launchers_of, time_limit_s
from publishers.training.run.process_group import ProcessGroup, default_process_group
from publishers.training.run.visible_gpus import VARIABLES as GPU_VARIABLES
from publishers.training.run.visible_gpus import VisibleGpus, plain_gpus

MAX_BATCH_SIZE: Final = 1 << 31
BROKER_SETTINGS: Final = SettingNames(
    url="broker=… or GRIDCHASE_BROKER",
    username="username=…",
    password="password=… or GRIDCHASE_PASSWORD_FILE",  # noqa: S106 — names, not a password
    ca_file="ca_file=… or GRIDCHASE_CA_FILE",
)
VARIABLES: Final[Mapping[str, Sequence[str]]] = {
    "job": ("GRIDCHASE_JOB",),
    "run": ("GRIDCHASE_RUN", "TORCHELASTIC_RUN_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE"),
    "rank": ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"),
    "gpus": GPU_VARIABLES,
    "broker": ("GRIDCHASE_BROKER",),
    "user": ("GRIDCHASE_BROKER",),
    "password": ("GRIDCHASE_PASSWORD_FILE", "GRIDCHASE_BROKER"),
    "root": ("GRIDCHASE_ROOT",),
    "CA file": ("GRIDCHASE_CA_FILE",),
    "pausable": ("GRIDCHASE_PAUSABLE",),
    "early stop": ("GRIDCHASE_EARLY_STOP",),
    "emissions file": ("GRIDCHASE_EMISSIONS_FILE",),
    "quiet": ("GRIDCHASE_QUIET",),
}
"""The variables that a setting may come from, the first that is set."""
DEFAULT_MAX_PAUSE_S: Final = 300.0
MAX_PAUSE_S: Final = 86_400.0
_MAX_PERIOD_S: Final = 3_600.0
_NAME_RULE: Final = "must be 1 to 64 of A-Z a-z 0-9 . _ -"
_ROOT: Final = re.compile(r"[^/#+\s\0][^#+\s\0]{0,127}(?<!/)\Z")
_Gpus = Annotated[tuple[GpuRef, ...], Meta(max_length=64)]


class PublisherOptions(TypedDict, total=False):
    """Who publishes, and where to: the arguments that `publish_iterations` and `Publisher` share, described there."""

    job: str | None
    run: str | None
    broker: str | None
    rank: int | None
    world_size: int | None
    gpus: Sequence[str | int] | str | int | None
    batch_size: int | None
    username: str | None
    password: str | None
    ca_file: str | None
    root: str | None
    flush_s: float
    heartbeat_s: float
    boot_id: str | None
    emissions_file: str | os.PathLike[str] | None
    pausable: bool
    max_pause_s: float
    early_stop: bool
    work_unit: str | None


class SettingsError(ValueError):
    """The settings are wrong; `faults` lists every fault: value, rule and remedy."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__("; ".join(faults))


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What of a run's identity the training has passed; None: it is to be found out."""

    run: str | None
    rank: int | None
    world_size: int | None
    gpus: tuple[str | int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One rank of one run of a job, as its publisher sees it.

    Run, rank, world size and GPUs are as far as they are known; `run_search.py` returns them as they are.
    `run_is_random` if no run was named. Without `gpus` the controller finds out on which GPUs this process computes.
    `launch` is the `gridchase run` that it is below, where nothing else says which run it is of.
    `time_limit_s` is when the scheduler ends the process at the latest [Unix s].
    `work_unit` is what `work` is counted in.
    `pausable`, `max_pause_s` and `early_stop` are what the training lets be done to it (`pausing/`).
    """

    user: str
    job: str
    run: str
    run_is_random: bool
    rank: int
    world_size: int
    gpus: tuple[str | int, ...]
    batch_size: int | None
    broker: BrokerAddress
    root: str
    flush_s: float
    heartbeat_s: float
    boot_id: str
    host: str
    given: Given
    pausable: bool = False
    max_pause_s: float = DEFAULT_MAX_PAUSE_S
    early_stop: bool = False
    time_limit_s: float | None = None
    emissions_path: Path | None = None
    launch: str | None = None
    work_unit: str | None = None

    @property
    def key(self) -> RunKey:
        """Return which run this is."""
        return RunKey(self.user, self.job, self.run)

    def status(self, *, started_at_s: float) -> RankStatus:
        """Return the status of this rank while it runs."""
        return RankStatus(
            run=self.run,
            state="running",
            host=self.host,
            boot_id=self.boot_id,
            pid=os.getpid(),
            pid_namespace=read_pid_namespace(),
            gpus=list(self.gpus),
            world_size=self.world_size,
            started_at_s=started_at_s,
            heartbeat_s=self.heartbeat_s,
            batch_size=self.batch_size,
            time_limit_s=self.time_limit_s,
            work_unit=self.work_unit,
        )


def resolve(environ: Mapping[str, str] = os.environ, **options: Unpack[PublisherOptions]) -> Settings:
    """Return the settings, with the run and the rank as far as they are known now.

    Raises:
        SettingsError: with every fault there is.
    """
    reader = SettingsReader(environ)
    group = default_process_group()
    rank, world_size = reader.rank_of(options.get("rank"), options.get("world_size"), group)
    run = reader.run(options.get("run"))
    gpus, batch_size = options.get("gpus"), options.get("batch_size")
    pausable, early_stop = control_permissions(options, environ)
    broker = reader.broker(options)
    settings = Settings(
        user=broker.username or read_login_name(),
        job=reader.name(options.get("job"), "job", "GRIDCHASE_JOB"),
        run=run or os.urandom(6).hex(),
        run_is_random=run is None,
        rank=rank,
        world_size=world_size,
        gpus=reader.gpus(gpus, world_size=world_size),
        batch_size=None if batch_size is None else reader.batch_size(batch_size),
        broker=broker,
        root=str(options.get("root") or environ.get("GRIDCHASE_ROOT") or DEFAULT_ROOT),
        flush_s=reader.period_s(options.get("flush_s", 0.25), "flush_s"),
        heartbeat_s=reader.period_s(options.get("heartbeat_s", 10.0), "heartbeat_s"),
        boot_id=str(options.get("boot_id") or read_boot_id()),
        host=os.uname().nodename or "unknown",
        given=Given(
            run=options.get("run"),
            rank=None if options.get("rank") is None else rank,
            world_size=None if options.get("world_size") is None else world_size,
            gpus=None if gpus is None else plain_gpus(gpus),
        ),
        pausable=pausable,
        max_pause_s=reader.period_s(options.get("max_pause_s", DEFAULT_MAX_PAUSE_S), "max_pause_s", most_s=MAX_PAUSE_S),
        early_stop=early_stop,
        time_limit_s=time_limit_s(environ, now_s=time.time()),
        emissions_path=reader.emissions_path(options.get("emissions_file")),
        work_unit=reader.work_unit(options.get("work_unit")),
    )
    reader.faults += _format_faults(settings)
    if reader.faults:
        raise SettingsError(reader.faults)
    return settings


def control_permissions(options: PublisherOptions, environ: Mapping[str, str] = os.environ) -> tuple[bool, bool]:
    """Return whether the training may be paused, and whether its loop may be ended early."""
    early_stop = is_allowed(options.get("early_stop"), "early_stop", "GRIDCHASE_EARLY_STOP", environ)
    return is_allowed(options.get("pausable"), "pausable", "GRIDCHASE_PAUSABLE", environ), early_stop


def resolve_or_warn(options: PublisherOptions, *, caller: str) -> Settings | None:
    """Return the settings, or None where publishing is off: they are wrong, or this is not Linux; a warning says so.

    `GRIDCHASE_DISABLED=1` switches it off without one.

    Raises:
        TypeError: an option has a name that does not exist, as in any call with such an argument.
    """
    for name in options.keys() - PublisherOptions.__annotations__.keys():
        raise TypeError(f"{caller}() got an unexpected keyword argument {name!r}")
    if reason := why_off():
        warn_once(f"publishing is off: {reason}; {DISABLED}=1 hides this line")
        return None
    try:
        return resolve(**options)
    except SettingsError as error:
        warn_once(f"publishing is off: {error}")
    except Exception as error:  # noqa: BLE001 — training code may pass anything, and nothing may stop it
        warn_once(f"publishing is off: {type(error).__name__}: {error}")
    return None


def why_off() -> str:
    """Return why nothing is published here, whatever the settings are; "" where it is."""
    if is_switched_on(DISABLED):
        return f"{DISABLED} is set"
    return "" if sys.platform == "linux" else f"it needs Linux, and this is {sys.platform}"


class SettingsReader:
    """Reads settings from arguments and environment, and collects their faults."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.faults: list[str] = []

    def name(self, value: object, argument: str, variable: str) -> str:
        """Return the name of a job or a run."""
        name = value if value is not None else self._environ.get(variable)
        if name is None:
            self.faults.append(f"{argument} is missing: pass {argument}=… or set {variable}")
        elif not isinstance(name, str) or not is_name(name):
            self.faults.append(f"{argument} = {name!r}: {_NAME_RULE}; pass another {argument}=… or {variable}")
        return str(name)

    def run(self, value: str | None) -> str | None:
        """Return the name of the run, or None where it has none."""
        if value is not None or self._environ.get("GRIDCHASE_RUN"):
            return self.name(value, "run", "GRIDCHASE_RUN")
        return None

    def rank_of(self, rank: object, world_size: object, group: ProcessGroup | None) -> tuple[int, int]:
        """Return which rank this process is, and of how many: arguments, else its process group, else the launcher."""
        launchers = launchers_of(self._environ)
        if group is not None:
            rank = group.rank if rank is None else rank
            world_size = group.world_size if world_size is None else world_size
        sizes, ranks = [each.world_size for each in launchers], [each.rank for each in launchers]
        n_ranks = self.integer(world_size, "world_size", sizes, default=1, least=1, most=MAX_RANK + 1)
        number = self.integer(rank, "rank", ranks, default=0, least=0, most=MAX_RANK)
        if number >= n_ranks:
            self.faults.append(f"rank = {number}: must be below world_size = {n_ranks}")
        return number, n_ranks

    def integer(
        self, value: object, argument: str, variables: Sequence[str], *, default: int, least: int, most: int
    ) -> int:
        """Return a whole number: argument, else the first of the variables that is set, else the default."""
        found = value
        if found is None:
            argument, found = next(
                ((name, self._environ[name]) for name in variables if self._environ.get(name)), (argument, default)
            )
        number = to_int(found)
        if number is None or not least <= number <= most:
            self.faults.append(f"{argument} = {found!r}: must be a whole number from {least} to {most}")
            return default
        return number

    def batch_size(self, value: object) -> int:
        """Return the samples of an iteration."""
        return self.integer(value, "batch_size", (), default=1, least=1, most=MAX_BATCH_SIZE)

    def period_s(self, value: object, argument: str, *, most_s: float = _MAX_PERIOD_S) -> float:
        """Return a period [s] as a plain number."""
        try:
            period_s = math.nan if isinstance(value, str) else float(value)  # type: ignore[arg-type]  # TypeError
        except Exception:  # noqa: BLE001 — a tensor's own conversion may raise anything
            period_s = math.nan
        if not 0 < period_s <= most_s:
            self.faults.append(f"{argument} = {value!r}: must be above 0 and at most {most_s:g} s")
        return period_s

    def gpus(self, value: object, *, world_size: int) -> tuple[str | int, ...]:
        """Return the GPUs of this rank, as far as they are known: argument, else those that it sees (`VisibleGpus`)."""
        visible = VisibleGpus.read(self._environ)
        if value is not None:
            return visible.named(plain_gpus(value))
        local_rank = self._local_rank(world_size=world_size)
        try:
            return visible.of_rank(local_rank, world_size=world_size)
        except IndexError:
            variable, n_gpus = self._environ.get("CUDA_VISIBLE_DEVICES"), len(visible.by_cuda or ())
            self.faults.append(
                f"LOCAL_RANK = {local_rank}: CUDA_VISIBLE_DEVICES = {variable!r} has {n_gpus} GPUs; pass gpus=[…]"
            )
            return ()

    def _local_rank(self, *, world_size: int) -> int | None:
        # Of a process that trains alone only torchrun, and what follows it, says on which of several GPUs.
        launchers = launchers_of(self._environ)[: None if world_size > 1 else 1]
        variables = [launcher.local_rank for launcher in launchers]
        local_rank = self.integer(None, "LOCAL_RANK", variables, default=-1, least=-1, most=MAX_RANK)
        return None if local_rank < 0 else local_rank

    def broker(self, options: PublisherOptions) -> BrokerAddress:
        """Return where the broker is, and the credentials for it; the default broker where there is a fault."""
        url = str(options.get("broker") or self._environ.get("GRIDCHASE_BROKER") or DEFAULT_URL)
        ca_file = str(options.get("ca_file") or self._environ.get("GRIDCHASE_CA_FILE") or "")
        username, password = self._text(options, "username"), self._text(options, "password")
        try:
            given = BrokerAddress(
                url=url, username=username, password=password, ca_file=ca_file, allow_credentials=True
            )
        except BrokerAddressError as error:
            value = without_password(url) if error.setting == "url" else ca_file
            self.faults.append(f"{'broker' if error.setting == 'url' else 'ca_file'} = {value!r}: {error.rule}")
            return BrokerAddress(url=DEFAULT_URL)
        if ca_file and (fault := file_fault(ca_file)):
            self.faults.append(f"ca_file = {ca_file!r}: {fault}")
        password = given.password or self._password_of_file()
        if password and not given.username:
            self.faults.append("username is missing, and there is a password: pass username=… or mqtt://user@host")
        return BrokerAddress(url=given.url, username=given.username, password=password, ca_file=ca_file)

    def _password_of_file(self) -> str:
        file = self._environ.get("GRIDCHASE_PASSWORD_FILE")
        if not file:
            return ""
        from publishers.shared.files.secret_file import read_secret_file  # noqa: PLC0415 — few need it, and it loads html

        try:
            return read_secret_file("GRIDCHASE_PASSWORD_FILE", file)
        except ValueError as error:
            self.faults.append(str(error))
            return ""

    @staticmethod
    def work_unit(value: object) -> str | None:
        """Return what work is counted in; without a word for it, nothing is lost."""
        if value is None or is_name(unit := to_text(value, 80)):
            return None if value is None else unit
        warn_once("work_unit is not used: must be a word of 1 to 64 characters A-Z a-z 0-9 . _ -")
        return None

    def emissions_path(self, value: object) -> Path | None:
        """Return the file of the run's row, or None; absolute, as a training may change its folder."""
        given = value if value is not None else self._environ.get("GRIDCHASE_EMISSIONS_FILE") or None
        if given is None:
            return None
        try:
            path = Path(os.fspath(given)).absolute()  # type: ignore[call-overload]  # TypeError where it is no path
            return path / "emissions.csv" if path.is_dir() else path  # as CodeCarbon names it
        except (TypeError, ValueError, OSError) as error:
            warn_once(f"emissions_file = {to_text(given, 200)} is not used: {error}; pass the path of a CSV file")
            return None

    def _text(self, options: PublisherOptions, argument: str) -> str:
        value = options.get(argument) or ""
        if not isinstance(value, str):
            self.faults.append(f"{argument} is a {type(value).__name__}: must be text")
            return ""
        return value


def _format_faults(settings: Settings) -> list[str]:
    """Return what the format of the bus refuses in the settings."""
    faults = []
    if not _ROOT.match(settings.root):
        faults.append(f"root = {settings.root!r}: must be a topic of at most 128 characters without spaces, + and #")
    for argument, label in (("boot_id", settings.boot_id), ("username", settings.user)):
        if not is_label(label):
            faults.append(f"{argument} = {label!r}: must be 1 to {MAX_LABEL_BYTES} bytes of printable characters")
    try:
        msgspec.convert(settings.gpus, _Gpus)
    except msgspec.ValidationError:
        faults.append(f"gpus = {settings.gpus!r}: must be at most 64 UUIDs, or indices from 0 to 1023")
    return faults
