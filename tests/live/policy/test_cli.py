"""`gridchase policy` on a real database: what was learned is listed, shown, moved and forgotten; and it serves."""

import asyncio
import json
import os
import pty
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from controller.cli.main import main
from gridchase import Publisher
from policies.service.config import LearningConfig
from policies.service.records import Result
from policies.service.store.store import open_store
from publishers.messages.topics import RunKey
from tests.fakes import USER
from tests.live.conftest import free_port, wait_until
from tests.policies.service.repositories import Repositories

pytestmark = pytest.mark.live
GRIDCHASE = (sys.executable, "-m", "controller")
EPOCHS = {16: 20, 32: 12, 64: 30}
ENERGY_J, DURATION_S = 900.0, 5.0


async def _learn(state_dir: Path, job: str, n_runs: int, *, user: str = USER) -> None:
    async with open_store(f"sqlite:///{state_dir / 'policy.sqlite'}", timeout_s=10.0) as store:
        db = Repositories(store, LearningConfig())
        for number in range(n_runs):
            now_s = 1_780_000_000.0 + 3_600 * number
            run = RunKey(user, job, f"run-{number}")
            trial = await db.trials.get_or_create(run, batch_sizes=list(EPOCHS), default_batch_size=64, now_s=now_s)
            epochs = EPOCHS[trial.batch_size]
            result = Result(
                outcome="reached",
                epochs=epochs,
                reached_epochs=epochs,
                energy_j=ENERGY_J * epochs,
                duration_s=DURATION_S * epochs,
                max_power_w=250.0,
            )
            await db.trials.report(run, result, now_s=now_s + 60)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the database of a service that knows two jobs."""
    state_dir = tmp_path_factory.mktemp("learned")
    asyncio.run(_learn(state_dir, "resnet50", 4))
    asyncio.run(_learn(state_dir, "bert", 1))
    return state_dir / "policy.sqlite"


@pytest.fixture
def learned(database: Path, tmp_path: Path) -> Path:
    """Return a state directory with a copy of it."""
    shutil.copy(database, tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], state_dir: Path, *arguments: str) -> tuple[int, str, str]:
    """Return the exit code of `gridchase policy …`, and what it printed on both channels."""
    capsys.readouterr()
    code = main(["policy", *arguments, "--state-dir", str(state_dir)])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_the_jobs_are_listed_for_people_and_for_scripts(learned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, learned, "jobs")
    assert (code, err) == (0, "")
    assert [line.split()[:3] for line in out.splitlines()[2:]] == [
        ["alice/bert", "1", "1"],
        ["alice/resnet50", "4", "4"],
    ]
    found = json.loads(run(capsys, learned, "jobs", "--json")[1])
    assert {job["name"]: job["n_ended"] for job in found} == {"bert": 1, "resnet50": 4}


def test_a_job_is_shown_with_its_posterior_what_is_next_and_its_runs(
    learned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, learned, "show", "resnet50")
    assert (code, err) == (0, "")
    assert "alice/resnet50: 4 runs have ended; policy gridchase" in out
    assert "Next: " in out
    assert "default_first" in out
    found = json.loads(run(capsys, learned, "show", "resnet50", "--json")[1])
    assert [trial["run"] for trial in found["trials"]] == [f"run-{number}" for number in range(4)]
    cost = 0.5 * ENERGY_J * EPOCHS[64] + 0.5 * 250.0 * DURATION_S * EPOCHS[64]
    assert found["trials"][0]["cost"] == pytest.approx(cost)
    assert found["posterior"]["next"]["batch_size"] in EPOCHS


def test_the_page_is_written_beside_and_its_address_told(learned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = learned / "page.html"
    code, out, _ = run(capsys, learned, "show", "resnet50", "--html", str(page))
    assert code == 0
    assert out.strip() == page.as_uri()
    assert "resnet50" in page.read_text(encoding="utf-8")
    code, out, _ = run(capsys, learned, "show", "resnet50", "--json", "--html", str(page))
    assert json.loads(out)["job"]["name"] == "resnet50"


@pytest.mark.parametrize("verb", ["show", "export", "forget"])
def test_an_unknown_job_ends_with_1_and_the_names_that_look_like_it(
    verb: str, learned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--yes"] if verb == "forget" else []
    code, out, err = run(capsys, learned, verb, "resnet", *more)
    assert (code, out) == (1, "")
    assert "resnet" in err
    assert "did you mean alice/resnet50?" in err
    assert "`gridchase policy jobs` lists" in run(capsys, learned, verb, "zzz", *more)[2]


def test_a_name_alone_is_ones_own_job_or_the_only_one_of_that_name(
    learned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for user in ("bob", "carol"):
        asyncio.run(_learn(learned, "bert", 2, user=user))
    asyncio.run(_learn(learned, "t5", 1, user="bob"))
    assert "alice/bert: 1 run has ended" in run(capsys, learned, "show", "bert")[1]
    assert "carol/bert: 2 runs have ended" in run(capsys, learned, "show", "carol/bert")[1]
    assert "bob/t5: 1 run has ended" in run(capsys, learned, "show", "t5")[1]
    assert run(capsys, learned, "forget", "bert", "--yes")[1] == "alice/bert was deleted\n"
    code, _, err = run(capsys, learned, "forget", "bert", "--yes")
    assert (code, "bert: say whose: bob/bert or carol/bert" in err) == (2, True)


def test_a_job_of_before_users_is_given_to_one(
    learned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(_learn(learned, "old", 3, user="was nobody"))
    with closing(sqlite3.connect(learned / "policy.sqlite")) as database, database:
        for table in ("jobs", "trials"):
            database.execute(f"UPDATE {table} SET username = '' WHERE username = 'was nobody'")  # noqa: S608
    assert "no run learns from it: gridchase policy export /JOB |" in run(capsys, learned, "jobs")[1]
    file = tmp_path / "old.json"
    run(capsys, learned, "export", "/old", "--out", str(file))
    code, _, err = run(capsys, learned, "import", str(file))
    assert (code, "job /old: user = ''" in err) == (2, True)
    assert run(capsys, learned, "import", str(file), "--user", "bob")[1].startswith("1 jobs and 3 runs imported")
    assert "bob/old: 3 runs have ended" in run(capsys, learned, "show", "bob/old")[1]


def test_what_is_exported_can_be_recorded_elsewhere_once(
    learned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = tmp_path / "jobs.json", tmp_path / "other"
    assert run(capsys, learned, "export", "--out", str(file)) == (0, f"{file}: 2 jobs, 5 runs\n", "")
    code, out, _ = run(capsys, other, "import", str(file))
    assert code == 0
    assert out.startswith("2 jobs and 5 runs imported; 0 jobs and 0 runs existed")
    assert run(capsys, other, "import", str(file))[1].startswith("0 jobs and 0 runs imported; 2 jobs and 5 runs")
    assert json.loads(run(capsys, other, "show", "resnet50", "--json")[1]) == json.loads(
        run(capsys, learned, "show", "resnet50", "--json")[1]
    )


def test_one_job_is_exported_to_standard_output(learned: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["policy", "export", "bert", "--state-dir", str(learned)]) == 0
    (found,) = json.loads(capfdbinary.readouterr().out)
    assert found["job"]["name"] == "bert"
    assert len(found["trials"]) == 1


@pytest.mark.parametrize("document", ["", "{", '[{"job": 1}]', '[{"version": 3}]'])
def test_a_file_that_is_no_export_ends_with_2_and_says_where(
    document: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.json").write_text(document)
    code, _, err = run(capsys, tmp_path, "import", str(tmp_path / "x.json"))
    assert code == 2
    assert "x.json: " in err
    assert "gridchase policy export" in err
    assert not (tmp_path / "policy.sqlite").exists()
    assert run(capsys, tmp_path, "import", str(tmp_path / "none.json"))[0] == 2


def test_a_file_that_cannot_be_written_ends_with_1_and_leaves_nothing(
    learned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, learned, "export", "--out", str(learned / "absent" / "jobs.json"))
    assert code == 1
    assert "cannot be written: No such file" in err


def test_a_job_is_forgotten_only_when_it_is_meant(learned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, learned, "forget", "bert")
    assert code == 2, "there is nobody to be asked"
    assert "--yes" in err
    assert run(capsys, learned, "forget", "bert", "--yes") == (0, "alice/bert was deleted\n", "")
    assert [job["name"] for job in json.loads(run(capsys, learned, "jobs", "--json")[1])] == ["resnet50"]


@pytest.mark.parametrize(("answer", "is_forgotten"), [(b"y\n", True), (b"\n", False), (b"n\n", False)])
def test_on_a_terminal_forgetting_asks_first(answer: bytes, is_forgotten: bool, learned: Path) -> None:
    terminal, side = pty.openpty()
    os.write(terminal, answer)
    done = subprocess.run(
        [*GRIDCHASE, "policy", "forget", "bert", "--state-dir", str(learned)],
        stdin=side,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    os.close(terminal)
    os.close(side)
    assert done.returncode == 0, done.stderr
    assert "Delete alice/bert and all that was learned from its runs (1 run has ended)?" in done.stdout
    assert done.stdout.rstrip().endswith("bert was deleted" if is_forgotten else "nothing was deleted")


@pytest.mark.parametrize(
    "arguments", [("jobs",), ("jobs", "--json"), ("show",), ("show", "--json"), ("forget", "--yes")]
)
def test_a_name_that_somebody_has_put_into_the_database_cannot_act_on_the_terminal(
    arguments: tuple[str, ...], learned: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    evil = "a\x1b[2J\nnothing\x9b\u202e"
    with closing(sqlite3.connect(learned / "policy.sqlite")) as database, database:
        database.execute("UPDATE jobs SET name = ? WHERE name = 'bert'", (evil,))
        database.execute("UPDATE trials SET job = ?, run = ? WHERE job = 'bert'", (evil, evil))
    name = () if arguments[0] == "jobs" else (evil,)
    assert main(["policy", *arguments, *name, "--state-dir", str(learned)]) == 0
    shown = capfdbinary.readouterr()
    assert all(line.isprintable() for line in (shown.out + shown.err).decode().split("\n"))
    assert rb"\x1b[2J" in shown.out or rb"\u001b[2J" in shown.out


def test_where_no_service_has_run_the_database_is_not_made_by_looking(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, tmp_path, "jobs")
    assert code == 1
    assert f"{tmp_path / 'policy.sqlite'}: there is no database" in err
    code, _, err = run(capsys, tmp_path / ("x" * 300), "jobs")
    assert (code, err.endswith("/policy.sqlite: File name too long; run this as the user of the service\n")) == (
        1,
        True,
    )
    assert list(tmp_path.iterdir()) == []


def test_the_configuration_may_stand_before_and_after_the_word(
    learned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    eta = ["--set", "learning.eta=1"]
    for arguments in ([*eta, "show", "resnet50", "--json"], ["show", "resnet50", "--json", *eta]):
        assert json.loads(run(capsys, learned, *arguments)[1])["posterior"]["eta"] == 1
    code, _, err = run(capsys, learned, "--set", "learning.eta=7", "jobs", "--set", "http.port=x")
    assert code == 2
    assert "learning.eta = 7" in err
    assert "http.port = 'x'" in err


@contextmanager
def started(*arguments: str) -> Iterator[tuple["subprocess.Popen[str]", Callable[[str], bool]]]:
    """Run `gridchase`; yield it, and what tells whether it has printed something."""
    with subprocess.Popen([*GRIDCHASE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as it:
        lines: list[str] = []

        def read() -> None:
            lines.extend(iter(it.stdout.readline, "") if it.stdout else ())

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield it, lambda text: any(text in line for line in lines)
        finally:
            it.kill()
            reader.join()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_it_serves_until_it_is_stopped_and_ends_with_0(number: signal.Signals, learned: Path) -> None:
    port = free_port()
    settings = ["--set", "bus.url=", "--set", f"http.port={port}", "--state-dir", str(learned)]
    with started("policy", *settings) as (process, has_said):
        wait_until(lambda: has_said(f"http://127.0.0.1:{port}"), timeout_s=30)
        process.send_signal(number)
        assert process.wait(timeout=30) == 0
        assert not has_said("Traceback")
        assert not has_said("alembic")


def _forget_over_http(port: int, token: str) -> tuple[int, str]:
    """Ask a service to delete a job; return the status and the body of its answer."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = Request(f"http://127.0.0.1:{port}/v1/jobs/alice/bert", method="DELETE", headers=headers)
    try:
        with urlopen(request, timeout=10.0) as answer:  # noqa: S310 — an address of our own
            return int(answer.status), answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_its_own_token_is_printed_to_whoever_may_read_it_and_lets_him_write(
    learned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, learned, "token")
    assert (code, "http.token: no such file" in err) == (1, True)
    port = free_port()
    settings = ["--set", "bus.url=", "--set", f"http.port={port}", "--state-dir", str(learned)]
    with started("policy", *settings) as (process, has_said):
        wait_until(lambda: has_said(f"http://127.0.0.1:{port}"), timeout_s=30)
        status, body = _forget_over_http(port, "")
        assert (status, f"{learned}/http.token holds one" in body) == (401, True)
        code, out, _ = run(capsys, learned, "token")
        assert (code, _forget_over_http(port, out.strip())[0]) == (0, 204)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
        assert not has_said(out.strip())


@contextmanager
def taken_port() -> Iterator[int]:
    """Hold a port."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield int(holder.getsockname()[1])


def test_up_answers_requests_for_batch_sizes_also_where_the_http_port_is_taken(tmp_path: Path) -> None:
    bus_port = free_port()
    broker = f"mqtt://127.0.0.1:{bus_port}"
    keys = (f"bus.url={broker}", "gpu.backend=simulation", "http.port=-1", f"node.state_dir={tmp_path}")
    settings = [word for key in keys for word in ("--set", key)]
    with taken_port() as http_port:
        file = tmp_path / "policy.toml"
        file.write_text(f"[http]\nport = {http_port}\n")
        with started("up", "--no-web", *settings, "--policy-config", str(file)) as (process, has_said):
            wait_until(lambda: has_said("policy service: "), timeout_s=30)
            assert has_said(f"no HTTP: 127.0.0.1:{http_port} is not available")
            with Publisher(job="up", run="first", broker=broker, rank=0, world_size=1) as publisher:
                assert publisher.batch_size([16, 32], default=32, timeout_s=30.0) == 32
                assert publisher.trial is not None
                assert publisher.trial.reason == "default_first"
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 0
    assert (tmp_path / "policy" / "policy.sqlite").exists()


def test_up_can_do_without_the_policy_service(tmp_path: Path) -> None:
    keys = (f"bus.url=mqtt://127.0.0.1:{free_port()}", "gpu.backend=simulation", "http.port=-1")
    settings = [word for key in (*keys, f"node.state_dir={tmp_path}") for word in ("--set", key)]
    with started("up", "--no-policy", "--no-web", *settings) as (process, has_said):
        wait_until(lambda: has_said("connected to the broker"), timeout_s=30)
        assert not has_said("policy service")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    assert not (tmp_path / "policy").exists()


def test_up_goes_on_without_a_policy_service_that_cannot_start(tmp_path: Path) -> None:
    keys = (f"bus.url=mqtt://127.0.0.1:{free_port()}", "gpu.backend=simulation", "http.port=-1")
    settings = [word for key in (*keys, f"node.state_dir={tmp_path}") for word in ("--set", key)]
    (tmp_path / "policy.toml").write_text('[store]\nurl = "sqlite:////proc/nowhere/policy.sqlite"\n[http]\nport = -1\n')
    with started("up", "--no-web", *settings, "--policy-config", str(tmp_path / "policy.toml")) as (process, has_said):
        wait_until(lambda: has_said("connected to the broker"), timeout_s=30)
        wait_until(lambda: has_said("/proc/nowhere"), timeout_s=30)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
        assert not has_said("Traceback")
