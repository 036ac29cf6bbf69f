"""`gridchase replay profile`: rows for scripts, tables for people, and every fault of the arguments and files."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from controller.cli.replay import main as replay
from controller.cli.replay import profile as replay_profile
from controller.demo.recurrences.trace_files import INCLUDED
from controller.errors import ConfigError
from policies.replay.profiling.policies import POLICIES
from policies.replay.traces import POWER_COLUMNS

QUICK = ("--seeds", "1", "--processes", "1")
PLAIN = ("--policy", "gridchase-unrefined", "zeus")
"""The policies that take no time."""
MINE = "\n".join((",".join(POWER_COLUMNS), "mine,net,8,sgd,100,30,80", "mine,net,8,sgd,200,20,150"))


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what it tells its processes from the other tests."""
    for variable in replay_profile.BLAS_THREADS:
        monkeypatch.setenv(variable, "1")


def replayed(*arguments: "str | Path") -> int:
    """Parse the arguments as the command line does, and do what they say."""
    parser = argparse.ArgumentParser()
    replay.add_arguments(parser)
    options = parser.parse_args(["profile", *map(str, arguments)])
    code: int = options.do(options)
    return code


def rows(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    captured = capsys.readouterr()
    assert captured.err == ""
    found: list[dict[str, Any]] = json.loads(captured.out)
    return found


def test_a_row_for_each_policy_on_each_curve_then_the_summaries(capsys: pytest.CaptureFixture[str]) -> None:
    curve = "librispeech/deepspeech2/adamw/32@v100"
    assert replayed("--power", INCLUDED / "v100.csv", "--noise", "realistic", "--curve", curve, *QUICK, "--json") == 0
    found = rows(capsys)
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


def test_without_files_the_jobs_that_come_along_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    assert replayed(*QUICK, "--policy", "zeus", "--json") == 0
    found = {row["curve"] for row in rows(capsys)}
    assert {"cifar100/shufflenetv2/adadelta/8@v100", "movielens-1m/ncf/adam/16384@v100", "mean over all"} <= found
    assert len(found) == 38 + 4


def test_the_conditions_are_those_that_were_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    def errors(*arguments: str) -> list[float]:
        assert replayed(*QUICK, *PLAIN, "--curve", "librispeech", "--json", *arguments) == 0
        return [row["selection_error_ratio"] for row in rows(capsys)]

    usual = errors()
    assert errors("--noise", "realistic", "--eta", "0.5") == usual
    for change in (("--noise", "harsh"), ("--eta", "1"), ("--seeds", "2")):
        assert errors(*change) != usual, change


def test_people_get_tables_that_fit_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert replayed(*QUICK, *PLAIN, "--curve", "cifar100", "movielens-1m/ncf/adam/4@v100") == 0
    text = capsys.readouterr().out
    for word in ("shufflenetv2/adadelta/8@v100, not power-bound", "mean of 11 curves", "power-bound curves", "zeus"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 80


def test_of_many_curves_only_the_summaries_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert replayed(*QUICK, "--policy", "zeus") == 0
    text = capsys.readouterr().out
    assert "@v100" not in text
    assert "mean of 38 curves" in text


def test_what_is_assumed_is_said_aloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gpu.csv"
    file.write_text(MINE)
    assert replayed("--power", file, *QUICK, "--policy", "zeus", "--json") == 0
    captured = capsys.readouterr()
    assert "assumed to take 0.2 s at the highest limit: mine/net/sgd/8@gpu" in captured.err
    assert all(row["is_assumed"] for row in json.loads(captured.out))


def test_every_fault_is_told_at_once(tmp_path: Path) -> None:
    for name, text in (("broken.csv", "a,b\n"), ("single.csv", "\n".join(MINE.splitlines()[:2]))):
        (tmp_path / name).write_text(text)
    files = [tmp_path / name for name in ("broken.csv", "single.csv", "none.csv")]
    with pytest.raises(ConfigError) as caught:
        replayed("--power", *files, files[1], "--eta", "2", "--seeds", "0", "--processes", "0")
    text = "\n".join(caught.value.faults)
    for word in ("--eta 2", "--seeds 0", "--processes 0", "broken.csv:1", "none.csv", "two power limits", "rename one"):
        assert word in text


def test_a_curve_that_is_not_there_is_told_with_some_that_are() -> None:
    with pytest.raises(ConfigError, match=r"--curve alexnet: no name contains it; there are .* and 33 more"):
        replayed("--curve", "alexnet")


def test_processes_share_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--seeds", "1", "--policy", "zeus", "--curve", "cifar100", "--json")
    assert replayed(*arguments, "--processes", "2") == 0
    shared = rows(capsys)
    assert replayed(*arguments, "--processes", "1") == 0
    assert rows(capsys) == shared
