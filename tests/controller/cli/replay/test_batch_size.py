"""`gridchase replay batch-size`: rows for scripts, tables for people, a page, and every fault of the arguments."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from controller.demo.recurrences.trace_files import INCLUDED
from controller.errors import ConfigError
from policies.replay.batch_size.evaluation import POLICIES
from tests.controller.cli.replay.command_line import json_rows, replay
from tests.live.conftest import wait_until

QUICK = ("batch-size", "--seeds", "1", "--recurrences", "4", "--processes", "1")
NAMES = ["cifar100/shufflenetv2@v100", "librispeech/deepspeech2@v100", "movielens-1m/ncf@v100"]


def test_a_row_for_each_policy_on_each_workload(capsys: pytest.CaptureFixture[str]) -> None:
    files = ("--train", INCLUDED / "train.csv", "--power", INCLUDED / "v100.csv")
    found = json_rows(capsys, *QUICK, *files, "--eta", "0.5")
    assert [(row["workload"], row["policy"]) for row in found] == [(job, name) for job in NAMES for name in POLICIES]
    for row in found:
        assert {"regret", "energy_ratio", "duration_ratio", "n_seeds", "n_recurrences"} <= row.keys()
    oracle = next(row for row in found if row["policy"] == "oracle")
    default = next(row for row in found if row["policy"] == "default")
    assert abs(oracle["regret"]) < 1 < default["regret"]
    assert oracle["energy_ratio"] < 0.4
    assert default["energy_ratio"] == pytest.approx(1.0, abs=0.2)


def test_without_files_the_included_jobs_are_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert [row["workload"] for row in json_rows(capsys, *QUICK, "--policy", "oracle")] == NAMES


def test_each_condition_changes_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    def regrets(*arguments: str) -> list[float]:
        simulated = json_rows(capsys, "batch-size", "--seeds", "2", "--processes", "1", "--policy", "zeus", *arguments)
        return [row["regret"] for row in simulated]

    still = regrets("--recurrences", "12")
    for change in (("--eta", "1"), ("--noise",), ("--drift",), ("--concurrency", "4"), ("--beta", "1.2")):
        assert regrets("--recurrences", "12", *change) != still, change


def test_the_terminal_shows_tables_a_mean_and_a_plot(capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(*QUICK, "--policy", "zeus", "oracle") == 0
    text = capsys.readouterr().out
    for word in (*NAMES, "mean of 3 workloads", "oracle", "(regret)"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_page_has_every_workload_and_asks_no_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert replay(*QUICK, "--policy", "zeus", "--html", page, "--json") == 0
    captured = capsys.readouterr()
    assert captured.err.strip() == page.as_uri()
    assert json.loads(captured.out)
    text = page.read_text(encoding="utf-8")
    assert all(name in text for name in NAMES)
    assert "<script" not in text


def test_all_faults_of_the_arguments_are_reported() -> None:
    with pytest.raises(ConfigError) as caught:
        replay(
            "batch-size",
            "--train",
            "x.csv",
            "--eta",
            "nan",
            "--beta",
            "1",
            "--noise",
            "2",
            "--seeds",
            "1234567",
            "--concurrency",
            "0",
        )
    assert caught.value.faults == [
        "--train without --power: name both files, or neither for the included jobs",
        "--eta nan: must be from 0 (only time counts) to 1 (only energy counts)",
        "--beta 1: must be finite and above 1",
        "--noise 2: must be from 0 to 1",
        "--seeds 1234567: must be from 1 to 1,000",
        "--concurrency 0: must be at least 1",
    ]


@pytest.mark.live
def test_ctrl_c_ends_it_and_its_processes_at_once_with_0() -> None:
    command = [sys.executable, "-m", "controller", "replay", "batch-size", "--seeds", "1000", "--processes", "2"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as replaying:
        try:
            wait_until(lambda: len(workers(replaying.pid)) == 2, timeout_s=60.0)
            found = workers(replaying.pid)
            os.killpg(replaying.pid, signal.SIGINT)  # as a terminal does: its processes get it, too
            stdout, stderr = replaying.communicate(timeout=20)
        finally:
            replaying.kill()
    assert (replaying.returncode, stdout, stderr) == (0, "stopped on request\n", "")
    assert [worker for worker in found if cmdline(worker)] == []


def workers(pid: int) -> list[str]:
    """Return the worker processes of a replay; one more tracks their shared resources."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    return [child for child in children if "spawn_main" in cmdline(child)]


def cmdline(pid: str) -> str:
    """Return the command line of a process; "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):  # the second if it ends during the read
        return ""
