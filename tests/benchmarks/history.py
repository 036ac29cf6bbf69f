"""How large a history becomes, what writing it takes, and a report: `python -m tests.benchmarks.history [--write]`.

One node with 64 GPUs, or a site of 8 nodes with 8 each. Each GPU has runs of a day, one after the other, publishes
every half minute, and changes its limit twice in a quarter-hour. The months are written as a controller, or
`gridchase web`, does, but for the quarter-hours' last messages alone.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from controller.config import HistoryConfig
from controller.history.energy_history.growth import QUARTER_S
from controller.history.energy_history.history_file import HistoryFile, read_history
from controller.history.energy_history.query import ReportQuery, make_report
from controller.history.energy_history.reading import Period
from controller.history.energy_history.recorder import FILE
from policies.vocabulary.units import DAY_S
from publishers.messages.topics import Topics
from tests.benchmarks.pages import add_write, measured_on, show
from tests.controller.history.energy_history.records import (
    TOPICS,
    gpu_message,
    limit_message,
    measured,
    run_message,
    run_record,
    split,
)
from tests.fakes import MIDNIGHT_S

TABLE: Final = Path(__file__).with_suffix(".md")
ReportBy = Literal["job", "day", "run", "node"]
REPORTS: Final[tuple[ReportBy, ...]] = ("job", "day", "run", "node")
N_GPUS: Final = 64
CHANGES: Final = (0.0, 600.0)
"""When in a quarter-hour a limit changes [s]: 2 in 900 s, as with two limits that are mixed now and then."""
POWER_W: Final = 250.0
DETAIL: Final = (
    "following the grid: dirtier than usual for the next 3 h, so 205 W; 97.4 % of full speed, 97.1 % on average"
)


def messages_of(at_s: float, n_nodes: int) -> list[tuple[str, bytes]]:
    """Return what so many nodes publish in the last moment of a quarter-hour, and the decisions in it."""
    messages: list[tuple[str, bytes]] = []
    since_s = at_s - MIDNIGHT_S
    day, in_day_s = divmod(since_s, DAY_S)
    for gpu in range(N_GPUS):
        uuid = f"GPU-{gpu:08x}-0000-0000-0000-000000000000"
        energy_j = POWER_W * in_day_s
        record = run_record(
            time_s=at_s,
            run=f"slurm-{1_000_000 + 100 * day + gpu:.0f}",
            duration_s=in_day_s,
            energy_j=energy_j,
            carbon_g=energy_j / 1e4,
            batch_size=256,
            max_power_w=300.0,
            power_limit_w=205.0,
            reason="plan",
            detail=DETAIL,
            final=in_day_s >= DAY_S - QUARTER_S,
        )
        record = split(measured(record, saved_ratio=0.1), 0.02)
        name = {"job": f"pretraining-{gpu:02}", "user": f"researcher-{gpu % 8}"}
        node = f"node-{gpu * n_nodes // N_GPUS}"
        messages += [run_message(record, **name), run_message(record, node=node, **name)]
        _, energy = gpu_message(at_s, POWER_W * since_s, carbon_g=since_s / 100, gpu_index=gpu * n_nodes % N_GPUS)
        messages.append((TOPICS.gpu(node, uuid, "energy"), energy))
        changes = [limit_message(at_s + change_s, detail=DETAIL) for change_s in CHANGES]
        messages += [(TOPICS.gpu(node, uuid, "limit"), change) for _, change in changes]
    return messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A history that was kept for some time: how large it is, and what it takes.

    Attributes:
        whose: a node's or a site's.
        bytes_at: its size after so many days, while it is open [bytes].
        write_s: how much of a core a write takes, the mean [s].
        report_s: how much of a core a report of the last 30 days takes, by what it is by [s].
        refused: messages that were not believed.
    """

    whose: str
    bytes_at: Mapping[int, int]
    write_s: float
    report_s: Mapping[ReportBy, float]
    refused: int


def keep(whose: str, n_nodes: int, session_s: float | None, n_days: int) -> Kept:
    """Write a history for some days, and ask for reports."""
    refused, busy_s, n_writes, bytes_at = 0, 0.0, 0, {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / FILE
        history = HistoryFile(path, topics=Topics(), config=HistoryConfig(), session_s=session_s)
        for day in range(n_days):
            for quarter in range(int(DAY_S) // QUARTER_S):
                at_s = MIDNIGHT_S + day * DAY_S + quarter * QUARTER_S
                messages = messages_of(at_s, n_nodes)
                begun_s = time.process_time()
                refused += history.write(messages, now_s=at_s)
                busy_s, n_writes = busy_s + time.process_time() - begun_s, n_writes + 1
            if day % 10 == 9 or day == n_days - 1:
                bytes_at[day + 1] = sum(file.stat().st_size for file in Path(folder).iterdir())
        history.close()
        times_s = {by: report_s(path, MIDNIGHT_S + n_days * DAY_S, by) for by in REPORTS}
    return Kept(whose=whose, bytes_at=bytes_at, write_s=busy_s / n_writes, report_s=times_s, refused=refused)


def report_s(path: Path, until_s: float, by: ReportBy) -> float:
    """Return how much of a core a report of the last 30 days takes [s]: one thread does all of it."""
    query = ReportQuery(by=by)
    period = Period(until_s - 30 * DAY_S, until_s)
    begun_s = time.process_time()
    report = read_history(path, lambda connection: make_report(connection, query, period, until_s))
    msgspec.json.encode(report)
    assert report.rows
    return time.process_time() - begun_s


def page(n_days: int) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# How large a history becomes\n"
    yield f"{measured_on('sqlalchemy')}; `python -m tests.benchmarks.history --write`.\n"
    yield (
        f"{N_GPUS} GPUs, of one node as its controller records them, or of 8 nodes as `gridchase web` does. Each has a"
        " run of a day, one after the other, of a job of its own, and a change of its limit every 7.5 minutes. A write"
        " is that of a whole quarter-hour, a report that of the last 30 days; both in CPU time. The bars are 200 MB"
        " after 30 days, and 2 s a report.\n"
    )
    days = sorted({*range(10, n_days + 1, 10), n_days})
    reports = " | ".join(f"report by {by}, s" for by in REPORTS)
    sizes = " | ".join(f"{day} days, MB" for day in days)
    yield f"| history of | {sizes} | write, ms | {reports} | not believed |"
    yield f"|---|{'---:|' * (len(days) + len(REPORTS) + 2)}"
    for whose, n_nodes, session_s in (("a node", 1, MIDNIGHT_S), ("a site", 8, None)):
        kept = keep(whose, n_nodes, session_s, n_days)
        cells = [
            *(f"{kept.bytes_at[day] / 1e6:.0f}" for day in days),
            f"{1e3 * kept.write_s:.0f}",
            *(f"{kept.report_s[by]:.2f}" for by in REPORTS),
            str(kept.refused),
        ]
        yield f"| {kept.whose} | {' | '.join(cells)} |"


def main() -> None:
    """Write months, and print the page; with `--write` into the file beside this one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=40)
    add_write(parser, TABLE)
    options = parser.parse_args()
    show(page(options.days), TABLE, write=options.write)


if __name__ == "__main__":
    main()
