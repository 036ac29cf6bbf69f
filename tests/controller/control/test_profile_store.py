"""Profiles that outlive a run: stored, resumed, used as priors, and a disk that fails, hangs or has no thread."""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.control import profile_store
from controller.control import profile_store as profile_files
from controller.control.profile_store import ProfileKey, ProfileStore, SimilarProfile, StoredProfile, nearest_profile
from policies.vocabulary.profile import PowerProfile, ProfilePoint
from publishers.shared.files import file_writer
from tests.controller.control.profiles import KEY, OTHER, PROFILE, TIMEOUT_S, files, kept, loaded, opened


def test_a_profile_survives_the_controller(tmp_path: Path) -> None:
    known = loaded(kept(tmp_path, (KEY, PROFILE)))
    assert known == StoredProfile(profile=PROFILE, kind="exact", origin="measured before")
    assert (known.kind, known.profile) == ("exact", PROFILE)


def test_a_profile_keeps_the_work_of_its_mean_iteration(tmp_path: Path) -> None:
    """Of a run whose mean iteration is more work it has as many units of work a second, and so fewer iterations."""
    with ProfileStore(tmp_path) as store:
        store.save(KEY, PROFILE, work_per_iteration=1_000.0)
    known = loaded(tmp_path)
    assert known is not None
    assert known.work_per_iteration == 1_000.0
    assert known.counted_by(1_000.0) == known
    fewer = known.counted_by(1_250.0)
    assert fewer.profile.fastest.iterations_per_s == pytest.approx(0.8 * PROFILE.fastest.iterations_per_s)
    assert fewer.profile.fastest.power_w == PROFILE.fastest.power_w
    assert known.counted_by(None) == known, "without work its iterations are taken for mean ones"
    for other_unit in (2.0, 1e6):
        assert known.counted_by(other_unit).profile == PROFILE, "samples, not tokens: the iterations are the same"
    plain = loaded(kept(tmp_path, (KEY, PROFILE)))
    assert plain is not None
    assert plain.counted_by(1_250.0) == plain


def test_an_interrupted_profile_is_resumed_with_its_points(tmp_path: Path) -> None:
    part = PowerProfile(PROFILE.points[-1:])
    known = loaded(kept(tmp_path, (KEY, part)))
    assert known is not None
    assert (known.kind, known.profile) == ("exact", part)


def test_a_saved_profile_is_known_at_once_whatever_the_disk_does(tmp_path: Path) -> None:
    with ProfileStore(tmp_path) as store:
        store.save(KEY, PROFILE)
        assert store.load(KEY) == StoredProfile(profile=PROFILE, kind="exact", origin="measured before")


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
def test_a_profile_of_another_configuration_is_a_prior_and_says_why(
    tmp_path: Path, changes: dict[str, object], origin: str
) -> None:
    wanted = replace(KEY, **changes)  # type: ignore[arg-type]  # by name
    known = loaded(kept(tmp_path, (KEY, PROFILE)), wanted)
    assert known is not None
    assert (known.kind, known.origin) == ("prior", origin)


@pytest.mark.parametrize("changes", [{"job": "bert"}, {"gpu_model": "NVIDIA A40-48 Q"}, {"batch_size": None}])
def test_another_job_or_model_or_an_unknown_batch_size_is_not_similar(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    assert loaded(kept(tmp_path, (KEY, PROFILE)), replace(KEY, **changes)) is None  # type: ignore[arg-type]


def test_a_profile_of_too_few_points_is_no_prior(tmp_path: Path) -> None:
    kept(tmp_path, (KEY, PowerProfile(PROFILE.points[1:])))
    assert loaded(tmp_path, replace(KEY, driver="")) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"version": 3', '"version": 4'),
        ('"version": 3', '"version": 3, "work_per_iteration": 0.0'),
        ('"version": 3', '"version": 3, "work_per_iteration": "tokens"'),
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
def test_an_unusable_file_is_logged_ignored_and_written_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, old: str, new: str
) -> None:
    (file,) = files(kept(tmp_path, (KEY, PROFILE)))
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    with opened(tmp_path) as store:
        assert store.load(KEY) is None
        assert [
            record.message.count(f"{file}: ignoring unreadable profile; the job will be profiled again")
            for record in caplog.records
        ] == [1]
        store.save(KEY, PROFILE)
    assert loaded(tmp_path) == StoredProfile(profile=PROFILE, kind="exact", origin="measured before")


def test_an_empty_or_random_file_is_ignored_and_others_are_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept(tmp_path, (KEY, PROFILE))
    (tmp_path / "profiles" / "a.json").write_bytes(b"")
    (tmp_path / "profiles" / "b.json").write_bytes(bytes(range(256)))
    assert loaded(tmp_path) is not None
    assert [record.message.count("profiled again") for record in caplog.records] == [1, 1]


def test_a_half_written_profile_is_removed(tmp_path: Path) -> None:
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
    for age, key in enumerate((keys[1], keys[0], keys[2])):  # saved in this order, as the files show
        os.utime(profile_files.path_of(tmp_path / "profiles", key), (1e9 + age, 1e9 + age))
    kept(tmp_path, (keys[3], PROFILE))
    assert [loaded(tmp_path, key) is not None for key in keys] == [True, False, True, True]
    kept(tmp_path, (keys[0], OTHER), (replace(KEY, job="job-5"), PROFILE))
    assert [loaded(tmp_path, key) is not None for key in keys] == [True, False, False, True]


def test_a_user_of_many_jobs_drops_nobody_elses_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_store, "MAX_PROFILES", 3)
    many = [replace(KEY, user="mallory", job=f"job-{n}") for n in range(4)]
    kept(tmp_path, (KEY, PROFILE), *((key, PROFILE) for key in many))
    assert [loaded(tmp_path, key) is not None for key in (KEY, *many)] == [True, False, False, True, True]


def test_another_users_curve_of_a_job_of_that_name_is_no_hint(tmp_path: Path) -> None:
    kept(tmp_path, (KEY, PROFILE))
    assert loaded(tmp_path, replace(KEY, user="mallory")) is None
    assert nearest_profile(replace(KEY, user="mallory"), {KEY: PROFILE}) is None


def test_a_file_that_is_gone_does_not_affect_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept(tmp_path, (KEY, PROFILE))
    (tmp_path / "profiles" / "gone.json").symlink_to(tmp_path / "nowhere")
    assert loaded(tmp_path) is not None
    assert "gone.json: ignoring unreadable profile; the job will be profiled again: [Errno 2]" in caplog.text


def test_a_failing_disk_is_logged_once_and_once_more_when_it_recovers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with opened(tmp_path) as store:
        assert store.load(KEY) is None
        (tmp_path / "profiles").touch()
        for profile in (PROFILE, OTHER, PROFILE):
            store.save(KEY, profile)
            assert store.flush(TIMEOUT_S)
        (tmp_path / "profiles").unlink()
        store.save(KEY, OTHER)
    logged = [(record.levelname, record.message.partition(": ")[2]) for record in caplog.records]
    assert logged == [("WARNING", "profiles are not saved: is no directory"), ("INFO", "profiles are saved again")]
    assert loaded(tmp_path) == StoredProfile(profile=OTHER, kind="exact", origin="measured before")


@contextmanager
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Let the disk hang until it is released."""
    goes_on, fsync = threading.Event(), os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (goes_on.wait(TIMEOUT_S), fsync(file))[1])
    yield goes_on.set
    goes_on.set()


def test_a_hanging_disk_blocks_nobody_and_only_the_latest_curves_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(file_writer, "CLOSE_TIMEOUT_S", 0.0)
    keys = [replace(KEY, job=f"job-{n}") for n in range(3)]
    with hanging(monkeypatch) as go_on:
        with ProfileStore(tmp_path) as store:
            for _ in range(100):
                for key in keys:
                    store.save(key, PROFILE)
            store.save(keys[1], OTHER)
            assert store.load(keys[1]) == StoredProfile(profile=OTHER, kind="exact", origin="measured before")
            assert store._writer.n_waiting <= len(keys)
        assert "the disk does not answer; the latest profiles are not saved" in caplog.text
        go_on()
        assert store.flush(TIMEOUT_S)
    for key, profile in zip(keys, (PROFILE, OTHER, PROFILE), strict=True):
        assert loaded(tmp_path, key) == StoredProfile(profile=profile, kind="exact", origin="measured before")


def test_without_a_thread_the_profile_waits_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with opened(tmp_path) as store:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            store.save(KEY, PROFILE)
        assert "profiles are not saved: can't start new thread" in caplog.text
        store.save(replace(KEY, job="bert"), PROFILE)
    assert len(files(tmp_path)) == 2


def test_a_profile_that_cannot_be_written_is_logged_and_later_ones_are_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unwritable = replace(PROFILE.points[0], iterations_per_s=np.float64(0.8))
    with opened(tmp_path) as store:
        for _ in range(2):
            store.save(KEY, PowerProfile((unwritable, *PROFILE.points[1:])))
            assert store.flush(TIMEOUT_S)
        assert [record.message.count("profiles are not saved") for record in caplog.records] == [1]
        store.save(KEY, OTHER)
    assert loaded(tmp_path) == StoredProfile(profile=OTHER, kind="exact", origin="measured before")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # it ends by this
def test_a_writer_that_ends_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(*_: object) -> None:
        raise SystemExit

    with opened(tmp_path) as store:
        with monkeypatch.context() as patch:
            patch.setattr(file_writer, "replace_file", end)
            store.save(KEY, PROFILE)
            assert store.flush(TIMEOUT_S)
            for thread in threading.enumerate():
                if thread.name == "gridchase profiles":  # it ends in this test, not in the next one
                    thread.join(TIMEOUT_S)
        store.save(KEY, OTHER)
    assert loaded(tmp_path) == StoredProfile(profile=OTHER, kind="exact", origin="measured before")


BERT_KEY = ProfileKey(
    user="alice",
    job="bert",
    gpu_model="A40",
    n_gpus=2,
    world_size=2,
    batch_size=64,
    gpu_uuids=("GPU-1", "GPU-2"),
    driver="535",
)
LIMITS_W = (150.0, 200.0, 250.0, 300.0)


def curve(*, rate: float = 10.0, power: float = 1.0, limits_w: tuple[float, ...] = LIMITS_W) -> PowerProfile:
    """Return a curve that goes with its factors."""
    return PowerProfile(
        tuple(
            ProfilePoint(
                power_limit_w=limit_w,
                power_w=power * limit_w,
                iterations_per_s=rate * (limit_w / 300.0) ** 0.5,
                power_ci_w=0.01 * power * limit_w,
                iterations_per_s_ci=0.01 * rate,
                n=40,
            )
            for limit_w in limits_w
        )
    )


def nearest_profile_of(*known: tuple[ProfileKey, PowerProfile], key: ProfileKey = BERT_KEY) -> SimilarProfile:
    found = nearest_profile(key, dict(known))
    assert found is not None
    return found


def test_without_profiles_none_is_similar() -> None:
    assert nearest_profile(BERT_KEY, {}) is None


def test_the_most_similar_profile_is_chosen_in_any_order() -> None:
    ranked = [
        replace(BERT_KEY, driver="550"),
        replace(BERT_KEY, gpu_uuids=("GPU-3",)),
        replace(BERT_KEY, gpu_uuids=("GPU-3",), driver="550"),
        replace(BERT_KEY, world_size=4),
        replace(BERT_KEY, n_gpus=4),
        replace(BERT_KEY, batch_size=128),
    ]
    for known in permutations(ranked, 2):
        nearer = min(known, key=ranked.index)
        curves = {key: curve(rate=1.0 + ranked.index(key)) for key in known}
        found = nearest_profile(BERT_KEY, curves)
        assert found is not None
        expected = nearest_profile(BERT_KEY, {nearer: curves[nearer]})
        assert found == expected


def test_of_two_equally_similar_profiles_the_later_counts() -> None:
    old, new = replace(BERT_KEY, driver="530"), replace(BERT_KEY, driver="550")
    assert nearest_profile_of((old, curve(rate=1.0)), (new, curve(rate=2.0))).profile == curve(rate=2.0)
    assert nearest_profile_of((new, curve(rate=2.0)), (old, curve(rate=1.0))).profile == curve(rate=1.0)


def test_power_goes_with_the_number_of_gpus_and_its_interval_too() -> None:
    found = nearest_profile_of((replace(BERT_KEY, n_gpus=4), curve(power=4.0)))
    assert found.profile == curve(power=2.0)


def test_from_one_other_batch_size_the_samples_per_second_stay() -> None:
    for size in (32, 128):
        found = nearest_profile_of((replace(BERT_KEY, batch_size=size), curve(rate=10.0)))
        assert found.origin == f"measured at batch size {size}"
        assert found.profile.iterations_per_s == pytest.approx(10.0 * size / 64 * (np.array(LIMITS_W) / 300.0) ** 0.5)
        assert found.profile.power_w == pytest.approx(LIMITS_W)
        assert found.profile.fastest.iterations_per_s_ci == pytest.approx(0.1 * size / 64)


def test_beyond_all_batch_sizes_the_nearest_one_counts_alone() -> None:
    known = [(replace(BERT_KEY, batch_size=size), curve(rate=8.0)) for size in (8, 16, 32)]
    assert nearest_profile_of(*known).origin == "measured at batch size 32"
    assert nearest_profile_of(*known, key=replace(BERT_KEY, batch_size=4)).origin == "measured at batch size 8"


@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.floats(0.1, 10.0),
    st.floats(-0.9, 0.2),
    st.floats(1.0, 4.0),
    st.floats(0, 0.3),
)
def test_between_two_batch_sizes_a_power_law_is_met_exactly(
    down: int, up: int, rate: float, exponent: float, power: float, power_exponent: float
) -> None:
    def law(size: int) -> tuple[ProfileKey, PowerProfile]:
        profile = curve(rate=rate * (size / 64) ** exponent, power=power * (size / 64) ** power_exponent)
        return replace(BERT_KEY, batch_size=size), profile

    found = nearest_profile_of(law(64 * 2**up), law(64 // 2**down), law(64 * 2 ** (up + 1)))
    expected = law(64)[1]
    assert found.origin == f"between batch sizes {64 // 2**down} and {64 * 2**up}"
    assert found.profile.power_limits_w == pytest.approx(expected.power_limits_w)
    assert found.profile.power_w == pytest.approx(expected.power_w)
    assert found.profile.iterations_per_s == pytest.approx(expected.iterations_per_s)


def test_between_two_batch_sizes_only_limits_count_that_both_of_them_reach() -> None:
    low = replace(BERT_KEY, batch_size=32), curve(limits_w=(100.0, 200.0, 300.0))
    high = replace(BERT_KEY, batch_size=128), curve(limits_w=(150.0, 200.2, 250.0))
    assert nearest_profile_of(low, high).profile.power_limits_w.tolist() == [150.0, 200.0, 250.0]


def test_where_two_batch_sizes_have_hardly_a_limit_in_common_the_nearer_one_counts() -> None:
    low = replace(BERT_KEY, batch_size=32), curve(limits_w=(100.0, 150.0, 200.0))
    high = replace(BERT_KEY, batch_size=512), curve(limits_w=(200.0, 250.0, 300.0))
    assert nearest_profile_of(low, high).origin == "measured at batch size 32"
    assert nearest_profile_of(low, high, key=replace(BERT_KEY, batch_size=256)).origin == "measured at batch size 512"
