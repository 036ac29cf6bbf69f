"""The main job end to end, in separate processes: training, mosquitto, the controller, the real pynvml on a stub."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.conftest import Mosquitto
from tests.live.node import LiveNode, ended, fixture, wait_for
from tests.live.nvml_stub.machine import StubMachine

pytestmark = pytest.mark.live
PRIOR_W = 280.0


@pytest.fixture
def node(nvml_machine: StubMachine, broker: Mosquitto, tmp_path: Path) -> Iterator[LiveNode]:
    """Return a node whose operator has set 280 W on a GPU of 300 W."""
    nvml_machine.gpu().set_requested_power_limit_w(PRIOR_W)
    yield from fixture(nvml_machine, broker, tmp_path)


def first_pass(node: LiveNode) -> list[dict[str, Any]]:
    """Return the points of a whole first sweep, once it is there; later on measurements of other limits join them."""

    def found() -> list[dict[str, Any]]:
        return [profile for profile in node.watcher.all("/profile") if profile["state"] == "planned"]

    wait_for(node, found)
    points: list[dict[str, Any]] = found()[0]["points"]
    return points


def last_reason(node: LiveNode) -> str:
    """Return why the limit is what it is, as far as that was told."""
    return str((node.watcher.last("/limit") or {}).get("reason", ""))


def test_a_run_is_profiled_planned_and_gives_its_limit_back(node: LiveNode) -> None:
    controller = node.controller(profiler__window_s="1.0")  # ten ticks of the counter
    training = node.training(300.0)
    measured_w = [point["power_limit_w"] for point in reversed(first_pass(node))]
    assert len(measured_w) >= 3
    assert measured_w == [280, 225, 180, 145, 115, 100][: len(measured_w)], "down as far as that saves energy"
    wait_for(node, lambda: node.limit_w < PRIOR_W)  # at first now and then the highest one is measured again
    wait_for(node, lambda: (node.watcher.last("r1/energy") or {}).get("evidence") == "too_early")
    assert ended(training, signal.SIGTERM) == 0
    wait_for(node, lambda: node.limit_w == PRIOR_W)
    wait_for(node, lambda: (node.watcher.last("r1/energy") or {}).get("final"))
    final = node.watcher.last("r1/energy")
    assert final["state"] == "finished"
    assert final["reached"] is True
    assert final["energy_j"] > 0
    assert final["evidence"] == "too_early"
    assert not {"saved_ratio", "slowdown_ratio", "baseline_energy_j"} & final.keys()
    wait_for(node, lambda: last_reason(node) == "run_finished")  # told after the limit is written, and the disk knows
    assert ended(controller, signal.SIGTERM) == 0
    reasons = [change["reason"] for change in node.watcher.all("/limit")]
    assert reasons[0] == "profiling"
    assert reasons[-1] == "run_finished"
    wait_for(node, lambda: node.watcher.last("n1/status")["state"] == "offline")


def test_the_measured_curve_is_the_curve_of_the_gpu(node: LiveNode) -> None:
    controller = node.controller(profiler__window_s="1.5")
    training = node.training(300.0)
    measured = {point["power_limit_w"]: point for point in first_pass(node)}
    for child in (controller, training):  # from here on the GPU is ours alone
        ended(child, signal.SIGKILL)
    gpu = node.machine.gpu()
    for limit_w, point in measured.items():
        gpu.set_requested_power_limit_w(limit_w)
        gpu.busy = True
        # A tick of the 100 ms counter at each end of 1.5 s bounds the power; sleeping makes iterations a little longer.
        assert point["power_w"] == pytest.approx(gpu.power_w, rel=0.08)
        assert point["iterations_per_s"] == pytest.approx(1 / gpu.iteration_time_s(), rel=0.15)


def test_a_training_that_stands_still_gives_its_limit_back_and_gets_it_again(node: LiveNode) -> None:
    node.controller(job__idle_s="2")
    training = node.training(300.0)
    wait_for(node, lambda: (node.watcher.last("r1/profile") or {}).get("state") == "planned")
    wait_for(node, lambda: node.limit_w < PRIOR_W)
    curve = node.watcher.last("r1/profile")["points"]
    training.send_signal(signal.SIGUSR1)
    wait_for(node, lambda: last_reason(node) == "idle")
    assert (node.limit_w, training.poll()) == (PRIOR_W, None)
    n_energies = len(node.watcher.all("r1/energy"))
    wait_for(node, lambda: len(node.watcher.all("r1/energy")) > n_energies + 2)
    first, *_, last = node.watcher.all("r1/energy")[n_energies + 1 :]
    assert (first["energy_j"], first["duration_s"]) == (last["energy_j"], last["duration_s"]), "none of it is the run's"
    training.send_signal(signal.SIGUSR1)
    wait_for(node, lambda: node.limit_w < PRIOR_W)
    wait_for(node, lambda: last_reason(node) != "idle")  # it is written first, and told then
    assert last_reason(node) != "profiling"
    assert {point["power_limit_w"] for point in curve} <= {
        point["power_limit_w"] for point in node.watcher.last("r1/profile")["points"]
    }
    assert ended(training, signal.SIGTERM) == 0
    wait_for(node, lambda: (node.watcher.last("r1/energy") or {}).get("final"))
    assert node.watcher.last("r1/energy")["state"] == "finished"


def test_sigterm_in_mid_sweep_gives_the_prior_limit_back(node: LiveNode) -> None:
    controller = node.controller()
    node.training(300.0)
    wait_for(node, lambda: node.limit_w < PRIOR_W)
    assert ended(controller, signal.SIGTERM) == 0
    assert node.limit_w == PRIOR_W


def test_restore_gives_back_what_a_killed_controller_left(node: LiveNode) -> None:
    controller = node.controller()
    node.training(300.0)
    wait_for(node, lambda: node.limit_w < PRIOR_W)
    ended(controller, signal.SIGKILL)
    assert node.limit_w < PRIOR_W
    result = node.call("restore")
    assert (result.returncode, "restored" in result.stdout) == (0, True)
    assert node.limit_w == PRIOR_W
    assert "nothing to restore" in node.call("restore").stdout


def test_restore_leaves_alone_what_another_writer_has_set_since(node: LiveNode) -> None:
    node.leave_limit()
    theirs_w = PRIOR_W + 10.0  # no limit of ours: those never are above the prior one
    node.machine.gpu().set_requested_power_limit_w(theirs_w)
    result = node.call("restore")
    assert (result.returncode, "untouched" in result.stdout) == (0, True)
    assert node.limit_w == theirs_w


def test_a_controller_that_starts_after_a_kill_restores_first_and_plans_anew(node: LiveNode) -> None:
    first = node.controller(log="first.log")
    node.training(300.0)
    wait_for(node, lambda: len((node.watcher.last("/profile") or {}).get("points", [])) >= 2)
    wait_for(node, lambda: list(node.state_dir.glob("profiles/*.json")))  # nobody waits for the disk
    ended(first, signal.SIGKILL)
    n_changes = len(node.watcher.all("/limit"))
    second = node.controller()
    wait_for(node, lambda: "a killed controller left a limit behind: prior limit 280 W restored" in node.log())
    wait_for(node, lambda: (node.watcher.last("/profile") or {}).get("state") == "planned")
    changes = node.watcher.all("/limit")[n_changes:]  # at its prior limit it may wait, until an iteration is known
    measured = [(c["power_limit_w"], c["detail"]) for c in changes if c["detail"].startswith("measuring")]
    assert measured
    assert PRIOR_W not in dict(measured), measured  # the stored part of the profile is not measured again
    assert ended(second, signal.SIGTERM) == 0
    assert node.limit_w == PRIOR_W


def test_the_account_of_a_run_resumes_after_a_kill_and_counts_the_downtime(node: LiveNode) -> None:
    first = node.controller(log="first.log")
    training = node.training(300.0)
    wait_for(node, lambda: (node.watcher.last("r1/energy") or {}).get("duration_s", 0.0) > 6)
    ended(first, signal.SIGKILL)
    before, n_before = node.watcher.last("r1/energy"), len(node.watcher.all("r1/energy"))
    second = node.controller()
    wait_for(node, lambda: len(node.watcher.all("r1/energy")) > n_before + 5)
    assert ended(training, signal.SIGTERM) == 0
    wait_for(node, lambda: node.watcher.last("r1/energy").get("final"))
    final = node.watcher.last("r1/energy")
    for name in ("energy_j", "duration_s", "iterations"):
        assert final[name] > before[name]
    power_w = (final["energy_j"] - before["energy_j"]) / (final["duration_s"] - before["duration_s"])
    assert 90 < power_w < 300, "what the counter says of the time without a controller"
    assert final.get("epochs_missed", 0) == before.get("epochs_missed", 0)
    assert ended(second, signal.SIGTERM) == 0


def test_a_killed_training_process_loses_its_hold_by_its_last_will(node: LiveNode) -> None:
    node.controller(job__lease_s="3600", before="from controller.accounting import ranks; ranks.LOST_GRACE_S = 1.0")
    training = node.training(300.0)
    wait_for(node, lambda: node.limit_w < PRIOR_W)
    ended(training, signal.SIGKILL)
    wait_for(node, lambda: node.limit_w == PRIOR_W)
    wait_for(node, lambda: (node.watcher.last("r1/energy") or {}).get("state") == "lost")


def test_a_broker_that_is_killed_and_comes_back_finds_everything_going_on(node: LiveNode) -> None:
    # Nothing is tried out, and it is planned once: else the limit would change also where all is well.
    node.controller(job__lease_s="30", profiler__n_blocks="0", profiler__block_s="3600", plan__period_s="86400")
    training = node.training(300.0)
    wait_for(node, lambda: (node.watcher.last("/profile") or {}).get("state") == "planned")
    # The curve is published before the plan that it makes possible: the limit of the plan is there when its news is.
    wait_for(node, lambda: last_reason(node) not in {"profiling", "profiling_paused"})
    planned_w = node.limit_w
    assert planned_w < PRIOR_W
    node.broker.kill()
    node.broker.start()
    n_energy, n_iterations = len(node.watcher.all("000000000000/energy")), node.watcher.last("r1/energy")["iterations"]
    wait_for(node, lambda: len(node.watcher.all("000000000000/energy")) > n_energy)
    # The training process is back, too: else nobody would hear that it ends.
    wait_for(node, lambda: node.watcher.last("r1/energy")["iterations"] > n_iterations + 100)
    assert node.limit_w == planned_w
    assert ended(training, signal.SIGTERM) == 0
    wait_for(node, lambda: node.limit_w == PRIOR_W)


def test_without_permission_it_measures_and_publishes_and_never_writes(node: LiveNode) -> None:
    node.machine.gpu().writable = False
    node.controller()
    training = node.training(300.0)
    wait_for(node, lambda: (node.watcher.last("/profile") or {}).get("state") == "observing")
    assert "no_permission" in {change["reason"] for change in node.watcher.all("/limit")}
    n_set = node.machine.gpu().set_calls
    wait_for(node, lambda: (node.watcher.last("r1/energy") or {}).get("energy_j", 0.0) > 0)
    assert ended(training, signal.SIGTERM) == 0
    wait_for(node, lambda: (node.watcher.last("r1/energy") or {}).get("final"))
    assert node.watcher.last("r1/energy")["energy_j"] > 0
    assert (node.machine.gpu().set_calls, node.limit_w) == (n_set, PRIOR_W)


def test_with_plan_observe_no_write_is_even_tried(node: LiveNode) -> None:
    controller = node.controller(plan__observe="true")
    training = node.training(300.0)
    wait_for(node, lambda: last_reason(node) == "observe_mode")
    assert ended(training, signal.SIGTERM) == 0
    wait_for(node, lambda: (node.watcher.last("r1/energy") or {}).get("final"))
    assert ended(controller, signal.SIGTERM) == 0
    assert node.watcher.last("r1/energy")["energy_j"] > 0
    assert "what would be saved is unknown (not_profiled)" in node.log()
    assert (node.machine.gpu().set_calls, node.limit_w) == (0, PRIOR_W)


def test_a_second_controller_says_who_holds_the_node_and_exits_with_2(node: LiveNode) -> None:
    first = node.controller()
    wait_for(node, lambda: (node.watcher.last("n1/status") or {}).get("state") == "online")
    second = node.call("controller")
    elsewhere = node.call("controller", node__state_dir=str(node.state_dir.with_name("elsewhere")))
    for refused in (second, elsewhere):
        assert refused.returncode == 2
        assert f"held by process {first.pid}" in refused.stderr
    assert node.call("restore").returncode == 0  # nothing is on record: nothing is touched, whoever holds the lock


def test_a_state_directory_that_cannot_be_written_exits_with_2_and_touches_nothing(node: LiveNode) -> None:
    node.state_dir.write_text("a file where a directory should be")
    result = node.call("controller")
    assert result.returncode == 2
    assert "node.state_dir" in result.stderr
    assert node.machine.gpu().set_calls == 0


def test_check_shows_the_five_limits_and_changes_nothing(node: LiveNode) -> None:
    result = node.call("check", "--json")
    assert '"requested_power_limit_w": 280' in result.stdout
    assert '"default_power_limit_w": 300' in result.stdout
    assert node.machine.gpu().set_calls == 0
    assert not node.state_dir.exists()


def test_restore_works_with_a_configuration_that_is_wrong_elsewhere(node: LiveNode) -> None:
    node.leave_limit()
    result = node.call("restore", plan__max_slowdown="0.1")
    assert "plan.max_slowdown" in result.stderr
    assert (result.returncode, node.limit_w) == (0, PRIOR_W)
