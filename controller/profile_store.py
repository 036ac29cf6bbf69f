"""What is remembered from run to run: a job's curve is resumed where it was left, and a guess where it has none.

All of it is in memory, read once; what is saved is written by a thread, and nobody waits for the disk. A file that
cannot be read costs a profile, not the run.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

from controller.file_writer import Content, FileWriter
from controller.profile_files import Curves, ProfileKey, content_of, path_of, read_all
from controller.profile_kin import nearest_kin
from policies.profile import PowerProfile

__all__ = ["Known", "ProfileKey", "ProfileStore"]

MAX_PROFILES: Final = 256
"""Of more than these the one that was saved longest ago is dropped. They are 2 MB, and read in 0.2 s."""

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A curve from before.

    Attributes:
        profile: the curve; one that was interrupted has the points that were measured.
        kind: `exact`: measured for this job and batch size on these GPUs with this driver, so not to be measured again;
            `prior`: of something like it, to be checked.
        origin: whose it is, in words.
    """

    profile: PowerProfile
    kind: Literal["exact", "prior"]
    origin: str

    @property
    def exact(self) -> PowerProfile | None:
        """Return the curve where it is exact."""
        return self.profile if self.kind == "exact" else None

    @property
    def prior(self) -> PowerProfile | None:
        """Return the curve where it is a prior."""
        return self.profile if self.kind == "prior" else None


class ProfileStore:
    """The curves in a state directory.

    As a context manager it reads them at the beginning, and waits at the end, 2 s at most, for what is to be written.

    Args:
        state_dir: where the directory of the curves is, or will be made.
        driver: the driver and its version, for the keys of this node's curves.
    """

    def __init__(self, state_dir: Path, *, driver: str = "") -> None:
        self.driver = driver
        self._folder = state_dir / "profiles"
        self._curves: Curves | None = None
        self._writer = FileWriter(self._folder, what="profiles")

    def __enter__(self) -> Self:
        """Read what there is."""
        self._known()
        return self

    def __exit__(self, *_: object) -> None:
        """Finish what is to be written, within a bounded time."""
        self._writer.close()

    def load(self, key: ProfileKey) -> Known | None:
        """Return what is known of a curve, or None where there is nothing like it."""
        curves = self._known()
        if key in curves:
            return Known(profile=curves[key][1], kind="exact", origin="measured before")
        kin = nearest_kin(key, {other: profile for other, (_, profile) in curves.items() if other.job == key.job})
        return None if kin is None else Known(profile=kin.profile, kind="prior", origin=kin.origin)

    def save(self, key: ProfileKey, profile: PowerProfile) -> None:
        """Keep a curve; a disk that refuses is told once and borne."""
        curves, path = self._known(), path_of(self._folder, key)
        curves.pop(key, None)
        curves[key] = path, profile
        changes: dict[Path, Content | None] = {path: lambda: content_of(key, profile)}
        while len(curves) > MAX_PROFILES:
            dropped, _ = curves.pop(next(iter(curves)))
            changes[dropped] = None
        self._writer.put(changes)

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is written, for `timeout_s` at most; return whether it is."""
        return self._writer.flush(timeout_s)

    def _known(self) -> Curves:
        if self._curves is None:
            self._curves = read_all(self._folder)
        return self._curves
