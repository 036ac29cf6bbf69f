"""The command line in this process: its verbs explain themselves, and every class of error has its exit code."""

import argparse
import asyncio
import resource
from collections.abc import Sequence
from pathlib import Path

import pytest

from controller.cli.configuration import TRY_SIMULATION
from controller.cli.main import _raise_file_limit, main, parse, run
from controller.cli.up import _jobs_command, _run_both
from controller.config import Config, NodeConfig, load_config
from controller.errors import (
    BackendError,
    ConfigError,
    ControllerError,
    DriverUnavailableError,
    GpuLimitError,
    GpuLostError,
    GpuNotSupportedError,
    GpuPermissionError,
    GpuSuspectError,
    JournalError,
    LimitsLeftError,
    NodeLockedError,
)
from controller.gpu.journal.entry import JournalEntry
from controller.gpu.journal.storage import Journal
from controller.gpu.node_lock import NodeLock
from gridchase.cli.verb import _VERBS
from policies.service.errors import RequestError, StoreVersionError
from publishers.mqtt.embedded_broker import BrokerError
from tests.fakes import FakeBackend, FakeGpu

VERBS = ("demo", "up", "controller", "policy", "web", "report", "broker", "check", "restore")
ORDERS = ("pause", "resume", "pin", "release", "exempt", "budget", "deadline")
GPU_ERRORS = (GpuPermissionError, GpuNotSupportedError, GpuLimitError, GpuLostError, GpuSuspectError)
CODES = [
    (ConfigError(["plan.eta = 7: must be a number at most 1", "plan.eat: there is no such key"]), 2),
    (JournalError("journal.json: cannot be read"), 2),
    (LimitsLeftError(["GPU-1 still has 180 W instead of its prior limit 280 W"]), 1),
    (NodeLockedError("another controller is at work"), 2),
    (BackendError("there is no NVIDIA driver"), 1),
    (BrokerError("mosquitto has ended by itself"), 1),
    (ControllerError("anything else of ours"), 1),
    (StoreVersionError("the database is of a newer version"), 1),
    (RequestError(["store.url: cannot be read"]), 2),
    *((kind("it failed", gpu_uuid="GPU-1", operation="open"), 1) for kind in GPU_ERRORS),
]


class FailingBackend(FakeBackend):
    """GPUs whose opening fails."""

    def __init__(self, error: Exception) -> None:
        super().__init__([])
        self._error = error

    async def open(self) -> Sequence[FakeGpu]:
        raise self._error


def arguments(verb: str, state_dir: Path, *settings: str) -> list[str]:
    """Return a verb with a simulated node."""
    fixed = ["gpu.backend=simulation", "http.port=-1", f"node.state_dir={state_dir}", "bus.url=mqtt://127.0.0.1:9"]
    return [verb, *(word for setting in [*fixed, *settings] for word in ("--set", setting))]


@pytest.mark.parametrize("verb", VERBS + ORDERS)
def test_each_verb_explains_its_arguments(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([verb, "--help"])
    shown = capsys.readouterr().out
    assert caught.value.code == 0
    assert shown.startswith(f"usage: gridchase {verb} ")
    assert shown.count("--") > 2


def test_the_help_names_each_verb_in_a_line_and_where_to_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    shown = capsys.readouterr().out
    assert caught.value.code == 0
    assert [verb for verb in VERBS + ORDERS if f"\n    {verb} " not in shown] == []
    assert "gridchase demo" in shown
    assert len(shown.splitlines()) <= 13 + len(_VERBS), "a line for each, and what is around them"


def test_without_a_verb_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    assert "gridchase demo" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("contrller", "there is no verb 'contrller'; did you mean controller?"),
        ("fly", "there is no verb 'fly'; there are demo, up, "),
    ],
)
def test_a_wrong_verb_is_answered_with_a_similar_one(verb: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([verb])
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong", [["fly"], ["check", "--jason"], ["broker", "--kind", "emqx"], ["demo", "--zone", "XX"]]
)
def test_unknown_arguments_end_with_2(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(wrong)
    assert caught.value.code == 2


@pytest.mark.parametrize(("error", "code"), CODES, ids=lambda value: type(value).__name__)
def test_an_expected_error_is_a_line_each_and_its_exit_code(
    error: Exception,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("controller.cli.wiring.backend_of", lambda _, __: FailingBackend(error))
    assert main(arguments("controller", tmp_path)) == code
    assert capsys.readouterr().err.splitlines()[-len(str(error).splitlines()) :] == [
        f"gridchase: {line}" for line in str(error).splitlines()
    ]


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ([ConfigError(["a"]), JournalError("b")], 2),
        ([ConfigError(["a"]), BackendError("b")], 1),
        ([ExceptionGroup("inner", [BrokerError("a")])], 1),
    ],
)
def test_a_group_of_expected_errors_ends_with_the_worst_of_their_codes(
    errors: list[Exception], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = ExceptionGroup("several", errors)
    monkeypatch.setattr("controller.cli.wiring.backend_of", lambda _, __: FailingBackend(group))
    assert main(arguments("controller", tmp_path)) == code


@pytest.mark.parametrize("bug", [ValueError("a bug"), ExceptionGroup("two", [BackendError("a"), ValueError("a bug")])])
def test_a_bug_keeps_its_traceback(bug: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.cli.wiring.backend_of", lambda _, __: FailingBackend(bug))
    with pytest.raises(type(bug)):
        main(arguments("controller", tmp_path))


@pytest.mark.parametrize("verb", ["controller", "up", "check"])
@pytest.mark.parametrize("url", ["mqtt://h:99999", "mqtt://ada:hunter2@h"])
def test_a_wrong_broker_url_ends_with_2_before_any_change(
    verb: str, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(verb, tmp_path, f"bus.url={url}")) == 2
    shown = capsys.readouterr()
    assert "gridchase: bus.url: " in shown.err
    assert "hunter2" not in shown.err + shown.out
    assert list(tmp_path.iterdir()) == []


def test_up_refuses_a_broker_on_another_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments("up", tmp_path, "bus.url=mqtt://broker.example")) == 2
    assert "use `gridchase controller`" in capsys.readouterr().err


@pytest.mark.parametrize("error", [BackendError("no package"), DriverUnavailableError("no driver")])
def test_without_a_gpu_up_and_check_name_the_simulation(
    error: BackendError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("controller.cli.check.backend_of", lambda _, __: FailingBackend(error))
    monkeypatch.setattr(
        "controller.cli.wiring.backend_of", lambda _, __: FailingBackend(error)
    )  # after its import there
    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(_run_both(Config(node=NodeConfig(state_dir=str(tmp_path))), None, asyncio.Event(), ""))
    assert [str(each).splitlines() for each in caught.value.exceptions] == [[str(error), TRY_SIMULATION]]
    assert main(arguments("check", tmp_path)) == 1
    assert f"wrong: {TRY_SIMULATION}" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["up", "check"])
def test_simulate_is_the_simulated_backend(verb: str) -> None:
    assert load_config(None, parse([verb, "--simulate"]).set).gpu.backend == "simulation"
    assert load_config(None, parse([verb]).set).gpu.backend == "nvml"


def test_an_open_broker_on_all_addresses_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "--host", "0.0.0.0"]) == 1  # noqa: S104 — it must not be bound
    assert "requires no password" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["controller", "restore"])
def test_a_journal_that_cannot_be_read_ends_with_2(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "journal.json").write_text("{", encoding="utf-8")
    assert main(arguments(verb, tmp_path)) == 2
    assert "journal.json" in capsys.readouterr().err


def test_a_second_controller_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with NodeLock(tmp_path):
        assert main(arguments("controller", tmp_path)) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_a_missing_file_of_the_configuration_ends_with_2(tmp_path: Path) -> None:
    assert main([*arguments("controller", tmp_path), "--config", str(tmp_path / "absent.toml")]) == 2
    assert main([*arguments("controller", tmp_path), "--set", "signal.kind=carbon"]) == 2


def test_a_missing_token_ends_with_2_and_restores_what_a_killed_controller_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = JournalEntry(prior_power_limit_w=300.0, written_power_limits_w=(200.0,), written_at_s=0.0)
    asyncio.run(Journal.read(tmp_path).record("GPU-that-is-gone", gone))
    chain = 'signal.provider=[{name="electricity-maps", zone="DE", token_env="NO_SUCH_TOKEN"}]'
    assert main(arguments("controller", tmp_path, "signal.kind=carbon", chain)) == 2
    shown = capsys.readouterr()
    assert "GPU-that-is-gone: failed: the simulation does not list it" in shown.out, "a restore was tried"
    assert "signal.provider[0] (electricity-maps): token_file is not set, and $NO_SUCH_TOKEN" in shown.err


def test_all_wrong_providers_are_reported_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chain = f'signal.provider=[{{name="eia", zone="MISO"}}, {{name="csv", zone="DE", path="{tmp_path / "no.csv"}"}}]'
    assert main(arguments("controller", tmp_path, "signal.kind=carbon", chain)) == 2
    shown = capsys.readouterr().err
    assert "signal.provider[0] (eia): token_file is not set" in shown
    assert "signal.provider[1] (csv): " in shown


@pytest.mark.parametrize("key", ["token_env", "url"])
def test_a_secret_in_the_wrong_place_is_not_shown(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = {"token_env": "s3cr3t-t0k3n", "url": "https://proxy.example/?key=s3cr3t-t0k3n"}[key]
    chain = f'signal.provider=[{{name="eia", zone="MISO", {key}="{value}"}}]'
    assert main(arguments("controller", tmp_path, "signal.kind=carbon", chain)) == 2
    shown = capsys.readouterr()
    assert f"signal.provider[0].{key}" in shown.err
    assert "s3cr3t" not in shown.out + shown.err


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_in_a_verb_ends_with_0(capsys: pytest.CaptureFixture[str], *, as_json: bool) -> None:
    def stopped(_: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    options = argparse.Namespace(
        outlives_terminal=False, do=stopped, json=as_json, log_level=None, default_log_level="warning"
    )
    assert run(options) == 0
    captured = capsys.readouterr()
    assert (captured.err if as_json else captured.out) == "stopped on request\n"
    assert (captured.out if as_json else captured.err) == ""


def test_restoring_an_empty_journal_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments("restore", tmp_path, "plan.eta=7")) == 0
    shown = capsys.readouterr()
    assert "nothing to restore" in shown.out
    assert "plan.eta = 7" in shown.err


@pytest.mark.parametrize("limit_w", [150.0, 300.0])
def test_restore_without_a_journal_names_a_limit_that_may_have_been_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], limit_w: float
) -> None:
    gpu = FakeGpu()
    gpu.requested_power_limit_w = limit_w
    monkeypatch.setattr("controller.cli.restore.backend_of", lambda *_: FakeBackend([gpu]))
    assert main(arguments("restore", tmp_path)) == int(limit_w < 300.0)
    shown = capsys.readouterr().out
    assert "there is no journal" in shown
    assert (f"{gpu.uuid} has 150 W, less than its default of 300 W" in shown) is (limit_w < 300.0)
    assert gpu.history == []


def test_restore_with_a_file_that_cannot_be_read_claims_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("controller.config.default_state_dir", lambda: tmp_path / "default")
    file = tmp_path / "controller.toml"
    file.write_text('[node]\nstate_dir = "/srv/state"\n[bus\n')
    assert main(["restore", "--config", str(file)]) == 2
    assert f"{file} may name another node.state_dir than {tmp_path / 'default'}" in capsys.readouterr().err
    assert main([*arguments("restore", tmp_path), "--config", str(file)]) == 0, "the directory is named beside it"


def test_demo_options_out_of_bounds_end_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--duration-s", "1", "--seed", "-1", "--json", f"/{'x' * 300}/day.json"]) == 2
    shown = capsys.readouterr().err
    assert "xxx/day.json: File name too long" in shown
    assert "--duration-s 1" in shown
    assert "--seed -1" in shown


def test_a_demo_whose_result_cannot_be_written_does_not_begin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--json", "/proc/day.json"]) == 2
    assert "--json /proc/day.json: cannot be written" in capsys.readouterr().err


def test_options_of_the_other_demo_end_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--recurrences", "3", "--zone", "GB", "--max-slowdown", "1.1"]) == 2
    shown = capsys.readouterr().err
    assert "--zone: is for the day" in shown
    assert "--max-slowdown: is for the day" in shown
    assert main(["demo", "--workload", "cifar100", "--policy", "zeus"]) == 2
    shown = capsys.readouterr().err
    assert "gridchase: --workload: goes with --recurrences" in shown
    assert "gridchase: --policy: goes with --recurrences" in shown
    assert main(["demo", "--recurrences", "2", "--workload", "mnist"]) == 2
    assert "must be one of cifar100" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--config", "/none.toml"], ["--set", "learning.eta=7"], ["--set", "x"]])
def test_a_wrong_policy_configuration_ends_with_2(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["policy"], ["policy", "jobs"], ["policy", "show", "job"]):
        assert main([*arguments, *words, "--state-dir", str(tmp_path)]) == 2
        assert capsys.readouterr().err.startswith("gridchase: ")
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_policy_configuration_prevents_up_from_starting(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("[learning]\neta = 7\n")
    state_dir = tmp_path / "state"
    assert main([*arguments("up", state_dir), "--policy-config", str(tmp_path / "policy.toml")]) == 2
    assert not state_dir.exists()


def test_an_impossible_state_directory_ends_with_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["policy", "--state-dir", "/proc/x"]) == 2
    assert "gridchase: --state-dir /proc/x: cannot be created: " in capsys.readouterr().err


def test_up_prints_the_command_for_its_own_database(tmp_path: Path) -> None:
    config = Config(node=NodeConfig(state_dir=str(tmp_path / "a b")))
    assert _jobs_command(config, Path("p.toml")) == (
        f"gridchase policy jobs --config p.toml --state-dir '{tmp_path / 'a b' / 'policy'}'"
    )
    assert _jobs_command(load_config(None, []), None) == "gridchase policy jobs"


def test_up_warns_that_the_bus_of_the_policy_file_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('[bus]\nurl = "mqtt://elsewhere"\n')
    words = [*arguments("up", tmp_path / "state", "bus.url=mqtt://broker.example"), "--policy-config", str(file)]
    assert main(words) == 2, "that broker is not of this machine"
    assert [f"{file}: [bus] is not used" in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (1_024, 524_288, [(16_384, 524_288)]),
        (1_024, resource.RLIM_INFINITY, [(16_384, resource.RLIM_INFINITY)]),
        (1_024, 4_096, [(4_096, 4_096)]),
        (1_024, 1_024, []),
        (65_536, 524_288, []),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, []),
    ],
)
def test_every_verb_may_open_as_many_files_as_a_node_needs(
    soft: int, hard: int, raised: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    _raise_file_limit()
    assert asked == raised


@pytest.mark.parametrize(
    "words",
    [
        ["policy", "show", "a\udcff"],
        ["policy", "forget", "--yes", "a\udcff"],
        ["policy", "export", "a\udcff"],
        ["pin", "--limit", "200W", "--until", "+1h", "--why", "x", "--job", "a\udcff"],
        ["resume", "--job", "a", "--why", "a\udcff"],
        ["policy", "import", "-", "--user", "a\udcff"],
        ["signal", "--provider", "a\udcff"],
        ["signal", "--provider", "constant", "--zone", "a\udcff"],
        ["signal", "--provider", "constant", "--option", "value=a\udcff"],
    ],
    ids=lambda words: " ".join(map(ascii, words)),
)
def test_text_that_is_not_utf_8_is_refused_with_a_sentence(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "a\\udcff: must be UTF-8" in capsys.readouterr().err


def test_the_state_directory_of_a_restore_is_not_replaced_by_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["restore", "--set", "node.state_dir=/tmp/a\udcff"]) == 2
    assert "--set node.state_dir=/tmp/a\\udcff: must be UTF-8" in capsys.readouterr().err


def test_the_help_of_up_names_all_that_it_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["up", "--help"])
    assert "broker, controller, policy service and page" in " ".join(capsys.readouterr().out.split())
