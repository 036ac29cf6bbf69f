"""`gridchase replay plan`: rows for scripts, tables for people, a page, a picture, and every fault at once."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.cli.replay import plan as replay_plan
from controller.demo.recurrences.trace_files import INCLUDED
from controller.errors import ConfigError
from policies.replay.power_limit.evaluation import LIVE, POLICIES
from tests.controller.cli.replay.command_line import json_rows, replay, write_series

POWER = INCLUDED / "v100.csv"
NO_SVR = [name for name in POLICIES if name != "chase-svr" and name not in LIVE]
"""All policies but the one that imports scikit-learn, and those that run under the controller."""
JOB = ("plan", "--power", POWER, "--workload", "librispeech/deepspeech2", "--batch-size", "64")
QUICK = (*JOB, "--hours", "6", "--starts", "2", "--processes", "1")
FIELDS = {
    "policy",
    "max_slowdown",
    "signal",
    "eta",
    "carbon_saved_ratio",
    "energy_saved_ratio",
    "slowdown_ratio",
    "slowdown_worst_ratio",
    "n_starts",
    "optimum_share_ratio",
    "captured_ratio",
}


@pytest.fixture
def wind(tmp_path: Path) -> Path:
    return write_series(tmp_path / "wind.csv")


def test_without_files_the_included_curve_and_signal_are_used(capsys: pytest.CaptureFixture[str]) -> None:
    few = ("--hours", "6", "--starts", "2", "--processes", "1", "--policy", "best-static", "offline")
    found = json_rows(capsys, "plan", *few)
    assert {row["signal"] for row in found} == {"GB"}
    assert all(0.1 < row["carbon_saved_ratio"] < 0.2 for row in found)
    with pytest.raises(ConfigError, match=r"--batch-size 64: selects a curve of --power FILE, which is missing"):
        replay("plan", "--batch-size", "64")
    replay("plan", *few)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert any(line.startswith("GB, runs: 2;") for line in lines)


def test_a_row_for_each_policy_budget_and_signal_and_their_means(
    tmp_path: Path, wind: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calm = write_series(tmp_path / "calm.csv", offset=400)
    found = json_rows(capsys, *QUICK, "--signal", wind, calm, "--max-slowdown", "1.05", "1.1")
    assert all(set(row) == FIELDS for row in found)
    for signal in ("wind", "calm", "mean"):
        for max_slowdown in (1.05, 1.1):
            there = [row for row in found if (row["signal"], row["max_slowdown"]) == (signal, max_slowdown)]
            assert [row["policy"] for row in there if row["policy"] != "chase-svr"] == NO_SVR
            saved = {row["policy"]: row["carbon_saved_ratio"] for row in there}
            assert saved["max"] == 0 < saved["best-static"] <= saved["static-mix"] <= saved["offline"]
            assert {row["n_starts"] for row in there} == {4 if signal == "mean" else 2}
            for row in there:
                assert row["slowdown_ratio"] <= row["slowdown_worst_ratio"]
                if row["policy"] in {"best-static", "static-mix", "chase-best-eta", "offline"}:
                    assert row["slowdown_worst_ratio"] <= max_slowdown * (1 + 1e-9)


def test_rows_tell_what_part_of_the_optimum_and_of_the_grid_they_have(
    tmp_path: Path, wind: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calm = write_series(tmp_path / "calm.csv", offset=400)
    found = json_rows(
        capsys, *QUICK, "--signal", wind, calm, "--policy", "best-static", "static-mix", "gridchase", "offline"
    )
    for signal in ("wind", "calm", "mean"):
        rows = {row["policy"]: row for row in found if row["signal"] == signal}
        saved = {policy: row["carbon_saved_ratio"] for policy, row in rows.items()}
        assert (rows["static-mix"]["captured_ratio"], rows["offline"]["captured_ratio"]) == (0, 1)
        assert rows["best-static"]["captured_ratio"] < 0
        ours = rows["gridchase"]
        assert ours["optimum_share_ratio"] == pytest.approx(saved["gridchase"] / saved["offline"])
        offered = saved["offline"] - saved["static-mix"]
        assert ours["captured_ratio"] == pytest.approx((saved["gridchase"] - saved["static-mix"]) / offered)
    alone = json_rows(capsys, *QUICK, "--signal", wind, "--policy", "gridchase", "static-mix")
    assert {(row["optimum_share_ratio"], row["captured_ratio"]) for row in alone} == {(None, None)}


def test_the_controller_plays_the_same_runs(wind: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def rows(*arguments: str) -> dict[str, dict[str, Any]]:
        short = (*QUICK, "--hours", "1", "--starts", "1")
        found = json_rows(capsys, *short, "--signal", wind, "--policy", "static-mix", *arguments)
        return {row["policy"]: row for row in found}

    found = rows("--live")
    assert set(found) == {"static-mix", *LIVE}
    for name in LIVE:
        assert found[name]["carbon_saved_ratio"] == pytest.approx(found["static-mix"]["carbon_saved_ratio"], abs=0.05)
        assert 1 < found[name]["slowdown_worst_ratio"] < 1.055
    restarted = rows("gridchase-live", "--live-restarts", "2")["gridchase-live"]
    assert restarted["carbon_saved_ratio"] == pytest.approx(found["gridchase-live"]["carbon_saved_ratio"], abs=0.03)
    assert restarted != found["gridchase-live"]


def test_each_condition_changes_the_result(wind: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def figures(*arguments: str) -> list[dict[str, Any]]:
        return json_rows(capsys, *QUICK, "--signal", wind, "--policy", "static-mix", "chase", "gridchase", *arguments)

    plain = figures()
    assert figures() == plain
    for change in (
        ("--eta", "0.9"),
        ("--hours", "9"),
        ("--starts", "3"),
        ("--period-minutes", "30"),
        ("--host-power-w", "150"),
        ("--max-slowdown", "1.02"),
    ):
        assert figures(*change) != plain, change
    # The building's share of the power scales what is drawn, and saves nothing by itself.
    scaled = figures("--pue", "1.5", "--policy", "static-mix")
    assert scaled[0]["carbon_saved_ratio"] == pytest.approx(plain[0]["carbon_saved_ratio"])


def test_host_power_leaves_less_to_save(wind: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone, beside = (
        json_rows(capsys, *QUICK, "--signal", wind, "--policy", "static-mix", "--host-power-w", watts)[0]
        for watts in ("0", "200")
    )
    assert beside["carbon_saved_ratio"] < 0.7 * alone["carbon_saved_ratio"]


def test_a_signal_with_gaps_is_replayed(tmp_path: Path, wind: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = wind.read_text(encoding="utf-8").splitlines()
    holed = tmp_path / "holed.csv"
    holed.write_text("\n".join([*lines[:30], *(f"{line.split(',')[0]}," for line in lines[30:33]), *lines[80:]]))
    assert replay(*QUICK, "--signal", wind, holed, "--policy", *NO_SVR, "--json") == 0
    captured = capsys.readouterr()
    saved = {row["policy"]: row["carbon_saved_ratio"] for row in json.loads(captured.out) if row["signal"] == "holed"}
    assert 0 < saved["gridchase"] <= saved["offline"] < 1
    (told,) = captured.err.splitlines()
    assert told == (
        "holed: 1 gap, 3 missing values (carbon that is not above 0 is missing), 13 % of its time; "
        "gaps are interpolated linearly"
    )


def test_negative_prices_are_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    price = write_series(tmp_path / "price.csv", unit="eur_per_mwh", offset=-300)
    found = {row["policy"]: row for row in json_rows(capsys, *QUICK, "--signal", price, "--policy", *NO_SVR)}
    best = found["offline"]["carbon_saved_ratio"]
    assert np.isfinite(best)
    for policy in ("max", "best-static", "static-mix", "chase-best-eta"):
        assert found[policy]["carbon_saved_ratio"] <= best + 1e-9


@pytest.mark.parametrize("batch_size", ["16", "128", "2048"])
def test_curves_bent_by_noise_are_replayed(wind: Path, batch_size: str, capsys: pytest.CaptureFixture[str]) -> None:
    """At batch size 16 the lowest limit is the fastest: none binds."""
    which = ("plan", "--power", POWER, "--workload", "cifar100/shufflenetv2", "--batch-size", batch_size)
    found = json_rows(
        capsys, *which, "--hours", "6", "--starts", "1", "--processes", "1", "--signal", wind, "--policy", *NO_SVR
    )
    saved = {row["policy"]: row["carbon_saved_ratio"] for row in found}
    assert saved["offline"] == max(saved[name] for name in saved if not name.startswith(("chase", "zeus")))


def test_the_terminal_shows_tables_of_80_columns(
    tmp_path: Path, wind: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_series(tmp_path / "a-signal-with-quite-a-long-name-2024.csv", offset=100)
    budgets = ("--max-slowdown", "1.02", "1.05", "1.1", "1.2")
    assert replay(*QUICK, "--signal", wind, other, *budgets, "--policy", *NO_SVR) == 0
    text = capsys.readouterr().out
    for word in ("librispeech/deepspeech2, batch size 64, v100, 6 h", "mean of 2 signals, runs: 4", *NO_SVR[:5]):
        assert word in text
    for word in ("chase-best-eta", "offline", "at most 20.0 % slower: saved [%]", "wind"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_page_asks_no_server_and_a_picture_is_one(
    tmp_path: Path, wind: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="needs Matplotlib")
    page, picture = tmp_path / "page.html", tmp_path / "plan.png"
    asked = ("--policy", "static-mix", "gridchase", "--html", page, "--png", picture)
    assert replay(*QUICK, "--signal", wind, *asked, "--json") == 0
    captured = capsys.readouterr()
    assert set(captured.err.split()) == {page.as_uri(), picture.as_uri()}
    assert {row["policy"] for row in json.loads(captured.out)} == {"static-mix", "gridchase"}
    text = page.read_text(encoding="utf-8")
    assert "librispeech/deepspeech2" in text
    assert "offline" in text
    assert "<script" not in text
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_all_faults_of_arguments_and_files_are_reported(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("timestamp,gco2_per_kwh\n2024-01-01T00:00Z,a\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        replay(
            "plan", "--power", tmp_path / "none.csv",
            "--signal", wrong, tmp_path / "no.csv", "--max-slowdown", "0.9", "nan",
            "--eta", "2", "--hours", "0", "--starts", "0", "--period-minutes", "0", "--host-power-w", "-1", "--pue",
            "0.5", "--live-restarts", "-1", "--processes", "0",
        )  # fmt: skip
    told = caught.value.faults
    for fault in (
        "--max-slowdown 0.9: must be from 1 to 10 (1.05 is 5 % slower)",
        "--max-slowdown nan: must be from 1 to 10 (1.05 is 5 % slower)",
        "--eta 2: must be from 0 (only time counts) to 1 (only carbon counts)",
        "--hours 0: must be from 0.1 to 10,000",
        "--starts 0: must be from 1 to 10,000",
        "--period-minutes 0: must be from 1 to 1,440",
        "--host-power-w -1: must be at least 0 W, and finite",
        "--pue 0.5: must be at least 1, and finite",
        "--live-restarts -1: must be from 0 to 1000",
        "--processes 0: must be at least 1",
    ):
        assert fault in told
    for part in ("none.csv: No such file", "wrong.csv:2", "no.csv: No such file"):
        assert any(part in fault for fault in told), part


def test_a_missing_or_ambiguous_workload_is_reported(wind: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        replay("plan", "--power", POWER, "--workload", "imagenet/vit", "--signal", wind)
    (told,) = caught.value.faults
    assert "--workload imagenet/vit is not there; there are cifar100/shufflenetv2 (adadelta) at 8, 16, 32, " in told
    with pytest.raises(ConfigError) as caught:
        replay("plan", "--power", POWER, "--batch-size", "1024", "--signal", wind)
    (told,) = caught.value.faults
    assert "--batch-size 1024 is more than one; there are cifar100/shufflenetv2 (adadelta) at 1024; movielens" in told
    assert told.endswith("; say which with --workload")


def test_a_signal_that_is_too_short_or_of_another_kind_is_reported(tmp_path: Path, wind: Path) -> None:
    short = write_series(tmp_path / "short.csv", days=2)
    price = write_series(tmp_path / "price.csv", unit="eur_per_mwh")
    (tmp_path / "other").mkdir()
    twin = write_series(tmp_path / "other" / "wind.csv")
    with pytest.raises(ConfigError) as caught:
        replay(*JOB, "--hours", "96", "--signal", wind, short, price, twin)
    told = str(caught.value)
    assert "--signal short: spans 2.0 days: must be at least" in told
    assert "--signal: EUR/kWh and g/kWh have no common mean" in told
    assert f"{twin}: another file has this name" in told


def test_a_signal_must_cover_the_compared_policies_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At its energy-minimal limit the job takes 1.2 times as long; the budget allows 1.05 times."""
    asked = (
        *JOB,
        "--hours",
        "24",
        "--starts",
        "2",
        "--processes",
        "1",
        "--signal",
        write_series(tmp_path / "w.csv", days=1.2),
    )
    found = json_rows(capsys, *asked, "--policy", "best-static", "gridchase", "offline")
    assert [row["policy"] for row in found] == ["best-static", "gridchase", "offline"]
    for others in (("--policy", "gridchase", "zeus"), ("--policy", "gridchase", "--html", tmp_path / "page.html"), ()):
        with pytest.raises(ConfigError, match=r"--signal w: spans 1\.2 days: must be at least 1\.3 days"):
            replay(*asked, *others)


def test_a_picture_that_cannot_be_written_is_a_fault(tmp_path: Path, wind: Path) -> None:
    page = tmp_path / "no" / "page.html"
    with pytest.raises(ConfigError) as caught:
        replay(*QUICK, "--signal", wind, "--html", page)
    assert caught.value.faults == [f"--html {page}: there is no folder {page.parent}"]
    with pytest.raises(ConfigError, match=r"--html .*: File name too long"):
        replay(*QUICK, "--signal", wind, "--html", Path("x" * 300, "page.html"))
    with pytest.raises(ConfigError, match=f"--html {tmp_path}: cannot be written: Is a directory"):
        replay(*QUICK, "--signal", wind, "--policy", "max", "--html", tmp_path)


def test_missing_packages_are_reported(
    wind: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(replay_plan, "find_spec", lambda name: None if name in {"sklearn", "matplotlib"} else name)
    with pytest.raises(ConfigError, match=r"--png: needs matplotlib, .*pip install matplotlib"):
        replay(*QUICK, "--signal", wind, "--png", "plan.png")
    with pytest.raises(ConfigError, match="--policy chase-svr: needs scikit-learn"):
        replay(*QUICK, "--signal", wind, "--policy", "chase-svr")
    assert replay(*QUICK, "--signal", wind, "--policy", "chase-svr", "max", "--json") == 0
    captured = capsys.readouterr()
    assert captured.err == "skipping chase-svr: it needs scikit-learn, which is not installed\n"
    assert [row["policy"] for row in json.loads(captured.out)] == ["max"]
