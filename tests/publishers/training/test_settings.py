"""Where a publisher's settings come from, and that every fault says value, rule and mend."""

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from publishers.training.settings import Settings, SettingsError, resolve, resolve_or_warn

STEP = {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "1"}


def settings_in(environ: Mapping[str, str], **arguments: Any) -> Settings:  # noqa: ANN401 — anything may be passed
    return resolve(environ=environ, **{"job": "toy", **arguments})


def faults_in(environ: Mapping[str, str], **arguments: Any) -> str:  # noqa: ANN401 — anything may be passed
    with pytest.raises(SettingsError) as caught:
        settings_in(environ, **arguments)
    return "\n".join(caught.value.faults)


def test_a_job_is_all_that_must_be_given() -> None:
    settings = settings_in({})
    assert (settings.broker.url, settings.broker.tls) == ("mqtt://127.0.0.1:1883", False)
    assert (settings.rank, settings.world_size, settings.gpus) == (0, 1, ())
    assert settings.run_is_random
    assert settings.run != settings_in({}).run
    assert settings.boot_id
    assert settings.host


@pytest.mark.parametrize(
    ("variable", "argument", "is_allowed"),
    [
        ("1", None, True),
        ("ON", None, True),
        ("", None, False),
        ("off", None, False),
        ("nein", None, False),
        ("1", False, False),
        ("0", True, True),
    ],
)
def test_pauses_are_allowed_by_the_argument_or_else_by_the_environment(
    variable: str, argument: bool | None, is_allowed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    environ = {"GRIDCHASE_PAUSABLE": variable, "GRIDCHASE_EARLY_STOP": variable}
    settings = settings_in(environ, pausable=argument, early_stop=argument)
    assert (settings.pausable, settings.early_stop) == (is_allowed, is_allowed)
    assert len(caplog.messages) == (2 if variable == "nein" else 0)


def test_the_environment_supplies_missing_arguments() -> None:
    environ = {
        "GRIDCHASE_BROKER": "mqtts://bus.example:18883",
        "GRIDCHASE_JOB": "resnet50",
        "GRIDCHASE_RUN": "r7",
        "GRIDCHASE_ROOT": "site/v1",
        "RANK": "3",
        "WORLD_SIZE": "8",
        "CUDA_VISIBLE_DEVICES": "4,5",
        "LOCAL_RANK": "1",
    }
    settings = resolve(environ=environ)
    assert (settings.broker.host, settings.broker.port, settings.broker.tls) == ("bus.example", 18883, True)
    assert (settings.job, settings.run, settings.root) == ("resnet50", "r7", "site/v1")
    assert (settings.rank, settings.world_size, settings.gpus) == (3, 8, (5,))
    assert not settings.run_is_random


def test_the_user_is_the_brokers_else_the_login_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    assert settings_in({}, run="r1").key == ("ada", "toy", "r1")
    assert settings_in({}, broker="mqtt://bob:secret@bus.example").user == "bob"
    assert settings_in({}, username="carol@example.org", password="secret").user == "carol@example.org"
    assert "username = " in faults_in({}, username="a\nb", password="secret")


def test_arguments_win_over_the_environment() -> None:
    environ = {"GRIDCHASE_BROKER": "mqtt://a", "GRIDCHASE_RUN": "a", "RANK": "1", "WORLD_SIZE": "2"}
    settings = settings_in(environ, broker="mqtt://b:1", run="b", rank=4, world_size=5, gpus=["GPU-1"], root="c")
    assert settings.broker.url == "mqtt://b:1"
    assert (settings.run, settings.rank, settings.world_size) == ("b", 4, 5)
    assert (settings.gpus, settings.root) == (("GPU-1",), "c")


@pytest.mark.parametrize(
    ("environ", "gpus"),
    [
        ({}, ()),
        ({"LOCAL_RANK": "3"}, ()),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "2,-1,3"}, (2,)),
        ({"CUDA_VISIBLE_DEVICES": "2, 3"}, (2, 3)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-3f2a,MIG-77"}, ("GPU-3f2a", "MIG-77")),
        ({"CUDA_VISIBLE_DEVICES": "GPU-3f2a,GPU-77", "LOCAL_RANK": "1"}, ("GPU-77",)),
        ({"CUDA_VISIBLE_DEVICES": "5", "LOCAL_RANK": "3"}, (5,)),
        ({"CUDA_VISIBLE_DEVICES": "4,5", "SLURM_LOCALID": "1"}, (4, 5)),
        ({"CUDA_VISIBLE_DEVICES": "4,5", "SLURM_LOCALID": "1", "WORLD_SIZE": "2"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "4,5", "WORLD_SIZE": "2", **STEP}, (5,)),
        ({"CUDA_VISIBLE_DEVICES": "4,5", "SLURM_PROCID": "1", "SLURM_NTASKS": "2", **STEP}, (5,)),
    ],
)
def test_a_rank_knows_its_gpus(environ: dict[str, str], gpus: tuple[str | int, ...]) -> None:
    assert settings_in(environ).gpus == gpus


def test_the_time_limit_is_the_schedulers_end_where_there_is_one() -> None:
    now_s = time.time()
    for end, limit_s in (
        (f"{now_s + 3_600:.0f}", pytest.approx(now_s + 3_600, abs=1)),
        (f"{now_s - 60:.0f}", None),  # the variable of a job before this one
        ("4294967294", None),  # without a limit
        ("soon", None),
    ):
        settings = settings_in({"SLURM_JOB_END_TIME": end})
        assert (settings.time_limit_s, settings.status(started_at_s=0.0).time_limit_s) == (limit_s, limit_s)


@pytest.mark.parametrize(
    ("environ", "gpus"),
    [
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-3f2a"}, ("GPU-3f2a",)),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-3f2a", "CUDA_VISIBLE_DEVICES": "0"}, ("GPU-3f2a",)),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-3f2a", "CUDA_VISIBLE_DEVICES": "1"}, ()),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-3f2a", "CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"NVIDIA_VISIBLE_DEVICES": "5", "CUDA_VISIBLE_DEVICES": "0"}, (5,)),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-77,GPU-3f2a"}, ()),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-77,GPU-3f2a", "CUDA_VISIBLE_DEVICES": "0"}, ()),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-77,GPU-3f2a", "CUDA_VISIBLE_DEVICES": "GPU-77"}, ("GPU-77",)),
        ({"NVIDIA_VISIBLE_DEVICES": "MIG-77"}, ("MIG-77",)),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, ()),
        ({"NVIDIA_VISIBLE_DEVICES": "none"}, ()),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, ()),
        ({"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VISIBLE_DEVICES": "1"}, (1,)),
    ],
)
def test_in_a_container_the_right_gpu_is_named_or_none(environ: dict[str, str], gpus: tuple[str | int, ...]) -> None:
    assert settings_in(environ).gpus == gpus


class FrameworksDevice:
    """A device as `torch.device` is one: it says what it is as text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        """Return it as frameworks write it."""
        return self._text


VISIBLE = {"CUDA_VISIBLE_DEVICES": "5,GPU-7"}
IN_CONTAINER = {"NVIDIA_VISIBLE_DEVICES": "GPU-9"}


@pytest.mark.parametrize(
    ("environ", "given", "gpus"),
    [
        (VISIBLE, "cuda:0", (5,)),
        (VISIBLE, FrameworksDevice("cuda:1"), ("GPU-7",)),
        (VISIBLE, ["cuda:1", "cuda:0"], ("GPU-7", 5)),
        (VISIBLE, ["cuda:0", "GPU-3"], (5, "GPU-3")),
        (VISIBLE, "cuda:2", ()),
        (VISIBLE, "cuda", ()),
        ({"CUDA_VISIBLE_DEVICES": "3"}, FrameworksDevice("cuda"), (3,)),
        ({}, "cuda:0", ()),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "cuda:2", (2,)),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "cuda", ()),
        (IN_CONTAINER, "cuda:0", ("GPU-9",)),
        (IN_CONTAINER, "cuda:1", ()),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-8,GPU-9"}, "cuda:0", ()),
        (VISIBLE | {"NVIDIA_VISIBLE_DEVICES": "all"}, "cuda:0", (5,)),
    ],
)
def test_a_device_of_cuda_is_the_gpu_at_its_place_as_far_as_that_is_known(
    environ: dict[str, str], given: object, gpus: tuple[str | int, ...]
) -> None:
    assert settings_in(environ, gpus=given).gpus == gpus


def test_publishing_can_be_switched_off_without_a_word(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("GRIDCHASE_DISABLED", "1")
    assert resolve_or_warn({"job": "j"}, caller="test") is None
    assert resolve_or_warn({}, caller="test") is None
    monkeypatch.setenv("GRIDCHASE_DISABLED", "0")
    assert resolve_or_warn({"job": "j"}, caller="test") is not None
    assert not caplog.records


def test_a_status_says_in_which_pid_namespace_its_pid_counts() -> None:
    assert settings_in({}).status(started_at_s=0.0).pid_namespace == Path("/proc/self/ns/pid").stat().st_ino


def test_a_url_may_hold_credentials_which_are_never_shown() -> None:
    settings = settings_in({}, broker="mqtt://me:p%40ss@bus:1884")
    assert (settings.broker.username, settings.broker.password) == ("me", "p@ss")
    assert "p@ss" not in repr(settings)
    assert "p%40" not in repr(settings) + settings.broker.url
    assert "secret" not in faults_in({}, broker="http://me:secret@bus:1884")
    assert settings_in({}, broker="mqtt://[::1]:1884").broker.url == "mqtt://[::1]:1884"
    assert settings_in({}, broker="mqtts://bus").broker.port == 8883


def test_the_password_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("correct horse\n")
    environ = {"GRIDCHASE_PASSWORD_FILE": str(file)}
    assert settings_in(environ, username="me").broker.password == "correct horse"
    assert settings_in(environ, broker="mqtt://me@bus").broker.username == "me"
    assert settings_in(environ, username="me", password="other").broker.password == "other"
    assert "username is missing" in faults_in(environ)
    file.unlink()
    assert "GRIDCHASE_PASSWORD_FILE" in faults_in(environ, username="me")


def test_certificate_authorities_need_tls_and_a_file(tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    assert "no such file" in faults_in({"GRIDCHASE_CA_FILE": str(file)}, broker="mqtts://bus")
    file.touch()
    assert settings_in({}, ca_file=str(file), broker="mqtts://bus").broker.ca_file == str(file)
    assert "mqtts://" in faults_in({}, ca_file=str(file), broker="mqtt://bus")
    assert faults_in({}, ca_file="x" * 300, broker="mqtts://bus").endswith("xxx': File name too long")


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"job": None}, "job is missing: pass job=… or set GRIDCHASE_JOB"),
        ({"job": "two words"}, "job = 'two words': must be 1 to 64 of A-Z a-z 0-9 . _ -"),
        ({"job": 7}, "job = 7: must be"),
        ({"run": "a/b"}, "run = 'a/b': must be"),
        ({"run": ""}, "run = '': must be"),
        ({"rank": 2}, "rank = 2: must be below world_size = 1"),
        ({"rank": -1}, "rank = -1: must be a whole number from 0 to 65535"),
        ({"rank": 0.5}, "rank = 0.5: must be a whole number"),
        ({"world_size": 0}, "world_size = 0: must be a whole number from 1 to 65536"),
        ({"broker": "bus:1883"}, "broker = 'bus:1883': must be mqtt://host[:port] or, with TLS, mqtts://host[:port]"),
        ({"broker": "mqtt://bus:port"}, "broker = 'mqtt://bus:port': must be"),
        ({"broker": "mqtt://bus/path"}, "broker = 'mqtt://bus/path': must be"),
        ({"broker": 1883}, "broker = '1883': must be"),
        ({"root": "a/+"}, "root = 'a/+': must be"),
        ({"root": "/a"}, "root = '/a': must be"),
        ({"flush_s": 0}, "flush_s = 0: must be above 0 and at most 3600 s"),
        ({"max_pause_s": 86_401.0}, "max_pause_s = 86401.0: must be above 0 and at most 86400 s"),
        ({"flush_s": "1"}, "flush_s = '1': must be above 0"),
        ({"heartbeat_s": float("nan")}, "heartbeat_s = nan: must be above 0"),
        ({"batch_size": 0}, "batch_size = 0: must be a whole number from 1"),
        ({"batch_size": 2.5}, "batch_size = 2.5: must be a whole number"),
        ({"gpus": [-1]}, "gpus = (-1,): must be at most 64 UUIDs, or indices"),
        ({"gpus": [None]}, "gpus = (None,)"),
        ({"gpus": 5.5}, "gpus = (5.5,)"),
    ],
    ids=str,
)
def test_an_invalid_setting_is_refused_with_value_and_rule(arguments: dict[str, Any], fault: str) -> None:
    assert fault in faults_in({}, **arguments)


def test_every_fault_is_listed_at_once() -> None:
    faults = faults_in({"RANK": "x", "LOCAL_RANK": "9", "CUDA_VISIBLE_DEVICES": "0,1"}, job="a b", broker="x")
    for name in ("RANK = 'x'", "LOCAL_RANK = 9", "job = 'a b'", "broker = 'x'"):
        assert name in faults


VARIABLES = [
    "GRIDCHASE_BROKER", "GRIDCHASE_JOB", "GRIDCHASE_RUN", "GRIDCHASE_ROOT", "RANK", "WORLD_SIZE", "LOCAL_RANK",
    "SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID", "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
]  # fmt: skip


@given(
    st.dictionaries(st.sampled_from(VARIABLES), st.text(max_size=20) | st.sampled_from(["0", "1", "-1", "mqtt://b"]))
)
def test_any_environment_gives_settings_or_faults(environ: dict[str, str]) -> None:
    with contextlib.suppress(SettingsError):
        settings = resolve(environ=environ)
        assert settings.rank < settings.world_size
