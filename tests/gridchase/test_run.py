"""`gridchase run` becomes the command: exit codes, signals, process id; a Python that trains nothing is left alone."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gridchase.cli.run import environment, job_of
from gridchase.cli.run_watcher import wait_status, watched
from publishers.messages.topics import is_name
from tests.live.conftest import wait_until

ROOT = Path(__file__).parents[2]
RUN = [sys.executable, "-m", "gridchase", "run"]
NEW_KERNEL = pytest.mark.skipif(
    tuple(int(part) for part in os.uname().release.split(".")[:2]) < (6, 15), reason="who waits first learns it"
)
TELL = """
import json, os, sys
print(json.dumps({
    "argv": sys.argv, "pid": os.getpid(), "ours": [name for name in sys.modules if name.startswith("publishers")],
    "path": [entry for entry in sys.path if "bootstrap" in entry], "job": os.environ["GRIDCHASE_JOB"],
    "other": [name for name in sys.modules if name == "sitecustomize"], "mark": getattr(sys, "mark", None),
}))
"""


def start(*words: str, **variables: str) -> "subprocess.Popen[str]":
    """Start `gridchase run` with these words."""
    path = os.pathsep.join(filter(None, [variables.pop("PYTHONPATH", ""), str(ROOT)]))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GRIDCHASE_")}
    return subprocess.Popen(
        [*RUN, *words],
        env={**inherited, **variables, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def told(*words: str, **variables: str) -> tuple[int, dict[str, Any]]:
    """Return the process id of `gridchase run`, and what the script below it tells of itself."""
    child = start(*words, **variables)
    stdout, stderr = child.communicate(timeout=60.0)
    assert child.returncode == 0
    assert stderr.startswith("gridchase run: nothing was published")
    return child.pid, json.loads(stdout)


@pytest.mark.live
def test_the_command_takes_the_place_of_the_process_with_its_own_arguments(tmp_path: Path) -> None:
    script = tmp_path / "train_net.py"
    script.write_text(TELL)
    pid, account = told("--", sys.executable, str(script), "--lr", "0.1", "--", "x")
    assert account["pid"] == pid
    assert account["argv"] == [str(script), "--lr", "0.1", "--", "x"]
    assert account["job"] == "train_net"


@pytest.mark.live
def test_a_python_that_trains_nothing_imports_nothing_of_ours(tmp_path: Path) -> None:
    (tmp_path / "tell.py").write_text(TELL)
    _, account = told("--job", "night", sys.executable, "-m", "tell", PYTHONPATH=str(tmp_path))
    assert (account["ours"], account["path"], account["job"]) == ([], [], "night")


@pytest.mark.live
def test_another_sitecustomize_is_run_as_well(tmp_path: Path) -> None:
    (tmp_path / "tell.py").write_text(TELL)
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.mark = __file__")
    _, account = told(sys.executable, "-m", "tell", PYTHONPATH=str(tmp_path))
    assert account["mark"] == str(tmp_path / "sitecustomize.py")


@pytest.mark.live
@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        ([sys.executable, "-c", "raise SystemExit(7)"], 7, ""),
        (["sh", "-c", "kill -TERM $$"], -signal.SIGTERM, ""),
        (["no-such-program"], 127, "gridchase run: no-such-program: not found\n"),
        ([str(Path(__file__).parent)], 126, f"gridchase run: {Path(__file__).parent}: Permission denied\n"),
        (["--job", "a b", "true"], 2, "--job 'a b': must be 1 to 64 of A-Z a-z 0-9 . _ -\n"),
        ([], 2, "the command is missing: gridchase run -- python train.py\n"),
    ],
)
def test_the_exit_code_is_that_of_the_command(words: Sequence[str], code: int, line: str) -> None:
    child = start(*words)
    _, stderr = child.communicate(timeout=60.0)
    assert child.returncode == code
    assert stderr.endswith(line)


@pytest.fixture
def framework(tmp_path: Path) -> Path:
    """Return a folder with a module that is called like PyTorch's optimizers, and makes a step."""
    folder = tmp_path / "torch" / "optim"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent):
        (package / "__init__.py").touch()
    (folder / "optimizer.py").write_text("hooks = []\nregister_optimizer_step_pre_hook = hooks.append\n")
    return tmp_path


IMPORT = "import torch.optim.optimizer as o"


@pytest.mark.live
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["sh", "-c", "exit 0"], "no Python ran with the PYTHONPATH that it sets (append to that: "),
        (["env", "PYTHONPATH=/src", sys.executable, "-c", "exit(0)"], "no Python ran with the PYTHONPATH"),
        (["env", "-i", sys.executable, "-c", "exit(0)"], "no Python ran with the PYTHONPATH"),
        ([sys.executable, "-c", "exit(0)"], "no framework that it knows was imported (PyTorch, "),
        ([sys.executable, "-c", f"{IMPORT}; exit(0)"], "no PyTorch optimizer made a step and no `fit()` "),
        (["sh", "-c", f"{sys.executable} -c '{IMPORT}'; exit 0"], "no PyTorch optimizer made a step"),
    ],
)
def test_where_no_run_began_the_last_line_says_why_that_may_be(words: Sequence[str], why: str, framework: Path) -> None:
    child = start("--job", "toy", *words, PYTHONPATH=str(framework))
    _, stderr = child.communicate(timeout=60.0)
    assert child.returncode == 0
    assert stderr.startswith(
        f"gridchase run: nothing was published, as no process of this machine was seen to begin a run: {why}"
    )
    assert stderr.endswith('publish_iterations(loader, job="toy") around the data loader\n')
    assert stderr.count("\n") == 1


@pytest.mark.live
@pytest.mark.parametrize(
    "words",
    [
        [sys.executable, "-c", "1 / 0"],
        pytest.param(["sh", "-c", "exit 3"], marks=NEW_KERNEL),
        pytest.param([sys.executable, "-c", "exit(2)"], marks=NEW_KERNEL),
        pytest.param(["sh", "-c", "kill -9 $$"], marks=NEW_KERNEL),
    ],
    ids=["an exception", "a code", "a code of Python", "a signal"],
)
def test_of_a_command_that_has_failed_nothing_is_said(words: Sequence[str]) -> None:
    child = start("--job", "toy", *words)
    _, stderr = child.communicate(timeout=60.0)
    assert child.returncode
    assert "gridchase run: " not in stderr


@pytest.mark.live
def test_where_the_file_of_marks_has_gone_nothing_is_said(tmp_path: Path) -> None:
    script = "import os; os.remove(os.environ['GRIDCHASE_MARKS_FILE'])"
    _, stderr = start(sys.executable, "-c", script, TMPDIR=str(tmp_path)).communicate(timeout=60.0)
    assert stderr == ""


@pytest.mark.live
def test_where_a_process_cannot_reach_the_file_of_marks_nothing_is_said() -> None:
    script = "import os, sys; os.environ['GRIDCHASE_MARKS_FILE'] = '/nowhere' + os.environ['GRIDCHASE_MARKS_FILE']"
    child = start(sys.executable, "-c", f"{script}; os.execv(sys.executable, [sys.executable, '-c', ''])")
    _, stderr = child.communicate(timeout=60.0)
    assert (child.returncode, stderr) == (0, "")


@pytest.mark.parametrize(("command", "status"), [("exit 3", 3 << 8), ("exit 0", 0), ("kill -9 $$", signal.SIGKILL)])
def test_how_a_process_has_ended_is_seen_by_who_is_not_its_parent(command: str, status: int) -> None:
    child = subprocess.Popen(["sh", "-c", f"{command}"])
    pidfd = os.pidfd_open(child.pid)
    try:
        assert select.select([pidfd], [], [], 60.0)[0]
        assert wait_status(pidfd, child.pid) == status
        child.wait()
        assert wait_status(pidfd, child.pid) in {status, None}
    finally:
        os.close(pidfd)


@pytest.mark.live
def test_where_a_run_began_nothing_is_said_and_the_command_has_no_child_of_ours(framework: Path) -> None:
    script = f"{IMPORT}; o.hooks[0](); import os; os.wait()"
    child = start("--broker", "mqtt://127.0.0.1:9", sys.executable, "-c", script, PYTHONPATH=str(framework))
    _, stderr = child.communicate(timeout=60.0)
    assert "ChildProcessError" in stderr
    assert "gridchase run: " not in stderr


@pytest.mark.live
@pytest.mark.parametrize("variables", [{"GRIDCHASE_QUIET": "1"}, {"GRIDCHASE_DISABLED": "1"}, {"LOCAL_RANK": "1"}])
def test_who_wants_no_line_and_another_rank_of_the_node_get_none(variables: dict[str, str]) -> None:
    assert start("sh", "-c", "exit 0", **variables).communicate(timeout=60.0) == ("", "")


@pytest.mark.live
def test_of_one_below_another_only_the_outer_speaks_and_no_file_is_left(tmp_path: Path) -> None:
    _, stderr = start(*RUN, "sh", "-c", "exit 0", TMPDIR=str(tmp_path)).communicate(timeout=60.0)
    assert stderr.count("gridchase run: ") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.live
def test_a_command_whose_streams_are_closed_runs_as_without_us(tmp_path: Path) -> None:
    command = f"for fd in 0 1 2; do [ -e /proc/$$/fd/$fd ] && exit 4; done; : >{tmp_path}/trained; exit 3"
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *RUN, "sh", "-c", command]
    assert subprocess.run(closed, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False, timeout=60).returncode == 3
    assert (tmp_path / "trained").exists()


@pytest.mark.live
def test_with_stdin_closed_a_run_that_began_is_seen_to_begin(framework: Path) -> None:
    script = f"{IMPORT}; o.hooks[0]()"
    child = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *RUN, "--broker", "mqtt://127.0.0.1:9", sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": f"{framework}{os.pathsep}{ROOT}"},
        stderr=subprocess.PIPE,
        check=True,
        timeout=60,
    )
    assert b"gridchase run: " not in child.stderr


@pytest.mark.live
def test_a_signal_reaches_the_command_itself(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"import pathlib, signal; pathlib.Path({str(ready)!r}).touch(); signal.pause()"
    child = start(sys.executable, "-c", script)
    wait_until(ready.exists, timeout_s=60.0)
    child.send_signal(signal.SIGINT)
    _, stderr = child.communicate(timeout=60.0)
    assert child.returncode == -signal.SIGINT
    assert stderr.endswith("KeyboardInterrupt\n")


@pytest.mark.live
def test_a_pipe_that_is_closed_ends_the_command_as_without_us() -> None:
    child = start("sh", "-c", "yes | head -1 >/dev/null; grep SigIgn /proc/self/status")
    stdout, _ = child.communicate(timeout=60.0)
    assert int(stdout.split()[1], 16) & (1 << (signal.SIGPIPE - 1)) == 0


@pytest.mark.live
def test_where_gridchase_is_not_installed_the_training_is_told_so_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "torch" / "optim").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "optim" / "__init__.py").touch()
    (tmp_path / "torch" / "optim" / "optimizer.py").write_text("trained = True\n")
    script = "import sys; sys.modules['publishers'] = None; import torch.optim.optimizer as o; print(o.trained)"
    child = start(sys.executable, "-c", script, PYTHONPATH=str(tmp_path))
    stdout, stderr = child.communicate(timeout=60.0)
    assert (child.returncode, stdout) == (0, "True\n")
    assert stderr.startswith(f"gridchase: what {sys.executable} trains is not published: ModuleNotFoundError: ")
    assert stderr.count("\n") == 2


@pytest.mark.parametrize(
    ("line", "job"),
    [
        ("python train.py", "train"),
        ("python -u src/train_resnet.py --config a.py", "train_resnet"),
        ("python -m vision.train --config configs/a.py", "vision.train"),
        ("torchrun --nproc-per-node=2 train.py", "train"),
        ("torchrun --nproc-per-node=2 -m pkg.train", "pkg.train"),
        ("python -m torch.distributed.run --standalone train.py", "train"),
        ("accelerate launch --num_processes 2 my.train.py", "my.train"),
        ("sh jobs/night.sh", "night"),
        ("./ein-Ünding.py", "ein--nding"),
        ("/usr/bin/my-trainer --fast", "my-trainer"),
        ("env A=1 python train.py", "train"),
        ("€", "training"),
        (f"python {'x' * 80}.py", "x" * 64),
    ],
)
def test_a_job_is_called_like_its_script(line: str, job: str) -> None:
    assert job_of(line.split(" ")) == job
    assert is_name(job)


def test_each_launch_has_an_id_of_its_own() -> None:
    ids = [environment(["train.py"], {"GRIDCHASE_LAUNCH": "outer"}, {})["GRIDCHASE_LAUNCH"] for _ in range(2)]
    assert len({"outer", *ids}) == 3
    assert all(map(is_name, ids))


def test_what_is_given_counts_more_than_the_environment() -> None:
    environ = {"GRIDCHASE_JOB": "mine", "GRIDCHASE_BROKER": "mqtt://a", "PYTHONPATH": "/here"}
    assert environment(["train.py"], environ, {})["GRIDCHASE_JOB"] == "mine"
    ours = environment(["train.py"], environ, {"job": "other", "broker": "mqtt://b", "root": None})
    assert (ours["GRIDCHASE_JOB"], ours["GRIDCHASE_BROKER"]) == ("other", "mqtt://b")
    assert "GRIDCHASE_ROOT" not in ours
    folder, rest = ours["PYTHONPATH"].split(os.pathsep)
    assert Path(folder, "sitecustomize.py").is_file()
    assert rest == "/here"


@pytest.mark.live
def test_a_command_runs_where_its_parent_ignores_the_end_of_children() -> None:
    """As supervisors do, and `trap '' CHLD` in a shell: nothing is left to wait for."""
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    child = subprocess.run(
        [sys.executable, "-c", ignoring, *RUN, "sh", "-c", "echo trained; exit 3"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60.0,
        check=False,
    )
    assert (child.returncode, child.stdout) == (3, "trained\n"), child.stderr


def test_where_no_process_may_be_started_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fork() -> int:
        raise BlockingIOError("as many as there may be")

    monkeypatch.setattr(os, "fork", fork)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert watched({"HOME": "/"}, "toy") == {"HOME": "/"}
    assert list(tmp_path.iterdir()) == []
