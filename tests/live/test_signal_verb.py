"""`gridchase signal` and `check` against real servers: output, and what failures mean."""

import asyncio
import json
import math
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from controller.cli.main import main
from controller.cli.wiring import opened_sources, opened_store
from controller.config import load_config
from controller.runtime.clock import SystemClock
from controller.signal.feed import SignalFeed
from controller.signal.source_state import BACKFILL_REACHES_S
from tests.live.conftest import Mosquitto
from tests.policies.providers.fakes.api import FakeApi, Fault
from tests.policies.providers.fakes.energy_charts import FakeEnergyCharts
from tests.policies.providers.fakes.neso import FakeNeso

pytestmark = pytest.mark.live
STEP_S = 1_800.0
DAY_S = 86_400.0


def intensity_g_per_kwh(starts_s: float) -> float:
    """Return a grid with days."""
    return 200.0 + 80.0 * math.sin(starts_s / DAY_S * 2 * math.pi) + (starts_s // STEP_S) % 7


def fill(api: FakeApi, *, days: float, late_s: float = 0.0) -> None:
    """Let a source know the last days, and the next one as a forecast."""
    api.now_s = None  # the verb asks at the real time
    last_s = (time.time() - late_s) // STEP_S * STEP_S
    for i in range(round(days * DAY_S / STEP_S)):
        starts_s = last_s - i * STEP_S
        api.grid.measured[starts_s] = intensity_g_per_kwh(starts_s)
    for i in range(1, 49):
        api.grid.expected[last_s + i * STEP_S] = intensity_g_per_kwh(last_s + i * STEP_S)


class Shell:
    """Runs `gridchase` while servers answer, with a state directory of its own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder = folder
        self._capsys = capsys

    async def run(self, *arguments: str) -> tuple[int, str]:
        """Return the exit code and what was printed, on both channels."""
        state = ["--set", f"node.state_dir={self._folder}"]
        code = await asyncio.to_thread(main, [*arguments, *state])
        shown = self._capsys.readouterr()
        return code, shown.out + shown.err

    async def json(self, *arguments: str) -> dict[str, Any]:
        """Return what was printed as JSON."""
        _, shown = await self.run(*arguments, "--json")
        found: dict[str, Any] = json.loads(shown)
        return found


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, capsys)


def neso(api: FakeApi) -> Sequence[str]:
    return ("--provider", "neso", "--zone", "GB", "--option", f"url={api.url}")


async def test_the_series_the_forecast_and_their_provenance_are_shown(shell: Shell) -> None:
    async with FakeNeso().running() as api:
        fill(api, days=20)
        found = await shell.json("signal", *neso(api))
        code, shown = await shell.run("signal", *neso(api))
    assert (found["state"], found["source"], found["zone"], found["unit"]) == ("fresh", "neso GB", "GB", "g/kWh")
    assert found["kind"] == "average"
    assert found["value"] == pytest.approx(intensity_g_per_kwh(found["now_s"] // STEP_S * STEP_S), abs=1.0)
    assert found["age_s"] == 0
    assert len(found["history"]) == pytest.approx(20 * 48, abs=2)
    assert all(row["lower"] <= row["value"] <= row["upper"] for row in found["forecast"])
    assert found["forecast"][-1]["starts_s"] > found["now_s"] + 0.95 * DAY_S
    errors = found["errors_7d"]
    assert errors["mape_ratio"]["gridchase"]["1h"] < errors["mape_ratio"]["persistence"]["1h"]
    assert code == 0
    for part in ("carbon intensity (average) of GB", "g/kWh", "NESO Carbon Intensity API", "persistence", "h from now"):
        assert part in shown


async def run_feed(folder: Path, api: FakeApi) -> None:
    """Fetch and save the history, as a controller does."""
    table = f'{{name="neso", zone="GB", url="{api.url}"}}'
    config = load_config(None, ["signal.kind=carbon", f"signal.provider=[{table}]", f"node.state_dir={folder}"])
    async with opened_sources(config.signal) as sources:
        with opened_store(config) as store:
            feed = SignalFeed(sources, kind="carbon", clock=SystemClock(), period_s=300.0, store=store)
            for _ in BACKFILL_REACHES_S:
                await feed.refresh()


async def test_the_saved_history_bridges_an_outage_and_is_not_changed(shell: Shell, tmp_path: Path) -> None:
    async with FakeNeso().running() as api:
        fill(api, days=10, late_s=3 * 3_600.0)
        api.grid.expected.clear()
        await run_feed(tmp_path, api)
        saved = {file: file.read_bytes() for file in (tmp_path / "signals").iterdir()}
        api.fault = Fault.BROKEN
        code, shown = await shell.run("signal", *neso(api))
    assert code == 0
    assert "HTTP 500" in shown
    assert "forecast" in shown
    assert "ended 3." in shown or "ended 2." in shown
    assert saved
    assert {file: file.read_bytes() for file in (tmp_path / "signals").iterdir()} == saved


async def test_an_untrusted_signal_exits_with_1(shell: Shell) -> None:
    async with FakeNeso().running() as api:
        api.now_s, api.fault = None, Fault.NOT_DATA
        code, shown = await shell.run("signal", *neso(api))
    assert code == 1
    assert "no known values" in shown


async def test_a_source_that_sends_only_zeros_is_told_with_their_number(shell: Shell) -> None:
    async with FakeEnergyCharts().running() as api:
        fill(api, days=1)
        api.grid.measured = dict.fromkeys(api.grid.measured, 0.0)
        where = ("--zone", "DE", "--option", f"url={api.url}")
        code, shown = await shell.run("signal", "--provider", "energy-charts", *where)
        table = f'{{name="energy-charts", zone="DE", url="{api.url}"}}'
        checked = await shell.json("check", "--set", "signal.kind=carbon", "--set", f"signal.provider=[{table}]")
    assert code == 1
    assert re.search(r"wrong: energy-charts DE: left out: \d+ not above 0", shown)
    assert any("not above 0) has no current value" in fault for fault in checked["faults"])


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--provider", "neso"], "signal.provider[0].zone: is missing"),
        (["--provider", "neso", "--zone", "DE"], "signal.provider[0].zone = 'DE': must be GB"),
        (["--provider", "nobody"], "signal.provider[0].name = 'nobody': must be 'neso' or"),
        (["--provider", "neso", "--zone", "GB", "--option", "x"], "--option x: must be key=value"),
        (["--provider", "neso", "--zone", "GB", "--option", "x=1"], "signal.provider[0].x: there is no such key"),
        (["--provider", "octopus", "--kind", "price", "--zone", "C"], "signal.provider[0].product: is missing"),
        ([], "name a provider with --provider"),
    ],
)
async def test_wrong_arguments_exit_with_2_and_say_what_is_wrong(
    shell: Shell, arguments: list[str], fault: str
) -> None:
    code, shown = await shell.run("signal", *arguments)
    assert code == 2
    assert fault in shown


async def test_a_missing_token_names_its_file_and_variable(shell: Shell) -> None:
    code, shown = await shell.run("signal", "--provider", "electricity-maps", "--zone", "DE")
    assert code == 2
    assert "token_file is not set" in shown
    assert "$" in shown


def chain(*tables: str) -> Sequence[str]:
    return ("--set", "signal.kind=carbon", "--set", f"signal.provider=[{', '.join(tables)}]", "--set", SIMULATED)


SIMULATED = "gpu.backend=simulation"


async def test_check_does_not_blame_a_topic_that_has_not_sent_yet(shell: Shell, broker: Mosquitto) -> None:
    table = f'{{name="mqtt", zone="DE", url="{broker.url}", topic="site/co2", kind="average", unit="g/kWh"}}'
    report = await shell.json("check", *chain(table), "--set", f"bus.url={broker.url}")
    (finding,) = [finding for finding in report["findings"] if finding["what"].startswith("signal")]
    assert (report["faults"], finding["is_checked"]) == ([], False)
    assert "mqtt DE site/co2: no message in 3 s: the signal begins with the first one" in finding["found"]


async def test_check_polls_each_provider_and_explains_failures(shell: Shell) -> None:
    async with FakeNeso().running() as first, FakeEnergyCharts().running() as second:
        fill(first, days=2)
        second.fault = Fault.TOO_MANY
        tables = (
            f'{{name="neso", zone="GB", url="{first.url}"}}',
            f'{{name="energy-charts", zone="DE", url="{second.url}"}}',
            '{name="electricity-maps", zone="GB", token_env="NO_SUCH_VARIABLE"}',
        )
        report = await shell.json("check", *chain(*tables))
    neso_found, charts, maps = [finding for finding in report["findings"] if finding["what"].startswith("signal")]
    assert neso_found["fault"] == ""
    assert "g/kWh, average; its forecast reaches 24 h ahead" in neso_found["found"]
    assert "HTTP 429" in charts["fault"]
    assert "too many requests" in charts["fault"]
    assert "signal.provider[2] (electricity-maps): token_file is not set, and $NO_SUCH_VARIABLE" in maps["fault"]
