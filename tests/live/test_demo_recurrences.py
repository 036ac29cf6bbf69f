"""The demo of recurrences, whole: a real broker, publisher, policy service and database; what is learned is checked."""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from controller.cli.policy.terminal import print_learned
from controller.demo.recurrences.demo import RecurrenceOptions, main_recurrences
from controller.errors import ConfigError
from policies.service.bus.subscriber import EventSubscriber

pytestmark = pytest.mark.live


def run(options: RecurrenceOptions) -> int:
    """Return the exit code of the demo."""
    return main_recurrences(options, show_learned=print_learned)


def test_a_recurring_job_learns_and_the_table_the_posterior_and_the_result_agree(
    tmp_path: Path, temporary: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "result.json"
    assert run(RecurrenceOptions(n_recurrences=8, workload="cifar100", seed=1, json_path=path)) == 0
    said = capfd.readouterr()
    result = json.loads(path.read_text())

    runs = result["runs"]
    assert (runs[0]["batch_size"], runs[0]["reason"]) == (1024, "default_first")
    assert [each["recurrence"] for each in runs if each["reached"]] == list(range(8))
    assert all(each["stop_reason"] for each in runs if each["reached"]), "the publisher says why it ended"
    assert result["energy_saved_ratio"] > 0.1
    assert result["last_energy_saved_ratio"] > result["energy_saved_ratio"]
    assert len(result["regret"]) == 8
    costs = sum(each["cost"] for each in runs)
    assert result["cost"] == pytest.approx(costs)
    best_cost = runs[0]["cost"] / runs[0]["cost_ratio"]
    assert result["regret"][-1] == pytest.approx(costs / best_cost - 8)

    posterior = result["posterior"]
    assert posterior["n_observations"] == len(runs), "the service has taken in every run"
    seen = {belief["batch_size"]: belief for belief in posterior["beliefs"]}
    for each in runs:
        belief = seen[each["batch_size"]]
        assert belief["n_reached"] + belief["n_stopped"] > 0
        assert belief["epoch_cost"] == pytest.approx(each["cost"] / each["epochs"]), "as the traces have it"
    assert seen[1024]["epochs_lower"] <= runs[0]["epochs"] <= seen[1024]["epochs_upper"]

    for part in ("default_first", "8 runs have ended" if len(runs) == 8 else "runs have ended", "Regret: ", "Zeus"):
        assert part in said.out
    assert said.err == ""
    assert list(temporary.iterdir()) == []


def test_the_service_stops_a_run_over_its_bound_and_the_recurrence_is_repeated(
    tmp_path: Path,
) -> None:
    path = tmp_path / "result.json"
    options = RecurrenceOptions(n_recurrences=7, workload="cifar100", policy="zeus", seed=2, json_path=path)
    assert run(options) == 0
    runs = json.loads(path.read_text())["runs"]
    stopped = [number for number, each in enumerate(runs) if not each["reached"] and each["stop_reason"]]
    assert stopped, "pruning tries batch sizes that fail"
    for number in stopped:
        each = runs[number]
        assert "bound" in each["stop_reason"]
        assert each["cost"] <= each["cost_bound"] < each["cost"] + 1.01 * each["cost"] / each["epochs"], (
            "just before it"
        )
        assert runs[number + 1]["recurrence"] == each["recurrence"]


def test_times_that_arrive_after_the_energy_still_count_for_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def batch_sizes(name: str) -> list[int]:
        path = tmp_path / name
        assert run(RecurrenceOptions(n_recurrences=3, json_path=path)) == 0
        return [each["batch_size"] for each in json.loads(path.read_text())["runs"]]

    in_order = batch_sizes("in_order.json")
    on_times = EventSubscriber._on_times
    late_s = 0.3
    monkeypatch.setattr(
        EventSubscriber, "_on_times", lambda *message: asyncio.get_running_loop().call_later(late_s, on_times, *message)
    )
    assert batch_sizes("late.json") == in_order


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_stopped_on_request_it_exits_with_0_and_leaves_nothing_behind(temporary: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-u", "-m", "controller", "demo", "--recurrences", "500", "--workload", "librispeech"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert any("default_first" in line for line in iter(demo.stdout.readline, ""))
        demo.send_signal(number)
        stdout, stderr = demo.communicate(timeout=30)
    assert demo.returncode == 0, stderr
    assert stdout.rstrip().endswith("stopped on request")
    assert stderr == ""
    assert list(temporary.iterdir()) == []


def test_every_fault_of_the_options_is_told_and_nothing_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    options = RecurrenceOptions(n_recurrences=0, workload="mnist", seed=-1, json_path=Path("/nowhere/x.json"))
    with pytest.raises(ConfigError) as caught:
        run(options)
    assert len(caught.value.faults) == 4
    for fault in ("--recurrences 0", "--workload mnist", "librispeech", "--seed -1", "/nowhere"):
        assert fault in str(caught.value)
    assert capsys.readouterr().out == ""


def test_the_page_of_results_shows_what_the_demo_says(capfd: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
    excerpt = page.split("<!-- recurrences output -->\n```text\n")[1].split("\n```")[0]
    assert run(RecurrenceOptions()) == 0
    said = {line.rstrip() for line in capfd.readouterr().out.splitlines()}
    missing = [line for line in excerpt.splitlines() if line not in said | {"…"}]
    assert missing == [], "run `gridchase demo --recurrences 20` again, and carry what it says"
