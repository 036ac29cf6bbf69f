"""For any history: no error, a finite forecast within its bounds and its interval, and a state that does not grow."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from policies.forecasting import ForecasterState, advance
from policies.vocabulary.signal import Signal, SignalKind
from policies.vocabulary.units import DAY_S, HOUR_S
from tests.policies.forecasting.grids import START_S, grid, until, weather
from tests.policies.forecasting.state_size import size

STEPS_S = (60.0, 300.0, 600.0, 900.0, 1_800.0, 3_600.0, 7_200.0)


SHAPES = ("weather", "constant", "jumps", "tiny", "zeros", "huge")


def shaped(shape: str, n: int, step_s: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return values of every kind that a grid may have, and of some that it may not."""
    shapes = {
        "weather": weather(n * step_s / DAY_S + 1, step_s=step_s)[:n],
        "constant": np.full(n, 250.0),
        "jumps": rng.choice([1.0, 400.0], size=n),
        "tiny": 1e-9 * rng.uniform(size=n),
        "zeros": np.zeros(n),
        "huge": 1e9 * rng.standard_cauchy(size=n),
    }
    return shapes[shape]


@st.composite
def histories(draw: st.DrawFn) -> Signal:
    """Return histories with gaps, jitter, jumps, ties and all kinds of values."""
    step_s = draw(st.sampled_from(STEPS_S))
    n = draw(st.integers(1, min(1_200, round(40 * DAY_S / step_s))))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    kind: SignalKind = draw(st.sampled_from(("average", "marginal", "price")))
    values = shaped(draw(st.sampled_from(SHAPES)), n, step_s, rng)
    if kind == "price":
        values = values - draw(st.sampled_from((0.0, 300.0)))
    values = np.where(rng.uniform(size=n) < draw(st.sampled_from((0.0, 0.1, 0.9))), np.nan, values)
    for _ in range(draw(st.integers(0, 3))):
        begins = draw(st.integers(0, n))
        values[begins : begins + draw(st.integers(0, n))] = np.nan
    jitter_s = draw(st.sampled_from((0.0, 0.4))) * step_s * rng.uniform(size=n)
    starts_s = START_S + step_s * np.arange(n) + jitter_s
    return Signal(
        kind=kind,
        zone="DE",
        source="any",
        unit="EUR/kWh" if kind == "price" else "g/kWh",
        starts_s=starts_s,
        values=values,
        ends_s=float(starts_s[-1]) + step_s,
        issued_at_s=START_S,
    )


def check(
    state: ForecasterState | None, history: Signal, provided: Signal | None, now_s: float
) -> ForecasterState | None:
    state, made = advance(state, history=history, provider_forecast=provided, now_s=now_s)
    if made is None:
        return state
    values, seen = made.signal.values, history.values[(history.starts_s <= now_s) & ~np.isnan(history.values)]
    assert np.isfinite(values).all()
    assert state is not None
    least, greatest = state.bounds
    members = state.members[~np.isnan(state.members)]
    assert ((least <= members) & (members <= greatest)).all()
    has_band = ~np.isnan(made.lower)
    assert (made.lower[has_band] <= values[has_band]).all()
    assert (values[has_band] <= made.upper[has_band]).all()
    if history.kind != "price":
        assert (values > 0).all()
        assert (values >= min(0.7 * seen.min(), values.max()) - 1e-9).all()
        assert (values <= max(1.3 * seen.max(), 1e-3) + 1e-9).all()
        assert (made.lower[has_band] >= 0).all()
    assert made.signal.ends_s == now_s + DAY_S
    return state


@settings(max_examples=150)
@given(histories(), st.data())
def test_any_history_can_be_forecast(history: Signal, data: st.DataObject) -> None:
    state: ForecasterState | None = None
    span_s = history.ends_s - START_S
    times_s = sorted(START_S + data.draw(st.floats(0, 1.2)) * span_s for _ in range(data.draw(st.integers(1, 5))))
    for now_s in times_s:
        provided = history.between(now_s, now_s + DAY_S) if data.draw(st.booleans()) else None
        state = check(state, until(history, now_s), provided, now_s)


@settings(max_examples=50)
@given(histories(), histories(), st.data())
def test_any_history_may_follow_any_other(one: Signal, other: Signal, data: st.DataObject) -> None:
    state: ForecasterState | None = None
    for history in (one, other, one):
        now_s = data.draw(st.floats(START_S, START_S + 50 * DAY_S))
        state = check(state, history, None, now_s)


@settings(max_examples=15)
@given(st.integers(0, 10_000), st.floats(0, 0.5))
def test_old_values_may_be_revised_at_any_time(seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    state: ForecasterState | None = None
    values = weather(25, seed=seed)
    for hour in range(20 * 24, 24 * 25, 5):
        revised = np.where(rng.uniform(size=hour) < share, np.nan, values[:hour] * rng.uniform(0.9, 1.1, size=hour))
        state = check(state, grid(revised), None, START_S + hour * HOUR_S)


def test_the_state_does_not_grow_in_a_year() -> None:
    whole = grid(np.tile(weather(73), 5))
    state, sizes = None, []
    for hour in range(60 * 24, 365 * 24, 5 * 24 + 1):
        now_s = START_S + hour * HOUR_S
        state, made = advance(state, history=until(whole, now_s), provider_forecast=None, now_s=now_s)
        assert made is not None
        assert state is not None
        sizes.append(size(state))
    assert max(sizes[1:]) == min(sizes[1:])
    assert max(sizes) < 1_000_000
