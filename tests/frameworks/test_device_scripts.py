"""The scripts that measure a real GPU, tried without one: on the processor, and on a board that is a stub."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.benchmarks.h100 import rates_table
from tests.device import cost, record
from tests.live.nvml_stub.fixtures import nvml_library, nvml_machine
from tests.live.nvml_stub.machine import StubMachine

__all__ = ["nvml_library", "nvml_machine"]
TRIED = ("--device", "cpu", "--kinds", "tiny", "convolutions", "graph", "--step-s", "0.01")


def said(*arguments: str | Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("script", [record, cost])
def test_without_a_gpu_it_says_that_it_skips(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["script", *([str(tmp_path / "recording")] if script is record else [])])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    script.main()
    assert capsys.readouterr().out == "skipped: PyTorch sees no GPU\n"
    assert list(tmp_path.iterdir()) == []


def test_a_recording_holds_marks_of_both_clocks_and_the_meters(nvml_machine: StubMachine, tmp_path: Path) -> None:
    out = said("tests.device.record", tmp_path, "--seconds", "1", *TRIED, environment=nvml_machine.environment())
    assert "convolutions: " in out
    with np.load(tmp_path / "steps.npz") as marks, np.load(tmp_path / "meter.npz") as meter:
        steps, rows = dict(marks), meter["rows"]
    assert "no limit was written" in str(steps["about"])
    for name in ("tiny", "convolutions"):
        hook_ns, device_ns = steps[f"{name}.hook_ns"], steps[f"{name}.device_ns"]
        assert len(hook_ns) == len(device_ns) > 12
        assert (np.diff(hook_ns) > 0).all()
        assert (hook_ns <= device_ns).all(), "a processor has done its work when the hook is called"
    assert "graph.hook_ns" not in steps, "there are no graphs without CUDA"
    assert rows.shape[1] == 6
    assert (np.diff(rows[:, 0]) > 0).all()
    assert rows[-1, 2] > rows[0, 2] > 0, "energy"
    assert rows[0, 0] < steps["tiny.hook_ns"][0] < steps["convolutions.hook_ns"][-1] < rows[-1, 0], "the same clock"
    assert nvml_machine.gpu().writes == []
    table = list(rates_table(steps))
    assert len(table) == 2 + 2 * 3, "head, and two trainings by three kinds of marks"


def test_the_cost_of_publishing_is_told_for_each_training() -> None:
    lines = said("tests.device.cost", "--turns", "2", "--turn-s", "0.2", *TRIED).splitlines()
    rows = [line for line in lines if line.startswith("| ")][1:]
    assert len(rows) == 2
    for row in rows:
        step_ms, _, _, n_seen = row.strip("| ").split(" | ")[1:]
        assert float(step_ms) > 0
        assert int(n_seen) > 2
