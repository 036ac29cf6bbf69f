"""How precisely rate and power of a real board are known: `python -m tests.benchmarks.h100 --data DIR [--write]`.

DIR holds `steps.npz` and `meter.npz`, recorded on an H100 whose limit never changed.
"""

import argparse
import math
from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from controller.accounting.iteration_log import IterationLog
from policies.profiling.measurement import EMPTY_WINDOW, PRIOR_SCATTER, Observation, estimate_window
from policies.vocabulary.units import Values
from publishers.messages.codec import decode, encode
from publishers.messages.training import Iterations, pack_ends
from tests.benchmarks.pages import add_write, measured_on, show

TABLE: Final = Path(__file__).with_suffix(".md")
NS_PER_S: Final = 1_000_000_000
FLUSH_S: Final = 0.25
READ_S: Final = 0.1
WINDOWS_S: Final = (0.5, 1.0, 2.0, 4.0)
AFTER_PAUSE_S: Final = 1.0
TRAININGS: Final = {
    "resnet50_b256": "ResNet-50, batch 256, a loss read each 50th step",
    "resnet50_b64_nosync": "ResNet-50, batch 64, nothing waits (host bound)",
    "tiny_ev": "MLP of 2 ms (host bound)",
    "gpt2_acc1": "GPT-2, sequences of unequal length",
}
STEADY_W: Final = 500.0
"""Power is compared where a training keeps the board busy."""
PROTOCOL: Final = """\
One H100 80GB HBM3 (SXM, 700 W), driver 580.159.04, 26 November 2026, PyTorch 2.11; its limit never changed. Marks of
each training go through the wire, in messages of a quarter of a second, and into the log of its rank; iterations are
counted between readings, ten a second, in windows that follow one another. Left out are windows with a pause, and
those that begin within a second of one."""

TimesNs = NDArray[np.int64]


def scatter_percent(values: Sequence[float] | Values) -> float:
    """Return by how much neighbouring values differ, as a standard deviation in % of their mean: without drift."""
    found = np.asarray(values, dtype=np.float64)
    return float(100 * np.sqrt(np.mean(np.diff(found) ** 2) / 2) / found.mean()) if len(found) > 1 else math.nan


def messages_of(marks_ns: TimesNs) -> Iterator[Iterations]:
    """Yield the messages that a publisher sends of steps that ended at these times."""
    begin, seq = 0, 0
    for end in range(1, len(marks_ns)):
        is_last = end + 1 == len(marks_ns)
        if is_last or marks_ns[end + 1] - marks_ns[begin] > FLUSH_S * NS_PER_S:
            message = Iterations(
                run="run",
                seq=seq,
                first=begin,
                begin_ns=int(marks_ns[begin]),
                end_ns=pack_ends(array("q", marks_ns[begin + 1 : end + 1].tolist())),
                epoch=0,
                dropped=0,
                counted_by="optimizer",
            )
            yield decode(encode(message), Iterations)
            begin, seq = end, seq + 1


def counts_of(marks_ns: TimesNs, edges_ns: TimesNs) -> list[float]:
    """Return how many iterations the log counts between readings, as soon as it knows them."""
    log, counts = IterationLog(), list[float]()
    for message in messages_of(marks_ns):
        assert log.append(message, now_ns=int(marks_ns[-1]))
        while len(counts) + 1 < len(edges_ns) and edges_ns[len(counts) + 1] <= (log.settled_ns or 0):
            begin_ns, end_ns = (int(edge_ns) for edge_ns in edges_ns[len(counts) : len(counts) + 2])
            activity = log.activity(begin_ns, end_ns)
            counts.append(activity.n_iterations if activity.is_continuous and not activity.gaps_s else math.nan)
            log.forget_before(end_ns)
    return counts


def windows_of(counts: Sequence[float], window_s: float) -> list[float]:
    """Return the rates in windows that follow one another, without those with a pause, or right after one [1/s]."""
    n, n_after = round(window_s / READ_S), round(AFTER_PAUSE_S / READ_S)
    rates, place, last_pause = list[float](), 0, -n_after
    while place + n <= len(counts):
        paused = [at for at in range(max(place - n_after, 0), place + n) if math.isnan(counts[at])]
        last_pause = max([last_pause, *paused])
        if last_pause >= place - n_after and paused:
            place = last_pause + n_after + 1
            continue
        rates.append(sum(counts[place : place + n]) / window_s)
        place += n
    return rates


def plain_counts(marks_ns: TimesNs, edges_ns: TimesNs, logged: Sequence[float]) -> list[float]:
    """Return the counts by the marks as they are, where the log has counts."""
    found = np.diff(np.interp(edges_ns, marks_ns, np.arange(len(marks_ns)))).tolist()
    return [math.nan if math.isnan(known) else count for count, known in zip(found, logged, strict=False)]


def waiting_hook(device_ns: TimesNs, *, wait_share: float) -> TimesNs:
    """Return when an optimizer's hook would be called that runs a step ahead, and waits for the device at random."""
    waits = np.random.default_rng(1).random(len(device_ns)) < wait_share
    return np.where(waits[1:], device_ns[1:], device_ns[:-1])


def _trainings(steps: Any) -> Iterator[tuple[str, TimesNs, TimesNs | None]]:  # noqa: ANN401 — numpy's archive has no type
    """Yield the name of each training, the marks of its hook, and those of the device where they are known."""
    for name, what in TRAININGS.items():
        device = f"{name}.device_ns"
        yield what, steps[f"{name}.hook_ns"], steps.get(device)
    device_ns = steps["resnet50_b256.device_ns"]
    for one_in in (50, 10, 5):
        what = (
            f"ResNet-50, batch 256, a hook that waits at random, for one step in {one_in} (simulated from the device)"
        )
        yield what, waiting_hook(device_ns, wait_share=1 / one_in), device_ns[1:]


def rates_table(steps: Any) -> Iterator[str]:  # noqa: ANN401 — numpy's archive has no type
    """Yield the scatter of rates."""
    heads = " | ".join(f"{window_s:g} s" for window_s in WINDOWS_S)
    yield f"| training | marks | ms a step | late | {heads} |"
    yield "|---|---|---:|---:|" + "---:|" * len(WINDOWS_S)
    for what, hook_ns, device_ns in _trainings(steps):
        edges_ns = np.arange(int(hook_ns[10]), int(hook_ns[-1]), round(READ_S * NS_PER_S))
        logged = counts_of(hook_ns, edges_ns)
        plain = plain_counts(hook_ns, edges_ns, logged)
        rows = [("hook, as they come", plain), ("hook, in the log", logged)]
        if device_ns is not None:
            rows.append(("device", plain_counts(device_ns, edges_ns, logged)))
        step_ms = 1e-6 * float(np.median(np.diff(hook_ns)))
        n_late = int(np.count_nonzero(np.diff(hook_ns) > 1.05e6 * step_ms))
        for marks, counts in rows:
            scatters = (scatter_percent(windows_of(counts, window_s)) for window_s in WINDOWS_S)
            cells = " | ".join("-" if math.isnan(scatter) else f"{scatter:.3f} %" for scatter in scatters)
            yield f"| {what} | {marks} | {step_ms:.1f} | {n_late} of {len(hook_ns)} | {cells} |"


def powers_table(rows: NDArray[np.int64]) -> Iterator[str]:
    """Yield the scatter of powers, by how they are estimated."""
    times_s, energy_j, instant_w = rows[:, 1] / NS_PER_S, rows[:, 2] / 1e3, rows[:, 3] / 1e3
    heads = " | ".join(f"{window_s:g} s" for window_s in WINDOWS_S)
    yield f"| power by | {heads} |"
    yield "|---|" + "---:|" * len(WINDOWS_S)
    found: dict[str, list[float]] = {
        "the counter's ends": [],
        "least squares over the counter": [],
        "the instant readings": [],
    }
    for window_s in WINDOWS_S:
        seen: dict[str, list[tuple[float, float]]] = {name: [] for name in found}
        for begin_s in np.arange(times_s[0], times_s[-1] - window_s, window_s):
            inside = np.flatnonzero((times_s >= begin_s) & (times_s < begin_s + window_s))
            if len(inside) < 3 or instant_w[inside].min() < STEADY_W:
                continue
            for name, power_w in zip(
                found, _powers_w(times_s[inside], energy_j[inside], instant_w[inside]), strict=True
            ):
                seen[name].append((float(begin_s), power_w))
        for name, powers in seen.items():
            off = [
                (b - a) / (b + a) * 2 for (at_s, a), (then_s, b) in pairwise(powers) if then_s - at_s < 1.5 * window_s
            ]
            found[name].append(100 * math.sqrt(sum(x * x for x in off) / len(off) / 2))
    for name, percents in found.items():
        yield f"| {name} | " + " | ".join(f"{percent:.2f} %" for percent in percents) + " |"


def _powers_w(times_s: Values, energy_j: Values, instant_w: Values) -> tuple[float, float, float]:
    ends_w = (energy_j[-1] - energy_j[0]) / (times_s[-1] - times_s[0])
    window = EMPTY_WINDOW
    for (begin_s, end_s), (before_j, after_j) in zip(pairwise(times_s), pairwise(energy_j), strict=True):
        window = window.with_observation(
            Observation(
                power_limit_w=1.0,
                active_s=float(end_s - begin_s),
                n_iterations=1.0,
                energy_j=float(after_j - before_j),
                iteration_times_s=(float(end_s - begin_s),),
            )
        )
    return float(ends_w), estimate_window(window, PRIOR_SCATTER).power_w, float(instant_w.mean())


def page(data: Path) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Rate and power of a real board\n"
    yield f"{measured_on()}; `python -m tests.benchmarks.h100 --data DIR --write`.\n"
    yield f"{PROTOCOL}\n\n## Rate: scatter from one window to the next\n"
    yield from rates_table(np.load(data / "steps.npz"))
    yield "\n*late*: steps that seem more than 5 % longer than the median; most of those of host-bound trainings are."
    yield f"\n## Power above {STEADY_W:g} W: scatter from one window to the next\n"
    yield from powers_table(np.load(data / "meter.npz")["rows"])


def main() -> None:
    """Compute and print; with `--write` into the page beside this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, metavar="DIR", help="a folder with steps.npz and meter.npz")
    add_write(parser, TABLE)
    options = parser.parse_args()
    if options.data is None or not (options.data / "steps.npz").is_file():
        print("skipped: there is no data; name a folder with steps.npz and meter.npz with --data DIR")
        return
    show(page(options.data), TABLE, write=options.write)


if __name__ == "__main__":
    main()
