"""What a publisher says of its own run: live values, the summary, and one line at the end, after the last record."""

from typing import Any

import pytest
from tqdm import tqdm

from publishers.messages.codec import encode
from publishers.messages.reports import RunEnergy
from tests.publishers.training.fake_connection import FakeConnection, publisher_on, wait_until
from tests.publishers.training.reporting.test_notices import notice
from tests.publishers.training.reporting.test_run_summary import KWH, UNKNOWN, record

NOW_S = 1.7e9


class MeasuredConnection(FakeConnection):
    """A connection to a broker with a controller, which sends `records` once the run has said that it is over."""

    def __init__(self, *records: RunEnergy, heard: bool = True) -> None:
        super().__init__()
        self._records = records
        if heard:
            self.notice(notice("heard"))

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> Any:  # noqa: ANN401
        receipt = super().publish(topic, payload, qos=qos, retain=retain)
        if self.statuses() and self.statuses()[-1].state != "running":
            for each in self._records:
                self.energy(each)
            self._records = ()
        return receipt


def trained(connection: FakeConnection, **changes: object) -> Any:  # noqa: ANN401 — a publisher
    """Return a publisher whose loop is over, but not closed."""
    publisher = publisher_on(connection, **{"username": "alice", "clock_s": lambda: NOW_S, **changes})
    for _ in range(3):
        publisher.iteration()
    wait_until(connection.statuses)
    return publisher


def final(**changes: object) -> RunEnergy:
    """Return the last record of the run."""
    return record(**{"run": "r1", "time_s": NOW_S + 60, **changes})


def running(**changes: object) -> RunEnergy:
    """Return a record on the way."""
    return final(state="running", final=False, **changes)


WELCOME = "gridchase: publishing as toy run r1; the controller on this machine hears it\n"


@pytest.fixture
def _welcomed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have told of no job that it is heard."""
    monkeypatch.setattr("publishers.training.reporting.run_report._welcomed", set())


@pytest.mark.usefixtures("_welcomed", "short_close")
def test_that_a_controller_hears_the_training_is_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    connection = MeasuredConnection()
    publisher = trained(connection)
    told: list[str] = []

    def has_told() -> bool:
        told.append(capfd.readouterr().err)
        return any(told)

    wait_until(has_told)
    connection.notice(notice("heard"))
    trained(MeasuredConnection(), run="r2").close()
    publisher.close()
    assert "".join([*told, capfd.readouterr().err]).count("publishing as") == 1
    assert "".join(told) == WELCOME


@pytest.mark.usefixtures("_welcomed", "short_close")
@pytest.mark.parametrize("why", ["quiet", "late", "unheard", "rank 1"])
def test_it_is_not_told_where_nobody_wants_it_or_it_comes_late(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setenv("GRIDCHASE_QUIET", "1" if why == "quiet" else "")
    if why == "late":
        monkeypatch.setattr("publishers.training.reporting.run_report.WELCOME_WITHIN_S", 0.0)
    ranks = {"rank": 1, "world_size": 2} if why == "rank 1" else {}
    connection = MeasuredConnection(heard=why != "unheard")
    publisher = trained(connection, **ranks)
    wait_until(lambda: why == "unheard" or publisher._worker.report._is_welcomed)
    publisher.close()
    assert "publishing as" not in capfd.readouterr().err


def test_closing_waits_for_the_last_record_and_tells_it_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    publisher = trained(MeasuredConnection(running(energy_j=1.0), final()))
    publisher.close()
    publisher.close()
    assert capfd.readouterr().err == (
        "gridchase: toy run r1: 1.84 kWh, 612 g CO2e, saved 11.3 % energy (±0.3) and 14.0 % carbon (±0.4) for 2.1 % "
        "more time (±0.1)\n"
    )
    assert publisher.summary().is_final


def test_the_line_is_one_of_its_own_below_a_progress_bar(capfd: pytest.CaptureFixture[str]) -> None:
    with tqdm(total=3):
        trained(MeasuredConnection(final())).close()
    (line,) = [text for text in capfd.readouterr().err.splitlines() if "gridchase" in text]
    assert line.startswith("gridchase: toy run r1: 1.84 kWh")


def test_leaving_the_context_tells_it_and_so_does_the_end_of_one_that_is_collected(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with trained(MeasuredConnection(final())):
        assert capfd.readouterr().err == ""
    assert capfd.readouterr().err.startswith("gridchase: toy run r1: 1.84 kWh")
    connection = MeasuredConnection(final())
    publisher = trained(connection)
    del publisher
    wait_until(lambda: connection.closed)
    printed: list[str] = []

    def has_printed() -> bool:
        printed.append(capfd.readouterr().err)
        return any(printed)

    wait_until(has_printed)
    assert "".join(printed).startswith("gridchase: toy run r1: 1.84 kWh")


def test_an_exception_tells_the_last_sums_as_so_far(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), trained(MeasuredConnection(final(state="lost", final=False))):
        raise ZeroDivisionError
    assert capfd.readouterr().err.startswith("gridchase: toy run r1, so far: 1.84 kWh")


@pytest.mark.parametrize("value", ["1", "true", "yes"])
def test_quiet_prints_nothing_and_still_knows(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("GRIDCHASE_QUIET", value)
    publisher = trained(MeasuredConnection(final()))
    publisher.close()
    assert (capfd.readouterr().err, publisher.summary().energy_j) == ("", 1.84 * KWH)


@pytest.mark.parametrize("rank", [1, 3])
def test_only_rank_0_listens_and_speaks_unless_another_is_asked(capfd: pytest.CaptureFixture[str], rank: int) -> None:
    connection = MeasuredConnection()
    publisher = trained(connection, rank=rank, world_size=4)
    topic = "gridchase/v1/user/alice/job/toy/run/r1/energy"
    assert topic not in connection.subscriptions
    assert publisher.summary().reason == "too_short"
    wait_until(lambda: topic in connection.subscriptions)
    connection.energy(running())
    wait_until(publisher.live)
    publisher.close()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("run", "rank"), [("r1", 0), ("r9", 1)], ids=["the first", "one that joined it"])
@pytest.mark.parametrize("is_last", [True, False])
def test_of_a_run_of_several_the_last_one_tells_the_end(
    capfd: pytest.CaptureFixture[str], run: str, rank: int, *, is_last: bool
) -> None:
    connection = MeasuredConnection()
    connection.notice(notice("joined", rank=rank, joined=run))
    publisher = trained(connection)
    topic = f"gridchase/v1/user/alice/job/toy/run/{run}/energy"
    wait_until(lambda: topic in connection.subscriptions and publisher._worker._notices.joined)
    connection.hear(topic, encode(final(run=run, last_rank=rank if is_last else 1 - rank)))
    wait_until(publisher.live)
    publisher.close()
    assert (
        capfd.readouterr().err.startswith(f"gridchase: toy run {run}: 1.84 kWh" if is_last else "gridchase") == is_last
    )
    assert publisher.summary().energy_j == 1.84 * KWH


def test_one_that_is_counted_anew_by_itself_tells_the_end_of_its_own_run(capfd: pytest.CaptureFixture[str]) -> None:
    connection = MeasuredConnection(final())
    publisher = trained(connection)
    topic = "gridchase/v1/user/alice/job/toy/run/r9/energy"
    connection.notice(notice("joined", rank=1, joined="r9"))
    wait_until(lambda: topic in connection.subscriptions)
    connection.notice(notice("heard"))
    wait_until(lambda: publisher._worker.report._joined is None)
    connection.hear(topic, encode(final(run="r9", last_rank=1)))
    publisher.close()
    assert capfd.readouterr().err.startswith("gridchase: toy run r1: 1.84 kWh")


def test_where_others_go_on_nothing_is_told_and_nothing_waited_for(capfd: pytest.CaptureFixture[str]) -> None:
    connection = MeasuredConnection(running())
    connection.notice(notice("joined", rank=0, joined="r1"))
    publisher = trained(connection)
    report = publisher._worker.report
    wait_until(lambda: report._joined)
    assert report.is_awaited
    connection.notice(notice("others_run"))
    wait_until(lambda: not report.is_awaited)
    publisher.close()
    assert capfd.readouterr().err == ""


def test_a_run_that_was_too_short_to_be_heard_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    publisher = trained(MeasuredConnection(heard=False))
    publisher.close()
    assert capfd.readouterr().err == (
        "gridchase: toy run r1: not measured: it was too short to be heard by a controller, if one of this machine "
        "listens at mqtt://127.0.0.1:1883\n"
    )
    assert publisher.summary().reason == "too_short"


def test_where_no_controller_was_heard_nothing_is_waited_for(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("publishers.training.reporting.run_report.HEARD_WITHIN_S", 0.0)
    connection = MeasuredConnection(heard=False)
    publisher = trained(connection)
    assert not publisher._worker.report.is_awaited
    publisher.close()
    assert connection.closed
    assert capfd.readouterr().err == (
        "gridchase: toy run r1: not measured: no controller of this machine listens at mqtt://127.0.0.1:1883: is "
        "`gridchase up` running here?\n"
    )
    assert publisher.summary().reason == "no_controller"


@pytest.mark.usefixtures("short_close")
def test_a_record_that_does_not_come_is_waited_for_no_longer_than_closing_takes(
    capfd: pytest.CaptureFixture[str],
) -> None:
    connection = MeasuredConnection()
    publisher = trained(connection)
    connection.energy(running())
    wait_until(publisher.live)
    publisher.close()
    assert connection.closed
    assert capfd.readouterr().err.startswith("gridchase: toy run r1, so far: 1.84 kWh")


def test_without_a_broker_the_warning_at_the_start_is_all(capfd: pytest.CaptureFixture[str]) -> None:
    connection = FakeConnection(up=False)
    publisher = publisher_on(connection)
    publisher.iteration()
    publisher.iteration()
    wait_until(lambda: connection.failures)
    publisher.close()
    assert "not measured" not in capfd.readouterr().err
    assert publisher.summary().reason == "no_broker"


def test_a_publisher_that_was_never_used_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    connection = MeasuredConnection(heard=False)
    publisher = publisher_on(connection)
    wait_until(connection.statuses)
    publisher.close()
    assert capfd.readouterr().err == ""


def test_a_failed_training_that_was_not_measured_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), trained(MeasuredConnection(heard=False)):
        raise ZeroDivisionError
    assert capfd.readouterr().err == ""


def test_a_refusal_of_the_controller_is_why_nothing_was_measured(capfd: pytest.CaptureFixture[str]) -> None:
    connection = MeasuredConnection(final(n_gpus=0, energy_j=0.0, reason="claim_rejected", detail="a conflict"))
    connection.notice(notice("gpu_taken", detail="GPU-1 is held by run r0"))
    publisher = trained(connection)
    publisher.close()
    assert capfd.readouterr().err.endswith("gridchase: toy run r1: not measured: GPU-1 is held by run r0\n")
    assert publisher.summary().reason == "gpu_taken"


@pytest.mark.usefixtures("short_close")
def test_the_retained_record_of_an_earlier_run_of_this_id_is_not_ours() -> None:
    connection = MeasuredConnection()
    publisher = trained(connection)
    connection.energy(final(time_s=NOW_S - 1))
    connection.energy(b"not json")
    connection.energy(running(energy_j=2 * KWH))
    wait_until(publisher.live)
    assert publisher.summary().energy_j == 2 * KWH
    publisher.close()


@pytest.mark.usefixtures("short_close")
def test_live_values_are_the_newest_records_and_the_power_since_the_one_before() -> None:
    connection = MeasuredConnection()
    publisher = trained(connection)
    assert publisher.live() is None
    connection.energy(running(energy_j=1_000.0, duration_s=10.0, evidence="too_early"))
    wait_until(publisher.live)
    assert publisher.live() == {"power_limit_w": 220.0, "energy_j": 1_000.0, "carbon_g": 612.0}, "no saving yet"
    more = {"carbon_g": 100.0, "baseline_carbon_g": 150.0, "saved_ratio": 0.3333, "saved_ci90_ratio": 0.0042}
    energy = {"energy_j": 2_000.0, "baseline_energy_j": 2_512.3, "saved_energy_ratio": 0.2038}
    connection.energy(running(duration_s=15.0, saved_energy_ci90_ratio=0.0052, **energy, **more))
    wait_until(lambda: publisher.live().get("power_w"))
    assert publisher.live() == {
        "power_w": 200.0,
        "power_limit_w": 220.0,
        "energy_j": 2_000.0,
        "carbon_g": 100.0,
        "saved_ratio": 0.3333,
        "saved_ci90_ratio": 0.0042,
        "slowdown_ratio": 1.021,
        "slowdown_ci90_ratio": 0.0006,
        "saved_energy_j": 512.0,
        "saved_energy_ci90_j": 13.0,
        "saved_carbon_g": 50.0,
        "saved_carbon_ci90_g": 0.63,
    }, "amounts to two digits of their half-widths"
    connection.energy(running(energy_j=2_010.0, duration_s=15.01))
    connection.energy(running(energy_j=2_450.0, duration_s=17.0))
    wait_until(lambda: publisher.live().get("energy_j") == 2_450.0)
    assert publisher.live()["power_w"] == 225.0, "no power of some milliseconds"
    publisher.close()


@pytest.mark.usefixtures("short_close")
def test_a_run_without_a_gpu_has_no_live_values() -> None:
    connection = MeasuredConnection()
    publisher = trained(connection)
    connection.energy(running(n_gpus=0))
    wait_until(lambda: publisher._worker.report._feed.latest)
    assert publisher.live() is None
    publisher.close()


def test_off_there_is_nothing_to_say(capfd: pytest.CaptureFixture[str]) -> None:
    publisher = publisher_on(FakeConnection(), job="no such job name!")
    assert (publisher.live(), publisher.summary().reason) == (None, "off")
    publisher.close()
    assert "run r1" not in capfd.readouterr().err


def test_ctrl_c_ends_the_waiting_and_goes_on_after_the_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = MeasuredConnection()
    publisher = trained(connection)
    connection.energy(running())
    wait_until(publisher.live)

    def interrupt(_timeout_s: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(publisher._worker._ended, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            publisher.close()
    assert capfd.readouterr().err.startswith("gridchase: toy run r1, so far: 1.84 kWh")
    connection.energy(final())
    wait_until(lambda: connection.closed)


class BrokenStream:
    """A stream that fails, as that of a closed window does."""

    def write(self, _text: str) -> int:
        raise OSError("gone")

    flush = write


@pytest.mark.parametrize("stream", [None, BrokenStream()])
def test_a_stream_that_fails_fails_nothing(monkeypatch: pytest.MonkeyPatch, stream: object) -> None:
    publisher = trained(MeasuredConnection(final()))
    monkeypatch.setattr("sys.stderr", stream)
    publisher.close()
    assert publisher.summary().is_final


def test_live_values_are_logged_once_they_are_known_and_in_the_end_the_last_ones() -> None:
    logged: list[dict[str, float]] = []
    connection = MeasuredConnection(final())
    publisher = trained(connection)
    publisher.log_live(logged.append)
    assert logged == []
    connection.energy(running(energy_j=1_000.0))
    wait_until(publisher.live)
    publisher.log_live(logged.append)
    publisher.log_live(logged.append)
    assert [values["gridchase/energy_j"] for values in logged] == [1_000.0], "once a period"
    publisher.close()
    publisher.log_live(logged.append)
    publisher.log_live(logged.append)
    assert [values["gridchase/energy_j"] for values in logged] == [1_000.0, 1.84 * KWH]


@pytest.mark.parametrize("evidence", ["measured", "nothing_changed", *UNKNOWN])
def test_line_and_trackers_tell_a_saving_with_its_evidence_alone(
    evidence: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    publisher = trained(MeasuredConnection(final(evidence=evidence)))
    publisher.close()
    logged: list[dict[str, float]] = []
    publisher.log_live(logged.append)
    told = {name.removeprefix("gridchase/") for name in logged[0] if "saved" in name or "slowdown" in name}
    ratios = {"saved_ratio", "saved_ci90_ratio", "slowdown_ratio", "slowdown_ci90_ratio"}
    amounts = {"saved_energy_j", "saved_energy_ci90_j", "saved_carbon_g", "saved_carbon_ci90_g"}
    assert told == (ratios | amounts if evidence in {"measured", "nothing_changed"} else set())
    line = capfd.readouterr().err
    assert (line.count("±"), line.count(" %")) == ((3, 3) if evidence == "measured" else (0, 0))


def test_other_ranks_log_nothing() -> None:
    logged: list[dict[str, float]] = []
    connection = MeasuredConnection()
    publisher = trained(connection, rank=1, world_size=2)
    publisher.live()
    wait_until(lambda: any(topic.endswith("/energy") for topic in connection.subscriptions))
    connection.energy(running())
    wait_until(publisher.live)
    publisher.log_live(logged.append)
    assert logged == []
    publisher.close()
