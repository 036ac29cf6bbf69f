"""Power profiles that outlive a run: stored one file each, resumed, or used as a prior for a similar job.

All of them are read once and kept in memory; a thread writes changes. An unreadable file loses a profile, not the run.
Files are replaced atomically, never edited.

If there is no curve for the exact key, the most similar one is a prior: first the same batch size on other GPUs of the
model, or under another driver; then other batch sizes. Between two of them the curve is interpolated over the logarithm
of the batch size; beyond them the nearest one's shape is the better estimate. On Zeus's curves of the A40 and the V100,
each predicted from the others of its job and moved to what is measured at the highest limit, the worst error of rate
and power above the energy-minimal limit is 5 % (median) between two neighbours, 7 % from the nearer of them alone;
beyond the last one it is 4 to 7 % from the nearest and 7 to 10 % extrapolated from two.
"""

import hashlib
import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

import msgspec
import numpy as np
from msgspec import Meta, Struct

from policies.vocabulary.profile import SAME_POINT_W, PowerProfile, ProfilePoint
from publishers.shared.files.file_writer import Content, FileWriter

VERSION: Final = 3
MAX_PROFILES: Final = 256
"""Of more than these the oldest one of the user who has most is dropped. They are 2 MB, and read in 0.2 s."""
LEAST_POINTS: Final = 3
"""A curve of fewer points has no shape."""
_PLAUSIBLE: Final = (1e-6, 1e9)
"""All limits and powers [W] and rates [1/s] lie between these."""
_PLAUSIBLE_CI_RATIO: Final = (1e-6, 10.0)
"""And the half-widths of their intervals, over the value: of noisy powers they can be twice as wide as that."""
_MOST_WORK: Final = 1e20
"""Of an iteration, or of those of many ranks together."""
_MOST_WORK_RATIO: Final = 10.0
"""Runs of one job whose mean work differs by more count it in other units: their iterations are the same."""
_MOST_MEASURED: Final = 1e12
"""More iterations, or seconds, than any curve rests on."""

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileKey:
    """What a curve depends on.

    Attributes:
        user: whose job it is: nobody's curve comes from somebody else's measurements.
        job: the name under which the training recurs.
        gpu_model: the model of its GPUs.
        n_gpus: how many of them it has on this node.
        world_size: how many processes train together, on all nodes.
        batch_size: samples in one iteration of a process, or None where it is not known.
        gpu_uuids: the GPUs, in ascending order; none where they are not known.
        driver: the driver and its version; "" where it is not known.
    """

    user: str
    job: str
    gpu_model: str
    n_gpus: int
    world_size: int
    batch_size: int | None
    gpu_uuids: tuple[str, ...] = ()
    driver: str = ""


class Curve(NamedTuple):
    """A curve, its file, and how much work a mean iteration of it was; None: it counts iterations."""

    path: Path
    profile: PowerProfile
    work_per_iteration: float | None


Curves = dict[ProfileKey, Curve]
"""The curves, the one that was saved longest ago first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredProfile:
    """A curve that was measured before.

    Attributes:
        profile: the curve; one that was interrupted has the points that were measured.
        kind: `exact`: measured for this job and batch size on these GPUs with this driver, so not to be measured again;
            `prior`: of a similar job, to be checked.
        origin: where it comes from, in words.
        work_per_iteration: how much work a mean iteration of it was; None: it counts iterations, or is of another job.
    """

    profile: PowerProfile
    kind: Literal["exact", "prior"]
    origin: str
    work_per_iteration: float | None = None

    def counted_by(self, work_per_iteration: float | None) -> Self:
        """Return the curve with the rates of a run whose mean iteration is so much work; None: it is not known."""
        if self.work_per_iteration is None or work_per_iteration is None:
            return self
        rate_ratio = self.work_per_iteration / work_per_iteration
        if not 1 / _MOST_WORK_RATIO <= rate_ratio <= _MOST_WORK_RATIO:
            rate_ratio = 1.0
        profile = self.profile.scaled(rate_ratio=rate_ratio)
        return replace(self, profile=profile, work_per_iteration=work_per_iteration)


class ProfileStore:
    """The curves in a state directory.

    As a context manager it reads them at the beginning, and waits at the end, 2 s at most, for pending writes.

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
        """Read the curves."""
        self._loaded()
        return self

    def __exit__(self, *_: object) -> None:
        """Finish pending writes, within a bounded time."""
        self._writer.close()

    def load(self, key: ProfileKey) -> StoredProfile | None:
        """Return a stored curve, or one of a similar job; None where there is neither."""
        curves = self._loaded()
        if key in curves:
            curve = curves[key]
            return StoredProfile(
                profile=curve.profile,
                kind="exact",
                origin="measured before",
                work_per_iteration=curve.work_per_iteration,
            )
        same_job = {
            other: curve.profile for other, curve in curves.items() if (other.user, other.job) == (key.user, key.job)
        }
        similar = nearest_profile(key, same_job)
        return None if similar is None else StoredProfile(profile=similar.profile, kind="prior", origin=similar.origin)

    def save(self, key: ProfileKey, profile: PowerProfile, *, work_per_iteration: float | None = None) -> None:
        """Save a curve, and how much work its mean iteration is; a disk that refuses is logged once."""
        curves, path = self._loaded(), path_of(self._folder, key)
        curves.pop(key, None)
        curves[key] = Curve(path, profile, work_per_iteration)
        changes: dict[Path, Content | None] = {path: partial(content_of, key, profile, work_per_iteration)}
        while len(curves) > MAX_PROFILES:
            changes[curves.pop(_oldest_of_who_has_most(curves)).path] = None
        self._writer.put(changes)

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is written, for `timeout_s` at most; return whether it is."""
        return self._writer.flush(timeout_s)

    def _loaded(self) -> Curves:
        if self._curves is None:
            self._curves = read_all(self._folder)
        return self._curves


def _oldest_of_who_has_most(curves: Curves) -> ProfileKey:
    """Return whose turn it is to go: a user of many jobs drops nobody else's."""
    n_curves = Counter(key.user for key in curves)
    return next(key for key in curves if n_curves[key.user] == max(n_curves.values()))


class _Head(Struct, frozen=True, kw_only=True):
    version: int


class _File(_Head, frozen=True, kw_only=True):
    key: ProfileKey
    points: list[ProfilePoint]
    work_per_iteration: Annotated[float, Meta(gt=0, le=_MOST_WORK)] | None = None


def read_all(folder: Path) -> Curves:
    """Return the curves of a directory; an unreadable file is logged and left alone, a half-written one removed."""
    read = []
    for path in folder.glob("*.json"):
        try:
            read.append((path.stat().st_mtime_ns, path, *_read(path)))
        except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            _LOGGER.warning("%s: ignoring unreadable profile; the job will be profiled again: %s", path, error)
    for half in folder.glob("*.new"):
        with suppress(OSError):
            half.unlink()
    read.sort(key=lambda file: file[0])
    return {key: Curve(path, profile, work) for _, path, key, profile, work in read}


def content_of(key: ProfileKey, profile: PowerProfile, work_per_iteration: float | None = None) -> bytes:
    """Return the content of the file of a curve."""
    file: dict[str, Any] = {
        "version": VERSION,
        "key": asdict(key),
        "points": [asdict(point) for point in profile.points],
    }
    if work_per_iteration is not None:
        file["work_per_iteration"] = work_per_iteration
    return msgspec.json.format(msgspec.json.encode(file), indent=2)


def path_of(folder: Path, key: ProfileKey) -> Path:
    """Return the file of a curve."""
    # Names of models hold spaces and slashes: the digest keeps two of them from meeting in one file.
    digest = hashlib.sha256(repr(key).encode()).hexdigest()[:12]
    return folder / f"{key.job}-{digest}.json"


def _read(path: Path) -> tuple[ProfileKey, PowerProfile, float | None]:
    content = path.read_bytes()
    version = msgspec.json.decode(content, type=_Head).version
    if version != VERSION:
        raise ValueError(f"version {version}: this gridchase reads version {VERSION}")
    file = msgspec.json.decode(content, type=_File)
    if path.name != path_of(path.parent, file.key).name:
        raise ValueError(f"it is not the file of {file.key}")
    for point in file.points:
        _check(point)
    points = sorted(file.points, key=lambda point: point.power_limit_w)
    return file.key, PowerProfile(points=tuple(points)), file.work_per_iteration


def _check(point: ProfilePoint) -> None:
    """Raise ValueError where a point has an implausible number: plans would be made on it."""
    for value, ci in (
        (point.power_limit_w, None),
        (point.power_w, point.power_ci_w),
        (point.iterations_per_s, point.iterations_per_s_ci),
    ):
        if not _PLAUSIBLE[0] <= value <= _PLAUSIBLE[1]:
            raise ValueError(f"{point}: {value:g} must be {_PLAUSIBLE[0]:g} to {_PLAUSIBLE[1]:g}")
        if ci is not None and not _PLAUSIBLE_CI_RATIO[0] <= ci / value <= _PLAUSIBLE_CI_RATIO[1]:
            raise ValueError(
                f"{point}: {ci:g} must be {_PLAUSIBLE_CI_RATIO[0]:g} to {_PLAUSIBLE_CI_RATIO[1]:g} times {value:g}"
            )
    for measured in (point.n, point.active_s):
        if not 0 <= measured <= _MOST_MEASURED:
            raise ValueError(f"{point}: {measured:g} must be 0 to {_MOST_MEASURED:g}")


class SimilarProfile(NamedTuple):
    """A guess at a curve, and where it comes from, in words."""

    profile: PowerProfile
    origin: str


def nearest_profile(key: ProfileKey, known: Mapping[ProfileKey, PowerProfile]) -> SimilarProfile | None:
    """Return the best guess at the curve of `key`, or None; of two that are as near, the later in `known`."""
    similar = {
        other: profile
        for other, profile in known.items()
        if (other.user, other.job, other.gpu_model) == (key.user, key.job, key.gpu_model)
        and len(profile.points) >= LEAST_POINTS
    }
    if same := _nearest((other for other in similar if other.batch_size == key.batch_size), key):
        return SimilarProfile(_moved(similar[same], same, key), f"measured {_differently(same, key)}")
    if key.batch_size is None:
        return None
    sizes = sorted({other.batch_size for other in similar if other.batch_size is not None})
    below = [size for size in sizes if size < key.batch_size][-1:]
    above = [size for size in sizes if size > key.batch_size][:1]
    ends = [end for size in (*below, *above) if (end := _nearest((o for o in similar if o.batch_size == size), key))]
    if below and above:
        return _between(*((end, _moved(similar[end], end, key)) for end in ends), key=key)
    return (
        SimilarProfile(_moved(similar[ends[0]], ends[0], key), f"measured at batch size {ends[0].batch_size}")
        if ends
        else None
    )


def _nearest(others: Iterable[ProfileKey], key: ProfileKey) -> ProfileKey | None:
    """Return whose curve is likeliest to be the same."""
    latest_first = reversed(list(others))
    return max(
        latest_first,
        default=None,
        key=lambda other: (
            other.n_gpus == key.n_gpus,
            other.world_size == key.world_size,
            other.gpu_uuids == key.gpu_uuids,
            other.driver == key.driver,
        ),
    )


def _differently(other: ProfileKey, key: ProfileKey) -> str:
    """Return what is different about another curve."""
    differences = {
        f"on {other.n_gpus} GPUs of the node": other.n_gpus != key.n_gpus,
        f"with {other.world_size} ranks": other.world_size != key.world_size,
        "on other GPUs": other.n_gpus == key.n_gpus and other.gpu_uuids != key.gpu_uuids,
        "under another driver": other.driver != key.driver,
    }
    return ", ".join(text for text, is_so in differences.items() if is_so)


def _moved(profile: PowerProfile, other: ProfileKey, key: ProfileKey) -> PowerProfile:
    """Return another's curve as ours might be: power goes with the GPUs, the samples per second stay."""
    gpus_ratio = key.n_gpus / other.n_gpus if other.n_gpus else 1.0
    rate_ratio = other.batch_size / key.batch_size if other.batch_size and key.batch_size else 1.0
    return profile.scaled(power_ratio=gpus_ratio, rate_ratio=rate_ratio)


def _between(
    low: tuple[ProfileKey, PowerProfile], high: tuple[ProfileKey, PowerProfile], *, key: ProfileKey
) -> SimilarProfile | None:
    """Return the curve between those of two batch sizes, at the limits that both of them reach."""
    sizes = [math.log(size) for size in (low[0].batch_size, key.batch_size, high[0].batch_size) if size]
    weight = (sizes[1] - sizes[0]) / (sizes[2] - sizes[0])
    curves = [low[1], high[1]]
    least_w, most_w = (
        pick(float(curve.power_limits_w[end]) for curve in curves) for pick, end in ((max, 0), (min, -1))
    )
    limits_w: list[float] = []
    for limit_w in sorted(point.power_limit_w for curve in curves for point in curve.points):
        if least_w <= limit_w <= most_w and (not limits_w or limit_w > limits_w[-1] + SAME_POINT_W):
            limits_w.append(limit_w)
    rows = []
    for limit_w in limits_w:
        ends = np.log([curve.at(limit_w) for curve in curves])  # shape (2 curves, power and rate)
        power_w, iterations_per_s = np.exp((1 - weight) * ends[0] + weight * ends[1])
        rows.append((limit_w, float(power_w), float(iterations_per_s)))
    if len(rows) < LEAST_POINTS:
        nearer = low if weight <= 1 / 2 else high
        return SimilarProfile(nearer[1], f"measured at batch size {nearer[0].batch_size}")
    return SimilarProfile(
        PowerProfile.from_rows(rows), f"between batch sizes {low[0].batch_size} and {high[0].batch_size}"
    )
