"""Measured curves as files, one for each of what a curve depends on: replaced whole, never edited.

Version 1 knew neither the GPUs nor the driver: what it kept is read, as a curve of unknown GPUs.
"""

import hashlib
import logging
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from policies.profile import PowerProfile, ProfilePoint

VERSION: Final = 2
_UNKNOWN_GPUS: Final = 1
"""The version that kept curves without their GPUs and driver."""
_SANE: Final = (1e-6, 1e9)
"""Between these are all limits and powers [W] and rates [1/s] that there are."""
_SANE_CI_RATIO: Final = (1e-6, 10.0)
"""And the half-widths of their intervals, over the value: of noisy powers they can be twice as wide as that."""
_MOST_MEASURED: Final = 1e12
"""More iterations, or seconds, than any curve rests on."""

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileKey:
    """What a curve depends on.

    Attributes:
        job: the name under which the training recurs.
        gpu_model: the model of its GPUs.
        n_gpus: how many of them it has on this node.
        world_size: how many processes train together, on all nodes.
        batch_size: samples in one iteration of a process, or None where it did not say so.
        gpu_uuids: the GPUs, in ascending order; none where they are not known.
        driver: the driver and its version; "" where it is not known.
    """

    job: str
    gpu_model: str
    n_gpus: int
    world_size: int
    batch_size: int | None
    gpu_uuids: tuple[str, ...] = ()
    driver: str = ""


class _Head(Struct, frozen=True, kw_only=True):
    version: int


class _File(_Head, frozen=True, kw_only=True):
    key: ProfileKey
    points: list[ProfilePoint]


Curves = dict[ProfileKey, tuple[Path, PowerProfile]]
"""The curves and where they are kept, the one that was kept longest ago first."""


def read_all(folder: Path) -> Curves:
    """Return what a directory keeps; what cannot be read is told and left alone, what a crash left half is removed."""
    read = []
    for path in folder.glob("*.json"):
        try:
            read.append((path.stat().st_mtime_ns, path, *_read(path)))
        except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            _LOGGER.warning("%s: not used, the job is profiled anew: %s", path, error)
    for half in folder.glob("*.new"):
        with suppress(OSError):
            half.unlink()
    read.sort(key=lambda file: file[0])
    if n_old := sum(version != VERSION for _, _, version, _, _ in read):
        _LOGGER.info("%s: %d profiles are of version 1: they are checked before they are used", folder, n_old)
    return {key: (path, profile) for _, path, _, key, profile in read}


def content_of(key: ProfileKey, profile: PowerProfile) -> bytes:
    """Return the content of the file that keeps a curve."""
    file = {"version": VERSION, "key": asdict(key), "points": [asdict(point) for point in profile.points]}
    return msgspec.json.format(msgspec.json.encode(file), indent=2)


def path_of(folder: Path, key: ProfileKey) -> Path:
    """Return where a curve is kept."""
    # Names of models hold spaces and slashes: the digest keeps two of them from meeting in one file.
    digest = hashlib.sha256(repr(key).encode()).hexdigest()[:12]
    return folder / f"{key.job}-{digest}.json"


def _read(path: Path) -> tuple[int, ProfileKey, PowerProfile]:
    content = path.read_bytes()
    version = msgspec.json.decode(content, type=_Head).version
    if version not in {_UNKNOWN_GPUS, VERSION}:
        raise ValueError(f"version {version}: this gridchase reads version {VERSION}")
    file = msgspec.json.decode(content, type=_File)
    if version == VERSION and path.name != path_of(path.parent, file.key).name:
        raise ValueError(f"it is not the file of {file.key}")
    for point in file.points:
        _check(point)
    points = sorted(file.points, key=lambda point: point.power_limit_w)
    return version, file.key, PowerProfile(points=tuple(points))


def _check(point: ProfilePoint) -> None:
    """Raise ValueError where a point has what no measurement says: plans would be made on it."""
    for value, ci in (
        (point.power_limit_w, None),
        (point.power_w, point.power_ci_w),
        (point.iterations_per_s, point.iterations_per_s_ci),
    ):
        if not _SANE[0] <= value <= _SANE[1]:
            raise ValueError(f"{point}: {value:g} must be {_SANE[0]:g} to {_SANE[1]:g}")
        if ci is not None and not _SANE_CI_RATIO[0] <= ci / value <= _SANE_CI_RATIO[1]:
            raise ValueError(f"{point}: {ci:g} must be {_SANE_CI_RATIO[0]:g} to {_SANE_CI_RATIO[1]:g} times {value:g}")
    for measured in (point.n, point.active_s):
        if not 0 <= measured <= _MOST_MEASURED:
            raise ValueError(f"{point}: {measured:g} must be 0 to {_MOST_MEASURED:g}")
