"""`gridchase report`: the sentence, the tables, JSON and CSV, periods by the local time zone, and what can be wrong."""

import csv
import io
import json
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from html import unescape
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec
import pytest

from controller.cli.main import main
from controller.config import HistoryConfig
from controller.history.energy_history.history_file import HistoryFile
from gridchase.cli.closed_pipe import ended_by_closed_pipe
from tests.closed_pipe import closed_pipe
from tests.controller.history.energy_history.records import (
    TOPICS,
    gpu_message,
    measured,
    run_message,
    run_record,
    split,
)

NOON_S = datetime(2026, 11, 5, 12, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
LATE_S = datetime(2026, 11, 5, 23, 50, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
NEXT_S = datetime(2026, 11, 6, 0, 5, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()


@pytest.fixture(autouse=True)
def _in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    monkeypatch.setenv("COLUMNS", "200")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def database(tmp_path: Path) -> str:
    """Return the path of a history: a measured run over midnight, an early one, one of another user, and two GPUs."""
    path = tmp_path / "history.sqlite"
    history = HistoryFile(path, topics=TOPICS, config=HistoryConfig(), session_s=NOON_S)
    for at_s, energy_j in ((NOON_S, 3.6e6), (LATE_S, 7.2e6), (NEXT_S, 9e6)):
        record = run_record(time_s=at_s, duration_s=at_s - NOON_S + 100, energy_j=energy_j, carbon_g=energy_j / 9e3)
        known = split(measured(record, saved_ratio=0.1), 0.04)
        final = msgspec.structs.replace(known, final=at_s == NEXT_S)
        messages = [run_message(final), run_message(final, node="node-a")]
        messages += [gpu_message(at_s, energy_j, gpu_uuid=f"GPU-{number}", gpu_index=number) for number in range(2)]
        history.write(messages, now_s=at_s)
    early = run_record(time_s=NEXT_S, run="early", duration_s=60.0, energy_j=3.6e6, carbon_g=400.0)
    history.write([run_message(early), run_message(early, job="gpt", user="[bold]bob")], now_s=NEXT_S)
    history.close()
    return str(path)


def test_the_sentence_says_what_was_used_and_saved(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--database", database, "--month", "2026-11", "--run", "r1"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("From 2026-11-01 00:00 to ")
    assert "1 run used 2.5 kWh, 1 kg CO2e, and saved 111 g CO2e, 10.0 % (90 %: 88.9 g CO2e to 133 g CO2e)" in shown
    assert "against the same work at the prior limits, taking 3.0 % (90 %: 2.6 to 3.4 %) more time." in shown
    assert shown.count("3.0 % (90 %: 2.6 to 3.4 %)") == 2


def test_the_sentence_on_intervals_fits_the_terminal(
    database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["report", "--database", database]) == 0
    table, _, intervals = capsys.readouterr().out.partition("Intervals are 90 % intervals. ")
    assert table
    assert "within a job the half-widths add up" in intervals.replace("\n", " ")
    assert max(map(len, intervals.splitlines())) <= 80


def test_how_it_was_counted_is_said_below_the_table_and_not_to_programs(
    database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["report", "--database", database]) == 0
    told, _, source = " ".join(capsys.readouterr().out.split()).partition(" Read from ")
    assert told.endswith("Energy, carbon and cost are of the GPUs alone, without host power or PUE.")
    assert source.replace(" ", "") == f"{database}."
    assert main(["report", "--database", database, "--csv"]) == 0
    assert "host power" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["user", "job", "run"])
def test_a_name_that_is_not_utf_8_is_refused(name: str, database: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["report", "--database", database, f"--{name}", "a\udcff"])
    assert ended.value.code == 2
    assert f"argument --{name}: a\\udcff: must be UTF-8" in capsys.readouterr().err


def test_energies_read_as_in_the_line_at_the_end_of_a_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = HistoryFile(tmp_path / "history.sqlite", topics=TOPICS, config=HistoryConfig(), session_s=NOON_S)
    history.write([run_message(run_record(time_s=NOON_S, duration_s=60.0, energy_j=4_896.0))], now_s=NOON_S)
    history.close()
    assert main(["report", "--database", str(tmp_path / "history.sqlite")]) == 0
    assert "1 run used 1.36 Wh" in capsys.readouterr().out


@pytest.mark.parametrize("form", [["--csv"], ["--json"], ["--by", "run"]], ids=["csv", "json", "table"])
def test_a_reader_that_ends_early_ends_it_as_sigpipe_would(
    form: list[str], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closed_pipe() as written:
        monkeypatch.setattr(sys, "stdout", written)
        with pytest.raises(SystemExit) as ended, ended_by_closed_pipe():
            main(["report", "--database", database, *form])
    assert ended.value.code == 128 + signal.SIGPIPE


def test_jobs_are_listed_and_what_is_not_known_is_said(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--database", database]) == 0
    shown = capsys.readouterr().out
    assert "(known for 1 of them)" in shown
    (gpt,) = [line for line in shown.splitlines() if "[bold]bob/gpt" in line]
    assert "too early to tell" in gpt
    assert main(["report", "--database", database, "--user", "[bold]bob"]) == 0
    shown = capsys.readouterr().out
    assert "it is too early to tell what was saved." in shown
    assert "Intervals" not in shown


def test_days_are_those_of_the_local_zone_and_add_up(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--database", database, "--by", "day", "--run", "r1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["energy_j"]) for row in report["rows"]] == [("2026-11-05", 7.2e6), ("2026-11-06", 1.8e6)]
    assert sum(row["saved_carbon_g"] for row in report["rows"]) == pytest.approx(report["total"]["saved_carbon_g"])
    assert "saved_carbon_g" in report["total"]


def test_energy_is_told_per_unit_of_work_where_trainings_tell_it(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = HistoryFile(Path(database), topics=TOPICS, config=HistoryConfig(), session_s=NOON_S)
    for at_s, work in ((LATE_S, 1e6), (NEXT_S, 2.5e6)):
        record = run_record(time_s=at_s, run="r2", energy_j=9e-3 * work, work=work, work_unit="tokens", total_work=5e6)
        history.write([run_message(record, job="gpt")], now_s=at_s)
    history.close()
    asked = ["report", "--database", database]
    assert main([*asked, "--job", "gpt", "--user", "alice", "--by", "day", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [(row["work"], row["worked_energy_j"]) for row in report["rows"]] == [(1e6, 9e3), (1.5e6, 13.5e3)]
    assert report["total"]["energy_per_work_j"] == pytest.approx(9e-3)
    assert main([*asked, "--html", str(tmp_path / "page.html")]) == 0
    assert main(asked) == 0
    for shown in ((tmp_path / "page.html").read_text(encoding="utf-8"), capsys.readouterr().out):
        assert "2.5 million tokens at 2.5 Wh per million" in unescape(shown).replace("\u00a0", " ")
    assert main([*asked, "--user", "[bold]bob"]) == 0
    assert "work" not in capsys.readouterr().out.partition("prior")[0]


SPLIT_G = {"better_limit_carbon_g": 0.07, "following_carbon_g": 0.04, "measuring_carbon_g": -0.01}
"""Of the baseline of the run, which is ten ninths of the kilogram that it used."""


def test_what_a_saving_is_made_of_adds_up_over_days_to_the_gram(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["report", "--database", database, "--month", "2026-11", "--run", "r1"]
    assert main([*asked, "--by", "day", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert main([*asked, "--by", "run", "--csv"]) == 0
    (run,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    for name, ratio in SPLIT_G.items():
        whole_g, half_name = pytest.approx(ratio * 1e4 / 9, abs=1e-2), name.replace("carbon", "carbon_ci90")
        of_days_g = [row[name] for row in report["rows"]]
        assert [len(of_days_g), sum(of_days_g), report["total"][name], float(run[name])] == [2, *[whole_g] * 3]
        assert float(run[half_name]) == pytest.approx(0.005 * 1e4 / 9, abs=1e-2)
    assert sum(report["total"][name] for name in SPLIT_G) == pytest.approx(report["total"]["saved_carbon_g"], abs=1e-2)
    assert main([*asked, "--by", "day"]) == 0
    table = capsys.readouterr().out.partition("what the saving is made of")[2]
    assert "44.4 g CO2e (90 %: 38.9 g CO2e to 50 g CO2e)" in table
    assert main([*asked, "--by", "day", "--html", str(tmp_path / "page.html")]) == 0
    page = unescape((tmp_path / "page.html").read_text(encoding="utf-8")).replace("\u00a0", " ")
    assert "44.4 g CO₂e (38.9 to 50 g CO₂e)" in page.partition("following the grid")[2]


def test_what_savings_of_older_databases_are_made_of_is_not_known(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with sqlite3.connect(database) as connection:
        for table in ("runs", "run_quarters"):
            connection.execute(f"UPDATE {table} SET {', '.join(f'{name} = NULL' for name in SPLIT_G)}")  # noqa: S608
    connection.close()
    asked = ["report", "--database", database, "--month", "2026-11", "--run", "r1"]
    assert main([*asked, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert "saved_carbon_g" in report["total"]
    assert not SPLIT_G.keys() & (report["total"].keys() | report["rows"][0].keys())
    assert main([*asked, "--csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert {row[name] for name in SPLIT_G} == {""}
    assert main(asked) == 0
    assert main([*asked, "--html", str(tmp_path / "page.html")]) == 0
    shown = capsys.readouterr().out + (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "following the grid" not in shown


def test_gpus_are_counted_with_runs_and_without(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--database", database, "--by", "gpu"]) == 0
    shown = capsys.readouterr().out
    assert "2 GPUs used 5 kWh, inside and outside runs." in shown
    assert "node-a/GPU-1" in shown
    assert main(["report", "--database", database, "--by", "node", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["energy_j"]) for row in report["rows"]] == [("node-a", 1.8e7)]
    assert "1 node used 5 kWh, inside and outside runs." in report["headline"]
    assert main(["report", "--database", database, "--by", "gpu", "--job", "resnet50"]) == 2
    assert "leave out --user, --job and --run" in capsys.readouterr().err


def test_a_table_for_programs_has_every_column(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--database", database, "--by", "run", "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["name"] for row in rows] == ["alice/resnet50/r1", "alice/resnet50/early", "[bold]bob/gpt/early"]
    assert float(rows[0]["saved_carbon_ratio"]) == pytest.approx(0.1, abs=1e-5)
    assert rows[1]["saved_carbon_ratio"] == ""


def test_by_run_the_newest_record_of_each_is_told_whole(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--database", database, "--by", "run", "--run", "r1", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)["records"]
    assert (record["final"], record["evidence"], record["saved_ci90_ratio"]) == (True, "measured", 0.02)


def test_since_a_day_only_what_was_used_from_then_on_counts(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--database", database, "--since", "2026-11-06", "--run", "r1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"]["energy_j"] == 1.8e6
    assert main(["report", "--database", database, "--month", "2026-10"]) == 0
    assert "to 2026-11-01 00:00, no run is recorded." in capsys.readouterr().out
    assert main(["report", "--database", database, "--job", "none", "--user", "alice"]) == 0
    assert "no run of user alice, job none is recorded." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "text", "why"),
    [
        ("--month", "2026-13", "must be a month"),
        ("--month", "May", "must be a month"),
        ("--month", "9999-12", "must be a month"),
        ("--since", "yesterday", "must be a day or a moment"),
        ("--since", "9999-12-31T23:59:59-12:00", "must begin after 1970 and before now"),
        ("--since", "0001-01-01T00:00:00+12:00", "must begin after 1970 and before now"),
        ("--since", "99999d", "must begin after 1970 and before now"),
        ("--month", "2999-01", "must begin after 1970 and before now"),
    ],
)
def test_a_period_that_is_none_is_refused(
    option: str, text: str, why: str, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--database", database, option, text]) == 2
    assert f"{option} {text}: {why}" in capsys.readouterr().err


def test_a_page_has_the_numbers_of_the_report(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "page.html"
    asked = ["report", "--database", database, "--month", "2026-11"]
    assert main([*asked, "--html", str(file)]) == 0
    assert capsys.readouterr().out.strip() == file.as_uri()
    page = unescape(file.read_text(encoding="utf-8")).replace("\u00a0", " ")
    assert "<h1>November 2026: 111 g CO₂e saved, 10.0 % (90 %: 88.9 to 133 g CO₂e)</h1>" in page
    for word in ("5 Nov", "6 Nov", "alice/resnet50", "[bold]bob/gpt", f"--database {database}"):
        assert word in page
    assert main([*asked, "--html", str(file), "--by", "gpu"]) == 2
    assert "--html: shows what runs saved; leave out --by gpu" in capsys.readouterr().err


def test_what_users_name_is_no_formula_and_the_page_tells_how_it_was_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = HistoryFile(tmp_path / "history.sqlite", topics=TOPICS, config=HistoryConfig(), session_s=NOON_S)
    record = run_record(time_s=NOON_S, duration_s=60.0, energy_j=3.6e6, carbon_g=100.0)
    history.write([run_message(measured(record, saved_ratio=-0.1), user="=1+1")], now_s=NOON_S)
    history.close()
    asked = ["report", "--set", f"node.state_dir={tmp_path}"]
    assert main([*asked, "--csv"]) == 0
    assert next(csv.DictReader(io.StringIO(capsys.readouterr().out)))["name"] == "'=1+1/resnet50"
    assert main(asked) == 0
    shown = capsys.readouterr().out
    assert "used 1 kWh, 100 g CO2e: 9.09 g CO2e, 10.0 % (90 %: 7.27 g CO2e to 10.9 g CO2e) more than" in shown
    file = str(tmp_path / "deep.html")
    assert main([*asked, "--html", file]) == 0
    assert f"--set node.state_dir={tmp_path} --html {file}" in unescape(Path(file).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--run", ""], "--run: Expected `str` of length >= 1"),
        (["--user", "x" * 500], "--user: Expected `str` of length <= 128"),
        (["--url", "http://a b:9323"], "must be http://HOST:PORT"),
        (["--url", f"http://{'a' * 70}:9323"], "must be http://HOST:PORT"),
        (["--url", "http://web.example:9323", "--token-file", "t"], "would carry the token in clear text"),
        (["--url", "HTTP://web.example:9323", "--token-file", "t"], "would carry the token in clear text"),
        (["--url", " http://web.example:9323", "--token-file", "t"], "would carry the token in clear text"),
        (["--export", "a.csv", "--token-file", "t"], "--token-file: is for a page"),
        (["--url", "http://LocalHost:1", "--token-file", "/none/t"], "--token-file = '/none/t': No such file"),
        (["--database", "history.sqlite", "--token-file", "t"], "--token-file: is for a page"),
    ],
)
def test_arguments_that_are_none_are_refused(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *arguments]) == 2
    assert why in capsys.readouterr().err


def test_every_fault_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["--by", "gpu", "--user", "alice", "--month", "May", "--set", "node.state_dirr=/tmp"]
    assert main(["report", *wrong]) == 2
    told = capsys.readouterr().err
    assert all(name in told for name in ("--by gpu:", "--month May:", "node.state_dirr"))


def test_a_day_without_midnight_begins_when_the_clock_goes_on(
    database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TZ", "Africa/Cairo")
    time.tzset()
    assert main(["report", "--database", database, "--since", "2026-04-24", "--by", "day"]) == 0
    assert capsys.readouterr().out.startswith("From 2026-04-24 01:00 to ")


def test_rows_are_told_apart_on_a_narrow_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    runs = [f"{'x' * 50}-{number}" for number in range(2)]
    history = HistoryFile(tmp_path / "history.sqlite", topics=TOPICS, config=HistoryConfig(), session_s=NOON_S)
    record = measured(run_record(time_s=NOON_S, duration_s=9e4, energy_j=9e7, carbon_g=9e3), saved_ratio=0.1)
    history.write([run_message(msgspec.structs.replace(record, run=run)) for run in runs], now_s=NOON_S)
    history.close()
    assert main(["report", "--database", str(tmp_path / "history.sqlite"), "--by", "run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = "".join(line.split()[0] for line in lines if line[1:2].strip())
    assert all(run in names for run in runs)


def test_where_there_is_no_history_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--set", f"node.state_dir={tmp_path}"]) == 1
    assert f"{tmp_path}/history.sqlite: there is no history yet" in capsys.readouterr().err


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return where `gridchase web` would answer on this machine: nobody does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setattr("controller.cli.history.report.LOCAL_WEB", url)
    return url


def test_the_history_of_the_node_comes_before_the_page(
    database: str, nobody: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("controller.config.default_state_dir", lambda: Path(database).parent)
    assert main(["report"]) == 0
    shown = capsys.readouterr().out
    assert f"Readfrom{database}." in "".join(shown.split())
    assert nobody not in shown


def test_what_was_tried_is_said_where_nothing_is_found(
    nobody: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("controller.config.default_state_dir", lambda: tmp_path)
    assert main(["report"]) == 1
    told = capsys.readouterr().err
    path = tmp_path / "history.sqlite"
    assert f"no history was found: {path}: no controller of this node has written one; {nobody}: no `gridchase" in told
    assert "--database, or where `gridchase web` of your site answers with --url" in told
    assert main(["report", "--month", "May"]) == 2, "the question is checked first"
    assert "--month May: must be a month" in capsys.readouterr().err
    assert main(["report", "--export", str(tmp_path / "runs.csv")]) == 1, "rows are read from a file alone"
    assert f"{path}: there is no history yet" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"no database at all, but long enough to be one" * 100])
def test_a_history_that_is_damaged_is_told_and_not_passed_over(
    content: bytes, nobody: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("controller.config.default_state_dir", lambda: tmp_path)
    (tmp_path / "history.sqlite").write_bytes(content)
    assert main(["report"]) == 1
    told = capsys.readouterr().err
    assert f"{tmp_path}/history.sqlite" in told
    assert nobody not in told


def test_jobs_and_nodes_are_in_the_order_in_which_people_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = HistoryFile(tmp_path / "history.sqlite", topics=TOPICS, config=HistoryConfig(), session_s=None)
    record = run_record(time_s=NOON_S, duration_s=60.0, energy_j=9e3)
    history.write([run_message(record, job=f"job-{number}") for number in (10, 1, 2)], now_s=NOON_S)
    for at_s, energy_j in ((NOON_S, 1e3), (LATE_S, 2e3)):
        _, counters = gpu_message(at_s, energy_j)
        topics = [TOPICS.gpu(f"node-{number}", "GPU-0", "energy") for number in (10, 9)]
        history.write([(topic, counters) for topic in topics], now_s=at_s)
    history.close()
    asked = ["report", "--database", str(tmp_path / "history.sqlite"), "--json", "--by"]
    assert main([*asked, "job"]) == main([*asked, "node"]) == 0
    jobs, nodes = (json.loads(line) for line in capsys.readouterr().out.replace("}\n{", "}\0{").split("\0"))
    assert [row["name"] for row in jobs["rows"]] == ["alice/job-1", "alice/job-2", "alice/job-10"]
    assert [row["name"] for row in nodes["rows"]] == ["node-9", "node-10"]
