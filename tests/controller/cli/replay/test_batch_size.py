"""`gridchase replay batch-size`: rows for scripts, tables for people, a page, and every fault of the arguments."""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from controller.cli.replay import main as replay
from controller.demo.recurrences.trace_files import INCLUDED
from controller.errors import ConfigError
from policies.replay.batch_size.evaluation import POLICIES
from tests.live.conftest import wait_until

QUICK = ("--seeds", "1", "--recurrences", "4", "--processes", "1")
NAMES = ["cifar100/shufflenetv2@v100", "librispeech/deepspeech2@v100", "movielens-1m/ncf@v100"]


def replayed(*arguments: "str | Path") -> int:
    """Parse the arguments as the command line does, and do what they say."""
    parser = argparse.ArgumentParser()
    replay.add_arguments(parser)
    options = parser.parse_args(["batch-size", *map(str, arguments)])
    code: int = options.do(options)
    return code


def rows(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    captured = capsys.readouterr()
    assert captured.err == ""
    found: list[dict[str, Any]] = json.loads(captured.out)
    return found


def test_a_row_for_each_policy_on_each_workload(capsys: pytest.CaptureFixture[str]) -> None:
    files = ("--train", INCLUDED / "train.csv", "--power", INCLUDED / "v100.csv")
    assert replayed(*files, "--eta", "0.5", *QUICK, "--json") == 0
    found = rows(capsys)
    assert [(row["workload"], row["policy"]) for row in found] == [(job, name) for job in NAMES for name in POLICIES]
    for row in found:
        assert {"regret", "energy_ratio", "duration_ratio", "n_seeds", "n_recurrences"} <= row.keys()
    oracle = next(row for row in found if row["policy"] == "oracle")
    default = next(row for row in found if row["policy"] == "default")
    assert abs(oracle["regret"]) < 1 < default["regret"]
    assert oracle["energy_ratio"] < 0.4
    assert default["energy_ratio"] == pytest.approx(1.0, abs=0.2)


def test_without_files_the_jobs_that_come_along_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    assert replayed(*QUICK, "--policy", "oracle", "--json") == 0
    assert [row["workload"] for row in rows(capsys)] == NAMES


def test_the_conditions_are_those_that_were_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    def regrets(*arguments: str) -> list[float]:
        assert replayed("--seeds", "2", "--processes", "1", "--policy", "zeus", "--json", *arguments) == 0
        return [row["regret"] for row in rows(capsys)]

    still = regrets("--recurrences", "12")
    for change in (("--eta", "1"), ("--noise",), ("--drift",), ("--concurrency", "4"), ("--beta", "1.2")):
        assert regrets("--recurrences", "12", *change) != still, change


def test_people_get_tables_a_mean_and_a_plot(capsys: pytest.CaptureFixture[str]) -> None:
    assert replayed(*QUICK, "--policy", "zeus", "oracle") == 0
    text = capsys.readouterr().out
    for word in (*NAMES, "mean of 3 workloads", "oracle", "(regret)"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_page_has_every_workload_and_asks_no_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert replayed(*QUICK, "--policy", "zeus", "--html", page, "--json") == 0
    captured = capsys.readouterr()
    assert captured.err.strip() == page.as_uri()
    assert json.loads(captured.out)
    text = page.read_text(encoding="utf-8")
    assert all(name in text for name in NAMES)
    assert "<script src=" not in text


def test_every_fault_of_the_arguments_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        replayed(
            "--train", "x.csv", "--eta", "nan", "--beta", "1", "--noise", "2", "--seeds", "0", "--concurrency", "0"
        )
    assert caught.value.faults == [
        "--train without --power: name both files, or neither for the included jobs",
        "--eta nan: must be from 0 (only time counts) to 1 (only energy counts)",
        "--beta 1: must be finite and above 1",
        "--noise 2: must be from 0 to 1",
        "--seeds 0: must be from 1 to 1,000",
        "--concurrency 0: must be at least 1",
    ]


def test_a_page_that_cannot_be_written_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--html"):
        replayed(*QUICK, "--policy", "oracle", "--json", "--html", tmp_path / "no" / "page.html")


@pytest.mark.live
def test_processes_of_their_own_find_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for n_processes in ("1", "2"):
        assert (
            replayed("--seeds", "2", "--recurrences", "4", "--policy", "zeus", "--json", "--processes", n_processes)
            == 0
        )
        found.append(rows(capsys))
    assert found[0] == found[1]


@pytest.mark.live
def test_stopped_on_request_it_ends_at_once_with_0_whatever_its_processes_are_at() -> None:
    command = [sys.executable, "-m", "controller", "replay", "batch-size", "--seeds", "1000", "--processes", "2"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as replaying:
        try:
            wait_until(lambda: len(workers(replaying.pid)) == 2, timeout_s=60.0)
            found = workers(replaying.pid)
            os.killpg(replaying.pid, signal.SIGINT)  # as a terminal does: the processes of its own hear it, too
            stdout, stderr = replaying.communicate(timeout=20)
        finally:
            replaying.kill()
    assert (replaying.returncode, stdout, stderr) == (0, "stopped on request\n", "")
    assert [worker for worker in found if cmdline(worker)] == []


def workers(pid: int) -> list[str]:
    """Return the processes that do the work of a replay; one more keeps track of what they share."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    return [child for child in children if "spawn_main" in cmdline(child)]


def cmdline(pid: str) -> str:
    """Return what a process was started as; nothing where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):  # the second where it ends while it is read
        return ""
