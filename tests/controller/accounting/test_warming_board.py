"""A board that warms: what is told of a run on the simulated one holds what it has truly saved."""

from dataclasses import replace

from controller.accounting.meter_intervals import MeterInterval
from controller.accounting.run_books import GpusNow, RunBooks
from controller.config import EnergyConfig, PlanConfig, ProfilerConfig
from controller.control.curve_learning import Planned
from controller.control.limit_control import CurveStart, LimitControl
from controller.gpu.simulation.event_log import LimitSet, LoadChanged
from controller.gpu.simulation.measured_curve import MeasuredCurve
from controller.gpu.simulation.noise import Noise
from controller.gpu.simulation.timeline import GpuTimeline
from policies.profiling.paired_looks import Looks
from policies.savings.interval import KnownSaving
from policies.thermal.board import TIME_CONSTANTS_S
from tests.controller.control.control_bench import decide, plan_inputs
from tests.controller.messages import ns

TOP_W = 700.0
CURVE = MeasuredCurve(
    name="test",
    model="H100",
    workload="test",
    power_limits_w=(300.0, 400.0, 500.0, 600.0, TOP_W),
    powers_w=(285.0, 380.0, 475.0, 570.0, 640.0),
    speeds_per_s=(2.6, 2.95, 3.15, 3.28, 3.33),
    idle_power_w=90.0,
    iterations_per_epoch=1.0,
)
STEP_S, LONG_S = 1.0, 5_000.0
PAUSES_S = ((1_800.0, 2_000.0), (3_400.0, 3_600.0))
"""Validations, in which the board cools."""


def timeline() -> GpuTimeline:
    """Return a board that was idle before the job begins."""
    board = GpuTimeline(CURVE, Noise(2), start_ns=0, power_limit_w=TOP_W)
    board.record(LoadChanged(0, loaded=True))
    for begin_s, end_s in PAUSES_S:
        board.record(LoadChanged(ns(begin_s), loaded=False))
        board.record(LoadChanged(ns(end_s), loaded=True))
    return board


def trained(board: GpuTimeline) -> tuple[RunBooks, Looks]:
    """Train on a board at whatever is asked for; return the books and the looks of the run."""
    control, books = (
        LimitControl(
            job="job", profiler=ProfilerConfig(n_blocks=10), rules=PlanConfig().rules_of("job"), energy=EnergyConfig()
        ),
        RunBooks(),
    )
    control.begin(CurveStart(floor_power_limit_w=300.0, ceiling_power_limit_w=TOP_W))
    at_s, limit_w, since_ns = 0.0, TOP_W, 0
    while at_s < LONG_S:
        is_active = not any(begin_s <= at_s < end_s for begin_s, end_s in PAUSES_S)
        decision = decide(control, plan_inputs(at_s=at_s))
        assert decision.target is not None
        assert decision.purpose is not None
        wanted_w, books.purpose = decision.target.power_limit_w, decision.purpose
        if wanted_w != limit_w:
            limit_w, since_ns = wanted_w, ns(at_s)
            board.record(LimitSet(since_ns, limit_w))
        begin_ns, end_ns = ns(at_s), ns(at_s + STEP_S)
        seen = MeterInterval(
            begin_ns=begin_ns,
            end_ns=end_ns,
            active=is_active,
            n_iterations=board.done_iterations(end_ns) - board.done_iterations(begin_ns),
            energy_j=board.energy_j(end_ns) - board.energy_j(begin_ns),
            temperature_c=(round(board.temperature_c(begin_ns)) + round(board.temperature_c(end_ns))) / 2,
        )
        control.ledger.add(seen, (limit_w, since_ns))
        books.add(seen, GpusNow(in_force=(limit_w, since_ns)), begins_s=at_s)
        if is_active:
            control.observe(seen, enforced_power_limit_w=limit_w, warmth_w=books.thermal.warmth_w)
        at_s += STEP_S
    assert isinstance(control.state, Planned)
    books.curve = control.state.refinement.profile
    return books, control.ledger.looks


def truly_saved_ratio(board: GpuTimeline) -> float:
    """Return what the run has saved, beside the same work on a board at the top limit."""
    twin = timeline()
    done = board.done_iterations(ns(LONG_S))
    ends_ns = twin.reached_ns(done, not_before_ns=0)
    assert ends_ns is not None
    return 1 - board.energy_j(ns(LONG_S)) / twin.energy_j(ends_ns)


def test_what_is_told_holds_what_a_run_has_saved_on_a_board_that_warms() -> None:
    board = timeline()
    books, looks = trained(board)
    found, true_ratio = books.saving(looks), truly_saved_ratio(board)
    assert isinstance(found, KnownSaving)
    error = found.saving.saved_energy_ratio - true_ratio
    assert abs(error) <= found.saved_energy_ci90_ratio <= 0.01
    # Looks that had seen all of the warming would be taken as they are: too little is saved by them.
    seen = [replace(pair, warmed_w2=(pair.power_w2,) * len(TIME_CONSTANTS_S)) for pair in looks.pairs]
    naive = books.saving(replace(looks, pairs=tuple(seen)))
    assert isinstance(naive, KnownSaving)
    assert naive.saving.saved_energy_ratio - true_ratio < -2 * naive.saved_energy_ci90_ratio < -0.002
