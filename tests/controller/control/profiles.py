"""A profile and its key, and the stores that keep and find it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from controller.control.profile_store import ProfileKey, ProfileStore, StoredProfile
from policies.vocabulary.profile import PowerProfile, ProfilePoint

TIMEOUT_S = 10.0
KEY = ProfileKey(
    user="alice",
    job="resnet50",
    gpu_model="NVIDIA A40/48 Q",
    n_gpus=2,
    world_size=2,
    batch_size=256,
    gpu_uuids=("GPU-1", "GPU-2"),
    driver="535.104.05",
)
PROFILE = PowerProfile(
    (
        ProfilePoint(power_limit_w=200.0, power_w=190.0, iterations_per_s=0.8, power_ci_w=1.5, n=40, active_s=50.0),
        ProfilePoint(power_limit_w=250.0, power_w=235.0, iterations_per_s=0.9),
        ProfilePoint(power_limit_w=300.0, power_w=280.0, iterations_per_s=1.0),
    )
)
OTHER = PowerProfile(tuple(replace(point, power_w=point.power_w + 1.0) for point in PROFILE.points))


@contextmanager
def opened(state_dir: Path) -> Iterator[ProfileStore]:
    """Open a store, and close it only when all is written."""
    with ProfileStore(state_dir) as store:
        yield store
        assert store.flush(TIMEOUT_S)


def kept(state_dir: Path, *saved: tuple[ProfileKey, PowerProfile]) -> Path:
    """Save curves with one controller; return the state directory that the next one starts with."""
    with opened(state_dir) as store:
        for key, profile in saved:
            store.save(key, profile)
    return state_dir


def loaded(state_dir: Path, key: ProfileKey = KEY) -> StoredProfile | None:
    """Return what another controller finds."""
    with opened(state_dir) as store:
        return store.load(key)


def files(state_dir: Path) -> list[Path]:
    return sorted((state_dir / "profiles").iterdir())
