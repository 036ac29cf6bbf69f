"""The profiles on disk: a job's curve survives the run and the controller, and is resumed where it was left.

One file per job, GPU model, number of GPUs, world size and batch size: what the curve depends on. Replaced whole,
never edited. A file that cannot be read costs a new sweep, not the run.
"""

import hashlib
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from policies.profile import PowerProfile, ProfilePoint

VERSION = 1

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileKey:
    """What a curve depends on."""

    job: str
    gpu_model: str
    n_gpus: int
    world_size: int
    batch_size: int | None


class _File(Struct, frozen=True, kw_only=True):
    version: int
    key: ProfileKey
    points: list[ProfilePoint]


class ProfileStore:
    """The profiles in a state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._dir = state_dir / "profiles"

    def load(self, key: ProfileKey) -> PowerProfile | None:
        """Return the curve measured so far, or None where there is none that can be used."""
        path = self._path(key)
        try:
            file = msgspec.json.decode(path.read_bytes(), type=_File)
            if file.version != VERSION or file.key != key:
                raise ValueError(f"version {file.version} for {file.key}")  # noqa: TRY301 — one place that gives up
            return PowerProfile(points=tuple(sorted(file.points, key=lambda point: point.power_limit_w)))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            _LOGGER.warning("%s: not used, the job is profiled anew: %s", path, error)
            return None

    def save(self, key: ProfileKey, profile: PowerProfile) -> None:
        """Keep a curve; a disk that refuses is told and borne."""
        path = self._path(key)
        file = {"version": VERSION, "key": asdict(key), "points": [asdict(point) for point in profile.points]}
        try:
            self._dir.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(".new")
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(file), indent=2))
            temporary.replace(path)
        except OSError as error:
            _LOGGER.warning("%s: the profile is not kept: %s", path, error.strerror)

    def _path(self, key: ProfileKey) -> Path:
        # Names of models hold spaces and slashes: the digest keeps two of them from meeting in one file.
        digest = hashlib.sha256(repr(key).encode()).hexdigest()[:12]
        return self._dir / f"{key.job}-{digest}.json"
