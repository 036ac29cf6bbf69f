"""`gridchase check` in this process: what it finds, and that each fault makes its exit code 1."""

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller.cli.main import main
from controller.gpu.node_lock import NodeLock
from controller.ports import Backend, LimitRange
from tests.fakes import FakeBackend, FakeGpu

NO_BROKER = "bus.url=mqtt://127.0.0.1:9"

Check = Callable[..., dict[str, Any]]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    """Return `gridchase check --json`, with other GPUs where they are given; no broker listens."""
    (file := tmp_path / "controller.toml").touch()

    def run(*settings: str, backend: Backend | None = None, has_file: bool = True) -> dict[str, Any]:
        if backend is not None:
            monkeypatch.setattr("controller.cli.check.backend_of", lambda _, __: backend)
        fixed = ["gpu.backend=simulation", f"node.state_dir={tmp_path}", NO_BROKER]
        overrides = [word for setting in [*fixed, *settings] for word in ("--set", setting)]
        code = main(["check", "--json", *overrides, *(["--config", str(file)] if has_file else [])])
        report: dict[str, Any] = msgspec.json.decode(capsys.readouterr().out)
        assert code == int(bool(report["faults"]))
        return report

    return run


def found(report: dict[str, Any], what: str) -> dict[str, Any]:
    """Return what was found of one thing."""
    (finding,) = (finding for finding in report["findings"] if finding["what"] == what)
    return dict(finding)


def test_a_missing_broker_is_the_only_fault_of_a_simulated_node(check: Check) -> None:
    report = check()
    assert report["faults"] == [found(report, "broker")["fault"]]
    assert "nothing listens at 127.0.0.1:9" in report["faults"][0]
    assert [gpu["has_energy_counter"] for gpu in report["gpus"]] == [True]


def test_without_a_file_a_missing_broker_is_what_up_brings(check: Check) -> None:
    report = check(has_file=False)
    assert report["faults"] == []
    finding = found(report, "broker")
    assert not finding["is_checked"]
    assert finding["found"].startswith("no broker answers at mqtt://127.0.0.1:9 yet: `gridchase up` starts one")


@pytest.mark.parametrize("setting", ["bus.url=mqtts://127.0.0.1:9", "bus.username=ada"])
def test_a_missing_broker_that_up_does_not_bring_is_a_fault(check: Check, setting: str) -> None:
    assert found(check(setting, has_file=False), "broker")["fault"]


def test_a_state_directory_that_cannot_be_looked_at_is_a_fault(check: Check, tmp_path: Path) -> None:
    (fault,) = [fault for fault in check(f"node.state_dir={tmp_path}/{'x' * 300}/state")["faults"] if "xxx" in fault]
    assert "File name too long" in fault


def test_a_node_without_gpus_is_a_fault(check: Check) -> None:
    report = check(backend=FakeBackend([]))
    assert found(report, "driver")["fault"] == "there is no GPU on this node: nothing is measured"


def test_a_gpu_whose_range_of_limits_is_a_point_is_a_fault(check: Check) -> None:
    gpu = FakeGpu()
    gpu.range = LimitRange(min_power_limit_w=300.0, max_power_limit_w=300.0, default_power_limit_w=300.0)
    (_, fault) = check(backend=FakeBackend([gpu]))["faults"]
    assert "its lowest limit is its current one, 300 W, which is never exceeded: nothing can be saved" in fault


def test_a_gpu_that_is_left_out_is_a_fault(check: Check) -> None:
    backend = FakeBackend([FakeGpu(), FakeGpu("GPU-fake-1", index=1)])
    backend.absent = {"GPU-fake-1"}
    report = check(backend=backend)
    assert "a GPU is not managed: open on GPU 1: it is not ready" in report["faults"]
    assert [gpu["uuid"] for gpu in report["gpus"]] == ["GPU-fake-0"]
    assert not backend.is_open


def test_gaps_of_a_signal_file_are_shown(check: Check, tmp_path: Path) -> None:
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    rows = [f"{(now + timedelta(hours=hours)).isoformat()},{value}" for hours, value in ((-9, 1), (-2, 0), (-1, 1))]
    rows += [f"{(now + timedelta(hours=hours)).isoformat()},321" for hours in (0, 1, 2)]
    (tmp_path / "day.csv").write_text("\n".join(["timestamp,gco2_per_kwh", *rows]), encoding="utf-8")
    report = check("signal.kind=carbon", f'signal.provider=[{{name="csv", zone="DE", path="{tmp_path / "day.csv"}"}}]')
    finding = found(report, "signal (carbon, 1 of 1)")
    assert finding["found"] == "day.csv (1 gap, 1 missing value): 321 g/kWh, average; it has no forecast"
    assert finding["fault"] == ""


def test_a_signal_file_that_has_ended_is_a_fault_with_its_end(check: Check, tmp_path: Path) -> None:
    (tmp_path / "day.csv").write_text("timestamp,gco2_per_kwh\n2021-01-01T00:00Z,1\n2021-01-01T01:00Z,1")
    report = check("signal.kind=carbon", f'signal.provider=[{{name="csv", zone="DE", path="{tmp_path / "day.csv"}"}}]')
    fault = found(report, "signal (carbon, 1 of 1)")["fault"]
    assert fault.startswith("day.csv (its last value ended at 2021-01-01T02:00Z) has no current value")


def test_an_unusable_signal_file_is_a_fault(check: Check, tmp_path: Path) -> None:
    (tmp_path / "day.csv").write_text("timestamp,gco2_per_kwh\n" + "0" * 140_000, encoding="utf-8")
    report = check("signal.kind=carbon", f'signal.provider=[{{name="csv", zone="DE", path="{tmp_path / "day.csv"}"}}]')
    assert "day.csv:2: field larger than field limit" in found(report, "signal (carbon, 1 of 1)")["fault"]


def test_a_process_that_keeps_a_gpu_from_the_controller_is_named(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.gpu.run_dir.RUN_DIR", tmp_path / "run")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    gpu = FakeGpu()
    with NodeLock(tmp_path) as lock:
        lock.lock_gpus([gpu.uuid])
        report = check("gpu.backend=nvml", backend=FakeBackend([gpu]))
    (fault,) = [fault for fault in report["faults"] if "locked by process" in fault]
    assert f"{gpu.uuid}: locked by process {os.getpid()} (" in fault
    assert "which is not gridchase" in fault
    free = check("gpu.backend=nvml", backend=FakeBackend([gpu]))
    assert found(free, "locks") == {"what": "locks", "found": "free", "fault": "", "is_checked": True}


def test_a_driver_that_hides_who_computes_is_told_with_what_follows(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, hidden = FakeGpu(), FakeGpu("GPU-fake-1", index=1)
    seen.pids, hidden.pids = frozenset({1}), None
    backend = FakeBackend([seen, hidden])
    monkeypatch.setattr("controller.gpu.processes.ProcFileSystem.sees_all", True)
    fault = found(check("gpu.backend=nvml", backend=backend), "processes")["fault"]
    assert fault.startswith("the driver does not list the processes of GPU-fake-1: only measured; set gpu.trust_bus")
    monkeypatch.setattr("controller.gpu.processes.ProcFileSystem.sees_all", False)
    assert "hostPID: true" in found(check("gpu.backend=nvml", backend=backend), "processes")["fault"]
    trusted = check("gpu.backend=nvml", "gpu.trust_bus=true", backend=backend)
    assert found(trusted, "processes")["fault"] == ""
