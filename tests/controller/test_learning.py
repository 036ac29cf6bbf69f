"""What is learnt of a curve and stored: the next run, which has the same stalls, finds its job on it."""

from pathlib import Path

import numpy as np
import pytest

from controller.config import ProfilerConfig
from controller.curves import as_lived
from controller.learning import Learning, Planned, Profiling, measured_in
from controller.profile_files import ProfileKey
from controller.profile_store import ProfileStore
from controller.run_account import Slice
from policies.profile import PowerProfile
from policies.profiling import ProfilerSettings, wanted_power_limit_w
from tests.controller.messages import ns

KEY = ProfileKey(job="j", gpu_model="Fake 300", n_gpus=1, world_size=1, batch_size=64)
TOP_W = 300.0
ITERATION_S = 0.05
STALL_S = 0.15
"""One iteration in fifty takes so much longer: 6 % of the time at the highest limit."""


def live(learning: Learning, *, duration_s: float, seed: int) -> None:
    """Train for a time, at the limit that the first pass wants or else at the highest."""
    dice, begin_s, n_iterations = np.random.default_rng(seed), 0.0, 0
    while begin_s < duration_s:
        state = learning.state
        wanted_w = wanted_power_limit_w(state.sweep) if isinstance(state, Profiling) else None
        power_limit_w = wanted_w or TOP_W
        times_s = []
        for _ in range(10):
            n_iterations += 1
            steady_s = ITERATION_S * (TOP_W / power_limit_w) ** 0.3 * float(np.exp(dice.normal(0, 0.01)))
            times_s.append(steady_s + (STALL_S if n_iterations % 50 == 0 else 0.0))
        piece = Slice(
            begin_ns=ns(begin_s),
            end_ns=ns(begin_s + sum(times_s)),
            active=True,
            n_iterations=len(times_s),
            energy_j=0.9 * power_limit_w * sum(times_s),
            iteration_times_s=tuple(times_s),
        )
        learning.observe(piece, enforced_power_limit_w=power_limit_w)
        begin_s += piece.duration_s


def begun(known: PowerProfile | None) -> Learning:
    """Return the learning of a run that has just begun."""
    learning = Learning()
    config = ProfilerConfig()
    settings = ProfilerSettings(
        prior_power_limit_w=TOP_W,
        floor_power_limit_w=100.0,
        n_gpus=1,
        settle_s=config.settle_s,
        window_s=config.window_s,
        step_ratio=config.step_ratio,
        tolerance_ratio=config.tolerance_ratio,
        block_s=config.block_s,
        n_blocks=config.n_blocks,
    )
    learning.begin(settings, known, None)
    return learning


@pytest.mark.parametrize("seed", range(3))
def test_a_job_with_stalls_stays_on_the_curve_that_its_last_run_stored(tmp_path: Path, seed: int) -> None:
    first = begun(None)
    live(first, duration_s=600.0, seed=seed)
    measured = measured_in(first.state)
    assert measured is not None
    with ProfileStore(tmp_path) as store:
        store.save(KEY, measured)
    with ProfileStore(tmp_path) as store:
        known = store.load(KEY)
    assert known is not None
    again = begun(known.exact)
    assert isinstance(again.state, Planned)
    live(again, duration_s=600.0, seed=seed + 100)
    assert (again.n_left, again.take_left()) == (0, None)


def test_the_curve_that_is_published_has_the_stalls_that_the_stored_one_has_not() -> None:
    learning = begun(None)
    live(learning, duration_s=600.0, seed=1)
    measured, published = measured_in(learning.state), learning.profile
    assert measured is not None
    assert published == as_lived(measured)
    assert measured.fastest.iterations_per_s == pytest.approx(1 / ITERATION_S, rel=0.01)
    assert published.fastest.iterations_per_s == pytest.approx(50 / (50 * ITERATION_S + STALL_S), rel=0.015)
