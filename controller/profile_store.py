"""What is remembered from run to run: a job's curve is resumed where it was left, and a guess where it has none.

All of it is in memory, read once; what is saved is written by a thread, the oldest first, and of each curve the latest
only: nobody waits for the disk, and a disk that hangs makes nothing grow. A file that cannot be read costs a profile,
not the run.
"""

import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from controller.profile_files import Curves, ProfileKey, path_of, read_all, write
from controller.profile_kin import nearest_kin
from policies.profile import PowerProfile

__all__ = ["Known", "ProfileKey", "ProfileStore"]

MAX_PROFILES: Final = 256
"""Of more than these the one that was saved longest ago is dropped. They are 2 MB, and read in 0.2 s."""
CLOSE_TIMEOUT_S: Final = 2.0

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
    """The curves in a state directory. Its thread is a daemon: a disk that hangs does not keep the process alive.

    As a context manager it reads them at the beginning, and waits at the end, 2 s at most, for what is to be written.

    Args:
        state_dir: where the directory of the curves is, or will be made.
        driver: the driver and its version, for the keys of this node's curves.
    """

    def __init__(self, state_dir: Path, *, driver: str = "") -> None:
        self.driver = driver
        self._folder = state_dir / "profiles"
        self._curves: Curves | None = None
        self._lock = threading.Lock()
        self._waiting: dict[Path, tuple[ProfileKey, PowerProfile] | None] = {}
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._fault = ""

    def __enter__(self) -> Self:
        """Read what there is."""
        self._known()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Finish what is to be written, within a bounded time."""
        if not self.flush(CLOSE_TIMEOUT_S):
            _LOGGER.warning("%s: the disk does not answer; the latest profiles are not kept", self._folder)

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
        changes: dict[Path, tuple[ProfileKey, PowerProfile] | None] = {path: (key, profile)}
        while len(curves) > MAX_PROFILES:
            dropped, _ = curves.pop(next(iter(curves)))
            changes[dropped] = None
        with self._lock:
            self._waiting |= changes
            if not self._is_idle.is_set():
                return
            self._is_idle.clear()
        try:
            threading.Thread(target=self._work, name="gridchase profiles", daemon=True).start()
        except RuntimeError as error:  # the system has no thread left
            self._is_idle.set()
            self._note(f"{self._folder}: the profile is not kept: {error}")

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is written, for `timeout_s` at most; return whether it is."""
        return self._is_idle.wait(timeout_s)

    def _known(self) -> Curves:
        if self._curves is None:
            self._curves = read_all(self._folder)
        return self._curves

    def _work(self) -> None:
        """Write what waits, then end."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_idle.set()
                    return
                path = next(iter(self._waiting))
                change = self._waiting.pop(path)
            try:
                if change is None:
                    path.unlink(missing_ok=True)
                else:
                    write(path, *change)
            except Exception as error:  # noqa: BLE001 — whatever it is costs this profile, not those that come after it
                self._note(f"{path}: the profile is not kept: {getattr(error, 'strerror', None) or error}")
            except BaseException:
                self._is_idle.set()  # the thread ends here, and the next profile is to start another
                raise
            else:
                self._note("")

    def _note(self, fault: str) -> None:
        """Log that profiles are not kept, and that they are again; once each."""
        was_well, self._fault = not self._fault, fault
        if fault and was_well:
            _LOGGER.warning("%s", fault)
        elif not fault and not was_well:
            _LOGGER.info("%s: profiles are kept again", self._folder)
