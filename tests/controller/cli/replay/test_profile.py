"""`gridchase replay profile`: rows for scripts, tables for people, and every fault of the arguments and files."""

import json
from pathlib import Path

import pytest

from controller.cli.replay import profile as replay_profile
from controller.demo.recurrences.trace_files import INCLUDED
from controller.errors import ConfigError
from policies.replay.profiling.policies import POLICIES
from policies.replay.traces import POWER_COLUMNS
from tests.controller.cli.replay.command_line import json_rows, replay

QUICK = ("profile", "--seeds", "1", "--processes", "1")
PLAIN = ("--policy", "gridchase-unrefined", "zeus")
"""The fast policies."""
MINE = "\n".join((",".join(POWER_COLUMNS), "mine,net,8,sgd,100,30,80", "mine,net,8,sgd,200,20,150"))


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the environment that the replay sets for its processes."""
    for variable in replay_profile.BLAS_THREADS:
        monkeypatch.setenv(variable, "1")


def test_a_row_for_each_policy_on_each_curve_then_the_summaries(capsys: pytest.CaptureFixture[str]) -> None:
    curve = "librispeech/deepspeech2/adamw/32@v100"
    found = json_rows(capsys, *QUICK, "--power", INCLUDED / "v100.csv", "--noise", "realistic", "--curve", curve)
    overs = [f"{kind} over {over}" for over in ("power-bound", "all") for kind in ("mean", "median")]
    assert [(row["curve"], row["policy"]) for row in found[:3]] == [(curve, name) for name in POLICIES]
    assert {(row["curve"], row["policy"]) for row in found[3:]} == {(over, name) for over in overs for name in POLICIES}
    ours, _, zeus = found[:3]
    assert set(ours["excess_iterations"]) == {"1000", "5000", "20000"}
    assert zeus["iterations_to_plan"] == 351
    assert ours["iterations_to_plan"] < 120
    assert ours["excess_iterations"]["1000"] < zeus["excess_iterations"]["1000"]
    assert ours["selection_against_zeus_ratio"] == ours["selection_error_ratio"] - zeus["selection_error_ratio"]
    assert {row["noise"] for row in found} == {"realistic"}


def test_without_files_the_included_jobs_are_used(capsys: pytest.CaptureFixture[str]) -> None:
    found = {row["curve"] for row in json_rows(capsys, *QUICK, "--policy", "zeus")}
    assert {"cifar100/shufflenetv2/adadelta/8@v100", "movielens-1m/ncf/adam/16384@v100", "mean over all"} <= found
    assert len(found) == 38 + 4


def test_each_condition_changes_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    def errors(*arguments: str) -> list[float]:
        found = json_rows(capsys, *QUICK, *PLAIN, "--curve", "librispeech", *arguments)
        return [row["selection_error_ratio"] for row in found]

    usual = errors()
    assert errors("--noise", "realistic", "--eta", "0.5") == usual
    for change in (("--noise", "harsh"), ("--eta", "1"), ("--seeds", "2")):
        assert errors(*change) != usual, change


def test_the_terminal_shows_tables_of_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(*QUICK, *PLAIN, "--curve", "cifar100", "movielens-1m/ncf/adam/4@v100") == 0
    text = capsys.readouterr().out
    for word in ("shufflenetv2/adadelta/8@v100, not power-bound", "mean of 11 curves", "power-bound curves", "zeus"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 80


def test_many_curves_are_only_summarized(capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(*QUICK, "--policy", "zeus") == 0
    text = capsys.readouterr().out
    assert "@v100" not in text
    assert "mean of 38 curves" in text


def test_assumptions_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gpu.csv"
    file.write_text(MINE)
    assert replay(*QUICK, "--power", file, "--policy", "zeus", "--json") == 0
    captured = capsys.readouterr()
    assert "assumed to take 0.2 s at the highest limit: mine/net/sgd/8@gpu" in captured.err
    assert all(row["is_assumed"] for row in json.loads(captured.out))


def test_all_faults_are_reported(tmp_path: Path) -> None:
    for name, text in (("broken.csv", "a,b\n"), ("single.csv", "\n".join(MINE.splitlines()[:2]))):
        (tmp_path / name).write_text(text)
    files = [tmp_path / name for name in ("broken.csv", "single.csv", "none.csv")]
    with pytest.raises(ConfigError) as caught:
        replay("profile", "--power", *files, files[1], "--eta", "2", "--seeds", "0", "--processes", "0")
    text = "\n".join(caught.value.faults)
    for word in ("--eta 2", "--seeds 0", "--processes 0", "broken.csv:1", "none.csv", "two power limits", "rename one"):
        assert word in text


def test_an_unknown_curve_is_reported_with_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"--curve alexnet: no name contains it; there are .* and 33 more"):
        replay("profile", "--curve", "alexnet")


def test_the_controller_itself_is_simulated_beside_them(capsys: pytest.CaptureFixture[str]) -> None:
    curve = "cifar100/shufflenetv2/adadelta/1024@v100"
    chosen = (*QUICK, "--live", "--policy", "zeus", "--curve", curve)
    *_, ours, _, over_all = json_rows(capsys, *chosen)
    assert (ours["curve"], ours["policy"], over_all["curve"]) == (curve, "gridchase-live", "mean over all")
    for name in ("slowdown_ratio", "excess_iterations", "excess_ratio", "highest_ratio"):
        assert set(ours[name]) == {"1000", "5000", "20000"}
    assert ours["slowdown_ratio"]["20000"] <= ours["max_slowdown"] - 1 + 0.003
    assert replay(*chosen) == 0
    text = capsys.readouterr().out
    assert "at most 3 % slower, seeds: 1" in text
    assert max(map(len, text.splitlines())) <= 80
