"""What a training process says about itself, and where: arguments, else the environment, else a default.

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

import os
import re
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from publishers.caution import warn_once
from publishers.environment import Broker, Finder, find_boot_id
from publishers.quantities import GpuRef
from publishers.topics import DEFAULT_ROOT, MAX_RANK
from publishers.wire import RankStatus

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
    found = Finder(environ)
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
        boot_id=str(boot_id or find_boot_id()),
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
