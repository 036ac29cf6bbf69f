"""Processes of our own package: the working directory is the user's, and may have modules of the same names."""

import asyncio
from pathlib import Path

import pytest

from controller.runtime.child_process import start_module


def test_a_module_of_the_working_directory_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "controller.py").write_text("raise SystemExit(3)")
    (tmp_path / "gridchase").mkdir()
    (tmp_path / "gridchase" / "__init__.py").write_text("raise SystemExit(4)")
    monkeypatch.chdir(tmp_path)

    async def statuses() -> list[int]:
        started = [await start_module(module) for module in ("controller.runtime.clock", "gridchase.cli.install")]
        return [await child.wait() for child in started]

    assert asyncio.run(statuses()) == [0, 0]
