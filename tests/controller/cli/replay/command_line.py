"""What the tests of all replays share: the command line, its rows, and series as files."""

import argparse
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from controller.cli.replay import main
from tests.policies.forecasting.grids import weather


def replay(*arguments: "str | Path") -> int:
    """Parse arguments as the command line does, run the replay, and return its exit code."""
    parser = argparse.ArgumentParser()
    main.add_arguments(parser)
    options = parser.parse_args(list(map(str, arguments)))
    code: int = options.do(options)
    return code


def json_rows(capsys: pytest.CaptureFixture[str], *arguments: "str | Path") -> list[dict[str, Any]]:
    """Return the rows of a replay for scripts, which printed nothing else."""
    assert replay(*arguments, "--json") == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    found: list[dict[str, Any]] = json.loads(captured.out)
    return found


def write_series(
    path: Path, *, days: float = 16, step_h: float = 1.0, unit: str = "gco2_per_kwh", offset: float = 0.0
) -> Path:
    """Write a series as a file."""
    start = datetime(2024, 1, 1, tzinfo=UTC)
    values = weather(days, step_s=3_600 * step_h) + offset
    rows = [f"{start + timedelta(hours=index * step_h):%Y-%m-%dT%H:%MZ},{v:.3f}" for index, v in enumerate(values)]
    path.write_text("\n".join([f"timestamp,{unit}", *rows]), encoding="utf-8")
    return path
