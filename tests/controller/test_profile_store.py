"""The profiles on disk: kept for exactly what they depend on; a bad file costs a sweep, never a run."""

from dataclasses import replace
from pathlib import Path

import pytest

from controller.profile_store import ProfileKey, ProfileStore
from policies.profile import PowerProfile, ProfilePoint

KEY = ProfileKey(job="resnet50", gpu_model="NVIDIA A40/48 Q", n_gpus=2, world_size=2, batch_size=256)
PROFILE = PowerProfile(
    (
        ProfilePoint(power_limit_w=200.0, power_w=190.0, iterations_per_s=0.8, power_ci_w=1.5, n=40, active_s=50.0),
        ProfilePoint(power_limit_w=300.0, power_w=280.0, iterations_per_s=1.0),
    )
)


def only_file(state_dir: Path) -> Path:
    """Return the file of the only profile that is kept."""
    (file,) = (state_dir / "profiles").iterdir()
    return file


def test_a_profile_survives_the_controller(tmp_path: Path) -> None:
    ProfileStore(tmp_path).save(KEY, PROFILE)
    assert ProfileStore(tmp_path).load(KEY) == PROFILE


def test_a_job_that_was_never_profiled_has_none_and_no_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert ProfileStore(tmp_path).load(KEY) is None
    assert (list(tmp_path.iterdir()), caplog.records) == ([], [])


@pytest.mark.parametrize(
    "other",
    [
        replace(KEY, job="bert"),
        replace(KEY, gpu_model="NVIDIA A40-48 Q"),
        replace(KEY, n_gpus=1),
        replace(KEY, world_size=4),
        replace(KEY, batch_size=None),
    ],
)
def test_a_profile_is_of_no_use_where_anything_that_it_depends_on_differs(tmp_path: Path, other: ProfileKey) -> None:
    store = ProfileStore(tmp_path)
    store.save(KEY, PROFILE)
    assert store.load(other) is None


def test_a_longer_profile_replaces_a_shorter_one_and_leaves_no_litter(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path)
    store.save(KEY, PowerProfile(PROFILE.points[:1]))
    store.save(KEY, PROFILE)
    assert store.load(KEY) == PROFILE
    assert only_file(tmp_path).suffix == ".json"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"version": 1', '"version": 2'),
        ('"power_w": 190.0', '"power_w": -190.0'),
        ('"power_w": 190.0', '"power_w": "much"'),
        ('"power_limit_w": 200.0', '"power_limit_w": 300.0'),
        ('"n_gpus": 2', '"n_gpus": 3'),
        ("{", ""),
        ('"points"', '"dots"'),
    ],
)
def test_a_file_that_cannot_be_used_is_told_and_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, old: str, new: str
) -> None:
    store = ProfileStore(tmp_path)
    store.save(KEY, PROFILE)
    file = only_file(tmp_path)
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    assert store.load(KEY) is None
    assert str(file) in caplog.text
    store.save(KEY, PROFILE)
    assert store.load(KEY) == PROFILE


def test_an_empty_file_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = ProfileStore(tmp_path)
    store.save(KEY, PROFILE)
    only_file(tmp_path).write_bytes(b"")
    assert store.load(KEY) is None
    assert "profiled anew" in caplog.text


def test_a_disk_that_refuses_is_told_and_borne(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "profiles").touch()
    store = ProfileStore(tmp_path)
    store.save(KEY, PROFILE)
    assert store.load(KEY) is None
    assert "the profile is not kept" in caplog.text
