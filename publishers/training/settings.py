"""The settings of a training process: arguments, else the environment, else defaults.

Looks the settings of a training process up in its environment, and says what is wrong with them.

What a training process says about itself, and where: arguments, else the environment, else a default.

| setting | argument, else |
|---|---|
| broker | `GRIDCHASE_BROKER` (`mqtt://host:port` or `mqtts://…`, also `user:password@`), else `mqtt://127.0.0.1:1883` |
| job | `GRIDCHASE_JOB` |
| run | `GRIDCHASE_RUN`, else torchrun's id, Slurm's (job and step), else random where there is one rank |
| rank, world_size | `RANK`, `WORLD_SIZE`, else `SLURM_PROCID`, `SLURM_NTASKS`, else 0 and 1 |
| gpus | see `Finder.gpus` |
| username, password | the broker's URL; the password also from the file `GRIDCHASE_PASSWORD_FILE` |
| ca_file | `GRIDCHASE_CA_FILE`, else the system's authorities |
| root | `GRIDCHASE_ROOT`, else `gridchase/v1` |
"""

import contextlib
import math
import operator
import os
import re
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec
from msgspec import Meta

from publishers.messages.codec import GpuRef
from publishers.messages.topics import DEFAULT_ROOT, MAX_RANK, is_name
from publishers.messages.training import RankStatus
from publishers.training.coerce import warn_once

DEFAULT_BROKER: Final = "mqtt://127.0.0.1:1883"
_DEFAULT_PORTS: Final = {"mqtt": 1883, "mqtts": 8883}
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
MAX_BATCH_SIZE: Final = 1 << 31
MAPS: Final = Path("/proc/self/maps")
_LONGEST_PERIOD_S: Final = 3_600.0
_NAME_RULE: Final = "must be 1 to 64 of A-Z a-z 0-9 . _ -"


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """Where the broker is, and how to get in."""

    host: str
    port: int
    tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None

    @property
    def url(self) -> str:
        """Return its URL, without the password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"mqtt{'s' * self.tls}://{host}:{self.port}"


class SettingsReader:
    """Looks settings up and collects what is wrong with them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.faults: list[str] = []

    def name(self, value: object, argument: str, variable: str) -> str:
        """Return the name of a job or a run."""
        text = value if value is not None else self._environ.get(variable)
        if text is None:
            self.faults.append(f"{argument} is missing: pass {argument}=… or set {variable}")
        elif not isinstance(text, str) or not is_name(text):
            self.faults.append(f"{argument} = {text!r}: {_NAME_RULE}; pass another {argument}=… or {variable}")
        return str(text)

    def run(self, value: str | None, *, world_size: int) -> str | None:
        """Return the run's id, or None where it may be random."""
        if value is not None or self._environ.get("GRIDCHASE_RUN"):
            return self.name(value, "run", "GRIDCHASE_RUN")
        launcher = _launcher_run(self._environ)
        if launcher is not None:
            return self.name(launcher, "run", "GRIDCHASE_RUN")
        if world_size > 1:
            self.faults.append(
                f"run is missing, and world_size = {world_size} ranks must share one: "
                "set GRIDCHASE_RUN to the same id for all of them (torchrun: --rdzv-id)"
            )
        return None

    def number(
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

    def world_size(self, value: object) -> int:
        """Return how many processes train together."""
        return self.number(value, "world_size", ("WORLD_SIZE", "SLURM_NTASKS"), default=1, least=1, most=MAX_RANK + 1)

    def batch_size(self, value: object) -> int:
        """Return the samples of an iteration."""
        return self.number(value, "batch_size", (), default=1, least=1, most=MAX_BATCH_SIZE)

    def period_s(self, value: object, argument: str) -> float:
        """Return a period [s] as a plain number."""
        try:
            period_s = math.nan if isinstance(value, str) else float(value)  # type: ignore[arg-type]  # TypeError
        except Exception:  # noqa: BLE001 — a tensor's own conversion may raise anything
            period_s = math.nan
        if not 0 < period_s <= _LONGEST_PERIOD_S:
            self.faults.append(f"{argument} = {value!r}: must be above 0 and at most {_LONGEST_PERIOD_S:g} s")
        return period_s

    def gpus(self, value: object, *, world_size: int) -> tuple[str | int, ...]:
        """Return the GPUs of this rank: argument, else of `CUDA_VISIBLE_DEVICES`, else index `LOCAL_RANK` or 0.

        Where several are visible and there is a `LOCAL_RANK`, the rank uses the one at that place; without one it uses
        them all. Nothing or -1 in `CUDA_VISIBLE_DEVICES` means no GPU. Without the variable it is a guess.
        """
        if value is not None:
            return _plain_gpus(value)
        local = self._local_rank(world_size=world_size)
        text = self._environ.get("CUDA_VISIBLE_DEVICES")
        if text is None:
            return (local or 0,)
        visible = _visible_gpus(text)
        if local is None or len(visible) <= 1:
            return visible
        if local >= len(visible):
            self.faults.append(
                f"LOCAL_RANK = {local}: CUDA_VISIBLE_DEVICES = {text!r} has {len(visible)} GPUs; pass gpus=[…]"
            )
            return ()
        return (visible[local],)

    def _local_rank(self, *, world_size: int) -> int | None:
        # Slurm sets SLURM_LOCALID in batch scripts too, where it says nothing.
        variables = ["LOCAL_RANK", "SLURM_LOCALID"] if world_size > 1 else ["LOCAL_RANK"]
        local = self.number(None, "LOCAL_RANK", variables, default=-1, least=-1, most=MAX_RANK)
        return None if local < 0 else local

    def broker(self, url: str | None, *, username: str | None, password: str | None, ca_file: str | None) -> Broker:
        """Return where the broker is, and how to get in."""
        text = url or self._environ.get("GRIDCHASE_BROKER") or DEFAULT_BROKER
        try:
            parts = urlsplit(text)
            port = parts.port
        except (ValueError, AttributeError, TypeError):
            parts, port = urlsplit(""), None
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or parts.path not in {"", "/"}:
            self.faults.append(f"broker = {_without_password(text)!r}: must be mqtt://host:port or mqtts://host:port")
            return Broker(host="", port=0)
        user, secret = self._credentials(parts, username, password)
        ca = ca_file or self._environ.get("GRIDCHASE_CA_FILE")
        if ca and parts.scheme == "mqtt":
            self.faults.append(f"ca_file = {ca!r}: needs a broker with TLS; let its URL begin with mqtts://")
        elif ca and not Path(str(ca)).is_file():
            self.faults.append(f"ca_file = {ca!r}: there is no such file")
        return Broker(
            host=parts.hostname,
            port=port or _DEFAULT_PORTS[parts.scheme],
            tls=parts.scheme == "mqtts",
            username=user,
            password=secret,
            ca_file=str(ca) if ca else None,
        )

    def _credentials(
        self, parts: SplitResult, username: str | None, password: str | None
    ) -> tuple[str | None, str | None]:
        user = username or (unquote(parts.username) if parts.username else None)
        secret = password or (unquote(parts.password) if parts.password else None)
        file = self._environ.get("GRIDCHASE_PASSWORD_FILE")
        if secret is None and file:
            try:
                secret = Path(file).read_text(encoding="utf-8").rstrip("\r\n")
            except (OSError, UnicodeDecodeError) as error:
                self.faults.append(f"GRIDCHASE_PASSWORD_FILE = {file!r}: {error}")
        if secret is not None and user is None:
            self.faults.append("username is missing, and there is a password: pass username=… or mqtt://user@host")
        credentials: dict[str, object] = {"username": user, "password": secret}
        for argument, text in credentials.items():
            if not isinstance(text, str | None):
                self.faults.append(f"{argument} is a {type(text).__name__}: must be text")
        return user, secret


def _launcher_run(environ: Mapping[str, str]) -> str | None:
    elastic = environ.get("TORCHELASTIC_RUN_ID")
    if elastic and elastic != "none":
        return elastic
    job, step = environ.get("SLURM_JOB_ID"), environ.get("SLURM_STEP_ID")
    return f"{job}.{step}" if job and step else job or None


def to_int(value: object) -> int | None:
    """Return a whole number of any kind (text, NumPy's, a tensor of one element) as a plain one, or None."""
    try:
        return int(value) if isinstance(value, str) else operator.index(value)  # type: ignore[arg-type]  # TypeError
    except Exception:  # noqa: BLE001 — a tensor's own conversion may raise anything
        return None


def _plain_gpus(value: object) -> tuple[Any, ...]:
    """Return what somebody passed as GPUs in plain types, as far as it has any; the format of the bus checks it."""
    given: tuple[object, ...] = (value,)
    if not isinstance(value, str):
        with contextlib.suppress(TypeError):  # one GPU
            given = tuple(value)  # type: ignore[arg-type]
    return tuple(_plain_gpu(gpu) for gpu in given)


def _plain_gpu(gpu: object) -> object:
    if isinstance(gpu, str):
        return str(gpu)
    return gpu if isinstance(gpu, bool) or (index := to_int(gpu)) is None else index


def _visible_gpus(text: str) -> tuple[str | int, ...]:
    """Return the GPUs in `CUDA_VISIBLE_DEVICES`; as in CUDA, the first invalid one ends the list."""
    gpus: list[str | int] = []
    for part in (piece.strip() for piece in text.split(",")):
        if not part or part.startswith("-"):
            break
        gpus.append(int(part) if part.isascii() and part.isdigit() else part)
    return tuple(gpus)


def _without_password(url: str) -> str:
    return re.sub(r"://.*@", "://…@", str(url), flags=re.DOTALL)  # a password may hold any of : / @


def has_loaded_cuda(maps: Path) -> bool:
    """Return whether the process whose memory map this is has loaded CUDA's driver library; also where nobody can tell.

    Frameworks load it when they first look for a GPU, so a process that only computes on the CPU does not have it.
    """
    try:
        return b"/libcuda.so" in maps.read_bytes()
    except OSError:
        return True


def read_boot_id() -> str:
    """Return the id of this boot, within which the monotonic clock is comparable, else the host's name."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return socket.gethostname() or "unknown"


_Gpus = Annotated[tuple[GpuRef, ...], Meta(max_length=64)]
_LONGEST_BOOT_ID: Final = 256
_ROOT: Final = re.compile(r"[^/#+\s\0][^#+\s\0]{0,127}(?<!/)\Z")


class SettingsError(ValueError):
    """The settings are wrong; `faults` lists every one of them: value, rule and mend."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__("; ".join(faults))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One rank of one run of a job, as its publisher sees it.

    `run_is_random` where nobody named the run; `gpus_are_guessed` where nobody named a GPU: then `gpus` are claimed
    only once the process has loaded CUDA.
    """

    job: str
    run: str
    run_is_random: bool
    rank: int
    world_size: int
    gpus: tuple[str | int, ...]
    gpus_are_guessed: bool
    batch_size: int | None
    broker: Broker
    root: str
    flush_s: float
    heartbeat_s: float
    boot_id: str
    host: str

    def status(self, *, started_at_s: float) -> RankStatus:
        """Return the status of this rank while it runs."""
        return RankStatus(
            run=self.run,
            state="running",
            host=self.host,
            boot_id=self.boot_id,
            pid=os.getpid(),
            gpus=[] if self.gpus_are_guessed else list(self.gpus),
            world_size=self.world_size,
            started_at_s=started_at_s,
            heartbeat_s=self.heartbeat_s,
            batch_size=self.batch_size,
        )


def resolve(
    *,
    job: str | None = None,
    run: str | None = None,
    broker: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    gpus: Sequence[str | int] | None = None,
    batch_size: int | None = None,
    username: str | None = None,
    password: str | None = None,
    ca_file: str | None = None,
    root: str | None = None,
    flush_s: float = 0.25,
    heartbeat_s: float = 10.0,
    boot_id: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """Return the settings.

    Raises:
        SettingsError: with every fault there is.
    """
    found = SettingsReader(environ)
    ranks = found.world_size(world_size)
    own_rank = found.number(rank, "rank", ("RANK", "SLURM_PROCID"), default=0, least=0, most=MAX_RANK)
    if own_rank >= ranks:
        found.faults.append(f"rank = {own_rank}: must be below world_size = {ranks}")
    run_id = found.run(run, world_size=ranks)
    settings = Settings(
        job=found.name(job, "job", "GRIDCHASE_JOB"),
        run=run_id or secrets.token_hex(6),
        run_is_random=run_id is None,
        rank=own_rank,
        world_size=ranks,
        gpus=found.gpus(gpus, world_size=ranks),
        gpus_are_guessed=gpus is None and "CUDA_VISIBLE_DEVICES" not in environ,
        batch_size=None if batch_size is None else found.batch_size(batch_size),
        broker=found.broker(broker, username=username, password=password, ca_file=ca_file),
        root=str(root or environ.get("GRIDCHASE_ROOT") or DEFAULT_ROOT),
        flush_s=found.period_s(flush_s, "flush_s"),
        heartbeat_s=found.period_s(heartbeat_s, "heartbeat_s"),
        boot_id=str(boot_id or read_boot_id()),
        host=socket.gethostname() or "unknown",
    )
    found.faults += _faults(settings)
    if found.faults:
        raise SettingsError(found.faults)
    return settings


def resolve_or_warn(find: Callable[[], Settings]) -> Settings | None:
    """Return the settings, or None where they are wrong: then publishing is off, and one warning says why."""
    try:
        return find()
    except SettingsError as error:
        warn_once(f"publishing is off: {error}")
    except Exception as error:  # noqa: BLE001 — training code may pass anything, and nothing may stop it
        warn_once(f"publishing is off: {type(error).__name__}: {error}")
    return None


def _faults(settings: Settings) -> list[str]:
    """Return what the format of the bus refuses in the settings."""
    faults = []
    if not _ROOT.match(settings.root):
        faults.append(f"root = {settings.root!r}: must be a topic of at most 128 characters without spaces, + and #")
    if not 1 <= len(settings.boot_id) <= _LONGEST_BOOT_ID:
        faults.append(f"boot_id = {settings.boot_id!r}: must have 1 to {_LONGEST_BOOT_ID} characters")
    try:
        msgspec.convert(settings.gpus, _Gpus)
    except msgspec.ValidationError:
        faults.append(f"gpus = {settings.gpus!r}: must be at most 64 UUIDs, or indices from 0 to 1023")
    return faults
