"""The whole demo: a real broker, a training process and the controller, checked against the simulation's totals."""

import asyncio
import json
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from controller.demo.day.demo import DemoOptions, main_demo, run_demo
from controller.demo.runner import DemoError
from controller.errors import ConfigError
from controller.gpu.journal.storage import Journal

pytestmark = pytest.mark.live

DURATION_S = 40.0
"""A machine that stands still for a second sleeps through half an hour of the day, of which nothing is measured."""
_MAIN = "import sys; from controller.demo.day.demo import DemoOptions, main_demo; sys.exit(main_demo(DemoOptions({})))"


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delay the journal: the controller learns late that a restored limit was recorded."""
    forget = Journal.forget

    async def forget_late(journal: Journal, gpu_uuid: str) -> None:
        await asyncio.sleep(0.5)
        await forget(journal, gpu_uuid)

    monkeypatch.setattr(Journal, "forget", forget_late)


@pytest.mark.usefixtures("slow_disk")
def test_a_short_demo_saves_carbon_restores_the_limit_and_writes_its_result(
    tmp_path: Path, temporary: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "result.json"
    assert main_demo(DemoOptions(seed=1, duration_s=DURATION_S, zone="US-CAISO", json_path=path)) == 0
    result = json.loads(path.read_text())
    said = capfd.readouterr()

    assert result["carbon_saved_ratio"] > 0.05
    assert result["energy_saved_ratio"] > 0.05
    assert 1.0 < result["slowdown_ratio"] < 1.1
    assert 0 < result["profiling_energy_ratio"] < 0.5
    for totals in (result["run"], result["baseline"]):
        assert totals["iterations"] == 105_084
        assert {"energy_j", "carbon_g", "duration_s", "iterations"} <= set(totals)
    assert result["run"]["duration_s"] / result["baseline"]["duration_s"] == result["slowdown_ratio"]
    assert 1 - result["run"]["carbon_g"] / result["baseline"]["carbon_g"] == result["carbon_saved_ratio"]
    assert {"seed", "zone", "duration_s", "broker", "version"} <= set(result)

    published = result["published"]
    assert published["final"] is True
    assert published["iterations"] == result["run"]["iterations"]
    assert published["energy_j"] == pytest.approx(result["run"]["energy_j"], rel=0.02)
    assert published["carbon_g"] == pytest.approx(result["run"]["carbon_g"], rel=0.02)
    # A busy machine ends the run late: the controller counts until it hears so, the simulation does not.
    assert published["duration_s"] == pytest.approx(result["run"]["duration_s"], rel=0.05)

    assert "measured" in said.out
    assert "prior limit restored" in said.out
    assert "Carbon" in said.out
    assert said.err == ""
    assert len(said.out.splitlines()) < 40
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stopped_on_request_it_exits_with_0_and_leaves_nothing_behind(temporary: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _MAIN.format("duration_s=60.0")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        assert any("measur" in line for line in iter(demo.stdout.readline, ""))  # it may be through with it
        children = Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text(encoding="ascii").split()
        demo.send_signal(number)
        stdout, stderr = demo.communicate(timeout=20)
    assert demo.returncode == 0, stderr
    assert stdout.rstrip().endswith("stopped on request")
    assert stderr == ""
    assert len(children) >= 1
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert list(temporary.iterdir()) == []


async def test_a_training_process_that_fails_fails_the_demo_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numpy.py").write_text("raise RuntimeError('no numpy today')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(DemoError, match="no numpy today"):
        await run_demo(DemoOptions(duration_s=5.0), console=Console(file=StringIO()))


def test_every_fault_of_the_options_is_told_and_nothing_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    options = DemoOptions(seed=-1, duration_s=1.0, zone="XX", json_path=Path("/nowhere/x.json"), max_slowdown=0.9)
    with pytest.raises(ConfigError) as caught:
        main_demo(options)
    assert len(caught.value.faults) == 5
    for fault in ("--seed -1", "--duration-s 1", "--zone XX", "GB", "/nowhere", "--max-slowdown 0.9"):
        assert fault in str(caught.value)
    assert capsys.readouterr().out == ""
