"""Limits and times on the command line: as people write them, in the zone of the machine; anything else is refused."""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from tempfile import NamedTemporaryFile
from threading import Thread
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.cli.main import main
from controller.cli.orders.values import power_w, slowdown_ratio
from controller.runtime.typed_values import time_s

BERLIN = ZoneInfo("Europe/Berlin")
NOW_S = datetime(2026, 3, 28, 17, 0, tzinfo=UTC).timestamp()
"""18:00 in Berlin, the evening before the clocks go forward."""


def moment_s(text: str) -> float:
    """Return the time of a date in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("18:30", "2026-03-28T17:30"),
        ("18:00", "2026-03-29T16:00"),
        ("6:05", "2026-03-29T04:05"),
        ("+2h", "2026-03-28T19:00"),
        ("+1d2h30m", "2026-03-29T19:30"),
        ("+45min", "2026-03-28T17:45"),
        ("2026-03-29T18:00", "2026-03-29T16:00"),
        ("2026-03-29 18:00", "2026-03-29T16:00"),
        ("2026-03-29T18:00Z", "2026-03-29T18:00"),
        ("2026-03-29T18:00:00-05:00", "2026-03-29T23:00"),
    ],
)
def test_a_time_is_understood_in_the_zone_of_the_machine(text: str, utc: str) -> None:
    assert time_s(text, now_s=NOW_S, zone=BERLIN) == moment_s(utc)


@pytest.mark.parametrize("text", ["", "+", "2h", "24:00", "18:60", "tomorrow", "+99999999999d", "for ever"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises((ValueError, OverflowError)):
        time_s(text, now_s=NOW_S, zone=BERLIN)


@given(hour=st.integers(0, 23), minute=st.integers(0, 59), now_s=st.floats(0, 4e9))
def test_a_time_of_day_is_the_next_one(hour: int, minute: int, now_s: float) -> None:
    until_s = time_s(f"{hour}:{minute:02}", now_s=now_s, zone=UTC)
    assert 0 < until_s - now_s <= 86_400
    assert datetime.fromtimestamp(until_s, UTC).strftime("%-H:%M:%S") == f"{hour}:{minute:02}:00"


@pytest.mark.parametrize(("text", "watts"), [("205W", 205.0), ("205", 205.0), ("205.5 W", 205.5), ("0.2kW", 200.0)])
def test_a_power_is_in_watts_or_kilowatts(text: str, watts: float) -> None:
    assert power_w(text) == watts


@pytest.mark.parametrize("text", ["", "0", "-5W", "205mW", "nan", "inf", "1e400", "W"])
def test_what_is_no_power_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be a power above 0"):
        power_w(text)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--until", "+2h", "--why", "x"], "required: --limit"),
        (["--limit", "205W", "--why", "x"], "required: --until"),
        (["--limit", "205W", "--until", "+2h"], "required: --why"),
        (["--limit", "205mW", "--until", "+2h", "--why", "x"], "'205mW': must be a power above 0"),
    ],
)
def test_a_pin_needs_limit_time_and_reason(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["pin", "--job", "resnet50", *arguments])
    assert (caught.value.code, said in capsys.readouterr().err) == (2, True)


def test_a_time_that_cannot_be_read_is_the_arguments_fault(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["pin", "--job", "resnet50", "--limit", "205W", "--until", "soon", "--why", "x"])
    assert (code, "--until 'soon': must be 18:00, +2h30m, or" in capsys.readouterr().err) == (2, True)


@pytest.mark.parametrize(("text", "ratio"), [("1", 1.0), ("1.08", 1.08), ("10", 10.0)])
def test_a_slowdown_is_a_factor(text: str, ratio: float) -> None:
    assert slowdown_ratio(text) == ratio


@pytest.mark.parametrize("text", ["", "0.99", "8%", "nan", "inf", "-1", "10.1"])
def test_what_is_no_slowdown_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be a factor from 1"):
        slowdown_ratio(text)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("budget", "--job", "j", "--why", "x"), "one of the arguments --reset --max-slowdown is required"),
        (("budget", "--job", "j", "--max-slowdown", "1.08"), "required: --why"),
        (("budget", "--job", "j", "--why", "x", "--max-slowdown", "0.5"), "must be a factor from 1"),
        (("budget", "--job", "j", "--why", "x", "--max-slowdown", "2", "--until", "soon"), "--until 'soon': must be"),
        (("budget", "--job", "j", "--why", "x", "--reset", "--until", "+2h"), "--until: a reset is for good"),
        (("deadline", "--job", "j", "--why", "x"), "one of the arguments --reset --at is required"),
        (("deadline", "--job", "j", "--why", "x", "--at", "25:00"), "--at '25:00': must be"),
        (("exempt", "--job", "j", "--why", "x"), "required: --until"),
        (("exempt", "--why", "x", "--until", "+2h"), "one of the arguments --job --gpu is required"),
    ],
)
def test_wrong_arguments_of_goals_end_with_2(
    arguments: tuple[str, ...], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(arguments)
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    assert fault in capsys.readouterr().err


@contextmanager
def controller(state: str, **more: str) -> Iterator[tuple[list[str], list[str]]]:
    """Serve a controller of a run whose goal is in some state; yield the arguments for it, and what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._answer()

        def _answer(self) -> None:
            asked.append(f"{self.command} {self.path}")
            fields = {"pausable": True, "max_pause_s": 300.0, "sentence": "no run has it now", "detail": "no run"}
            fields |= {"state": "none" if self.path.endswith("/reset") else state, **more}
            body = json.dumps(fields).encode()
            self.send_response(200)
            self.send_header("Content-Length", f"{len(body)}")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server, NamedTemporaryFile("w", suffix=".token") as token:
        token.write("secret")
        token.flush()
        serving = Thread(target=server.serve_forever)
        serving.start()
        run = ["--job", "j", "--run", "r", "--user", "ada", "--why", "x", "--token-file", token.name]
        try:
            yield [*run, "--set", f"http.port={server.server_port}"], asked
        finally:
            server.shutdown()
            serving.join()


def test_a_gpu_is_exempt_and_what_that_does_is_said_before(capsys: pytest.CaptureFixture[str]) -> None:
    with controller("waiting") as (run, asked):
        assert main(["exempt", "--gpu", "GPU-1", "--until", "+2h", *run[6:]]) == 0
    before, ordered, after = capsys.readouterr().out.splitlines()
    assert (before, after) == ("GPU-1: no run has it now", "GPU-1: done: no run")
    assert ordered.startswith("GPU-1: asked for its prior limit until ")
    assert asked == ["POST /v1/gpus/pin/preview", "POST /v1/gpus/exempt"]


def test_a_release_of_a_run_says_that_the_pin_of_its_gpu_stays(capsys: pytest.CaptureFixture[str]) -> None:
    with controller("done", by="bob", why="hot", gpu_uuid="GPU-1") as (run, _):
        assert main(["release", *run]) == 1
    before, after = capsys.readouterr().out.splitlines()
    assert before == (
        "ada/j/r: it is held with its GPU GPU-1, pinned by bob (hot); that stays, a pin of its own will end"
    )
    assert after.endswith("still pinned, by bob (hot): end that with `gridchase release --gpu GPU-1`")
    with controller("done", by="bob", why="hot") as (run, _):
        main(["release", *run])
    assert "ada/j/r: its pin by bob (hot) will end" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("verb", "state", "before"),
    [
        ("pause", "paused", "it will wait for 300 s at most after an iteration, once all its ranks are there,"),
        ("resume", "running", "it trains: nothing will change"),
    ],
)
def test_what_a_pause_and_its_end_do_is_said_before(
    verb: str, state: str, before: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with controller(state) as (run, asked):
        assert main([verb, *run]) == 0
        said, done = capsys.readouterr().out.splitlines()
        assert said.startswith(f"ada/j/r: {before}")
        assert done.startswith(f"ada/j/r: {'paused' if verb == 'pause' else 'trains'}")
        assert main([verb, "--json", *run]) == 0
        assert json.loads(capsys.readouterr().out)["state"] == state, "no more than JSON"
    assert [each.rpartition("/")[2] for each in asked] == ["pause", verb, verb]


@pytest.mark.parametrize(
    ("state", "arguments", "said", "requests"),
    [
        ("done", ["--dry-run"], "reset: the configured objective would hold again", ["GET goal"]),
        ("done", [], "reset: the configured objective holds again", ["GET goal", "POST goal/reset"]),
        ("none", ["--dry-run"], "has the configured objective", ["GET goal"]),
    ],
)
@pytest.mark.parametrize("verb", ["budget", "deadline"])
def test_a_dry_run_resets_nothing(
    verb: str, state: str, arguments: list[str], said: str, requests: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with controller(state) as (run, asked):
        assert main([verb, "--reset", *arguments, *run]) == 0
    assert capsys.readouterr().out == f"ada/j/r: {said}\n"
    assert [each.replace("/v1/jobs/ada/j/runs/r/", "") for each in asked] == requests
