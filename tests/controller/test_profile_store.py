"""The profiles on disk: kept for what they depend on; a bad file costs a profile, no run."""

import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

from controller import profile_files, profile_store
from controller.profile_store import Known, ProfileKey, ProfileStore
from policies.profile import PowerProfile, ProfilePoint
from tests.controller.profile_shelf import KEY, OTHER, PROFILE, files, kept, loaded, opened


def test_a_profile_survives_the_controller(tmp_path: Path) -> None:
    known = loaded(kept(tmp_path, (KEY, PROFILE)))
    assert known == Known(profile=PROFILE, kind="exact", origin="measured before")
    assert (known.exact, known.prior) == (PROFILE, None)


def test_a_profile_that_was_interrupted_is_resumed_with_the_points_it_had(tmp_path: Path) -> None:
    part = PowerProfile(PROFILE.points[-1:])
    known = loaded(kept(tmp_path, (KEY, part)))
    assert known is not None
    assert (known.kind, known.profile) == ("exact", part)


def test_what_was_saved_is_known_at_once_whatever_the_disk_does(tmp_path: Path) -> None:
    with ProfileStore(tmp_path) as store:
        store.save(KEY, PROFILE)
        assert store.load(KEY) == Known(profile=PROFILE, kind="exact", origin="measured before")


def test_a_job_that_was_never_profiled_has_none_and_no_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert loaded(tmp_path) is None
    assert (list(tmp_path.iterdir()), caplog.records) == ([], [])


def test_a_longer_profile_replaces_a_shorter_one_and_leaves_no_litter(tmp_path: Path) -> None:
    kept(tmp_path, (KEY, PowerProfile(PROFILE.points[:1])), (KEY, PROFILE))
    known = loaded(tmp_path)
    assert known is not None
    assert known.profile == PROFILE
    assert [file.suffix for file in files(tmp_path)] == [".json"]


@pytest.mark.parametrize(
    ("changes", "origin"),
    [
        ({"driver": "550.54.14"}, "measured under another driver"),
        ({"gpu_uuids": ("GPU-1", "GPU-3")}, "measured on other GPUs"),
        ({"n_gpus": 4, "gpu_uuids": ("GPU-1",)}, "measured on 2 GPUs of the node"),
        ({"world_size": 4}, "measured with 2 ranks"),
        (
            {"world_size": 4, "driver": "", "gpu_uuids": ()},
            "measured with 2 ranks, on other GPUs, under another driver",
        ),
        ({"batch_size": 128}, "measured at batch size 256"),
    ],
)
def test_what_differs_makes_a_profile_a_prior_and_is_said(
    tmp_path: Path, changes: dict[str, object], origin: str
) -> None:
    wanted = replace(KEY, **changes)  # type: ignore[arg-type]  # by name
    known = loaded(kept(tmp_path, (KEY, PROFILE)), wanted)
    assert known is not None
    assert (known.kind, known.origin, known.exact, known.prior) == ("prior", origin, None, known.profile)


@pytest.mark.parametrize("changes", [{"job": "bert"}, {"gpu_model": "NVIDIA A40-48 Q"}, {"batch_size": None}])
def test_another_job_or_model_or_an_unknown_batch_size_is_no_kin(tmp_path: Path, changes: dict[str, object]) -> None:
    assert loaded(kept(tmp_path, (KEY, PROFILE)), replace(KEY, **changes)) is None  # type: ignore[arg-type]


def test_a_profile_of_too_few_points_is_no_prior(tmp_path: Path) -> None:
    kept(tmp_path, (KEY, PowerProfile(PROFILE.points[1:])))
    assert loaded(tmp_path, replace(KEY, driver="")) is None


def version_1(state_dir: Path) -> Path:
    """Write a file as version 1 did."""
    folder = state_dir / "profiles"
    folder.mkdir()
    file = folder / "resnet50-0123456789ab.json"
    key = {name: value for name, value in vars_of(KEY).items() if name not in {"gpu_uuids", "driver"}}
    points = [vars_of(point) for point in PROFILE.points]
    file.write_text(json.dumps({"version": 1, "key": key, "points": points}))
    return file


def vars_of(record: ProfileKey | ProfilePoint) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__slots__}


def test_what_version_1_kept_is_a_prior_and_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    file = version_1(tmp_path)
    with opened(tmp_path) as store:
        for _ in range(2):
            known = store.load(KEY)
            assert known is not None
            assert (known.kind, known.profile) == ("prior", PROFILE)
        store.save(KEY, OTHER)
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "1 profiles are of version 1" in caplog.text
    assert file in files(tmp_path)
    known = loaded(tmp_path)
    assert known is not None
    assert known.profile == OTHER


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"version": 2', '"version": 3'),
        ('"power_w": 190.0', '"power_w": -190.0'),
        ('"power_w": 190.0', '"power_w": "much"'),
        ('"power_limit_w": 200.0', '"power_limit_w": 300.0'),
        ('"n_gpus": 2', '"n_gpus": 3'),
        ("{", ""),
        ('"points"', '"dots"'),
        ('"points": [', '"deep": ' + "[" * 100_000 + ', "points": ['),
        ('"power_limit_w": 200.0', '"power_limit_w": 1e-300'),
        ('"power_w": 280.0', '"power_w": 1e12'),
        ('"iterations_per_s": 0.8', '"iterations_per_s": 1e300'),
        ('"power_ci_w": 1.5', '"power_ci_w": 0.0'),
        ('"power_ci_w": 1.5', '"power_ci_w": -1.5'),
        ('"power_ci_w": 1.5', '"power_ci_w": 2000.0'),
        ('"iterations_per_s_ci": null', '"iterations_per_s_ci": 1e-300'),
        ('"n": 40', '"n": -40'),
        ('"n": 40', f'"n": {10**18}'),
        ('"active_s": 50.0', '"active_s": -50.0'),
    ],
)
def test_a_file_that_cannot_be_used_is_told_and_not_used_and_written_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, old: str, new: str
) -> None:
    (file,) = files(kept(tmp_path, (KEY, PROFILE)))
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    with opened(tmp_path) as store:
        assert store.load(KEY) is None
        assert [record.message.count(f"{file}: not used, the job is profiled anew") for record in caplog.records] == [1]
        store.save(KEY, PROFILE)
    assert loaded(tmp_path) == Known(profile=PROFILE, kind="exact", origin="measured before")


def test_an_empty_file_and_one_of_random_bytes_are_not_used_and_others_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept(tmp_path, (KEY, PROFILE))
    (tmp_path / "profiles" / "a.json").write_bytes(b"")
    (tmp_path / "profiles" / "b.json").write_bytes(bytes(range(256)))
    assert loaded(tmp_path) is not None
    assert [record.message.count("profiled anew") for record in caplog.records] == [1, 1]


def test_what_a_crash_left_half_written_is_removed(tmp_path: Path) -> None:
    kept(tmp_path, (KEY, PROFILE))
    (tmp_path / "profiles" / "resnet50-0.new").write_bytes(b"{")
    assert loaded(tmp_path) is not None
    assert [file.suffix for file in files(tmp_path)] == [".json"]


def test_the_profile_that_was_saved_longest_ago_is_dropped_where_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile_store, "MAX_PROFILES", 3)
    keys = [replace(KEY, job=f"job-{n}") for n in range(4)]
    kept(tmp_path, *((key, PROFILE) for key in keys[:3]))
    for age, key in enumerate((keys[1], keys[0], keys[2])):  # saved in this order, as the files tell
        os.utime(profile_files.path_of(tmp_path / "profiles", key), (1e9 + age, 1e9 + age))
    kept(tmp_path, (keys[3], PROFILE))
    assert [loaded(tmp_path, key) is not None for key in keys] == [True, False, True, True]
    kept(tmp_path, (keys[0], OTHER), (replace(KEY, job="job-5"), PROFILE))
    assert [loaded(tmp_path, key) is not None for key in keys] == [True, False, False, True]


def test_a_file_that_is_gone_costs_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept(tmp_path, (KEY, PROFILE))
    (tmp_path / "profiles" / "gone.json").symlink_to(tmp_path / "nowhere")
    assert loaded(tmp_path) is not None
    assert "gone.json: not used, the job is profiled anew: [Errno 2]" in caplog.text
