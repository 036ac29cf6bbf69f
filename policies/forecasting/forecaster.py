"""The forecaster: refits when due, learns from what has come true, forecasts.

Everything is in the state and the arguments. A look at the same history as a moment ago costs next to nothing: what the
models say is kept until the history changes.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.forecasting import blend
from policies.forecasting.forecast import MAX_LAG_S, Forecast, Values
from policies.forecasting.memory import Memory, looked
from policies.forecasting.record import Snapshot, wants_snapshot, with_snapshot
from policies.forecasting.series import Past, past_of, sample
from policies.vocabulary.signal import ESTIMATED, Signal

NO_STEP_RATIO: Final = 1e-6
"""So small a part of a step is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForecasterState:
    """What is remembered between two forecasts: at most one fit, a day of forecasts and four weeks of errors."""

    memory: Memory | None = None

    @property
    def fitted_s(self) -> float | None:
        """Return where the history ended that the models were fitted to, or None where there are none [Unix s]."""
        return None if self.memory is None else self.memory.fitted_s


def begin() -> ForecasterState:
    """Return a state that has seen nothing."""
    return ForecasterState()


def advance(
    state: ForecasterState, *, history: Signal, given: Signal | None, now_s: float, horizon_s: float = 86_400.0
) -> tuple[ForecasterState, Forecast | None]:
    """Return the state after a look at the history, and the forecast, or None where nothing can be said.

    Refits when due (daily, or when the series, its step or its length call for other models), learns from what has come
    true since, and forecasts from where the last known value ceases to hold. It may be called at any cadence, with a
    history whose old values were revised.

    Args:
        state: what `begin` or the last call returned.
        history: what is known; what starts after `now_s` is not looked at, and what is older than 60 days neither.
        given: what the provider itself forecasts, or None.
        now_s: Unix time [s].
        horizon_s: how far from now the forecast reaches [s].
    """
    past = past_of(history, now_s)
    if past is None or now_s - past.end_s > MAX_LAG_S:
        return state, None
    reach_steps = (now_s + horizon_s - past.end_s) / past.step_s
    if reach_steps < NO_STEP_RATIO:  # the last value holds as long as is asked
        return state, None
    n_leads = math.ceil(reach_steps - NO_STEP_RATIO)
    memory = looked(state.memory, history, past, n_leads)
    stops_s = past.end_s + np.arange(1, n_leads + 1, dtype=np.float64) * past.step_s
    told = _told(history, given, stops_s - past.step_s / 2)
    values, band, is_given = _estimated(memory, told)
    if wants_snapshot(memory.record, past.end_s):
        memory = _noted(memory, past, told, values, band)
    signal = replace(
        history,
        source=f"{memory.models.name}+{given.source}" if given is not None and is_given else memory.models.name,
        starts_s=stops_s - past.step_s,
        values=values,
        ends_s=now_s + horizon_s,
        issued_at_s=now_s,
        estimated=ESTIMATED,
    )
    return ForecasterState(memory=memory), Forecast(signal=signal, lower=band[0], upper=band[1])


def _told(history: Signal, given: Signal | None, times_s: NDArray[np.float64]) -> Values:
    """Return what the provider forecasts for times, shape (n,); NaN where it does not, or speaks of something else."""
    if given is None or (given.kind, given.unit) != (history.kind, history.unit):
        return np.full(len(times_s), np.nan)
    return sample(given, times_s)


def _estimated(memory: Memory, told: Values) -> tuple[Values, Values, bool]:
    """Return the estimate (n,), its band (2, n), and whether the provider's forecast takes part in it."""
    leads, n = memory.models.leads, len(told)
    guide = _at_each(memory.guide, leads, n)
    own = blend.mixed(guide[:-3], memory.outlook[:, :n])
    is_told = ~np.isnan(told)
    theirs = np.where(is_told, guide[-3], 0.0)
    values = (1 - theirs) * own + theirs * np.where(is_told, told, 0.0)
    values = np.clip(values, memory.bounds[0], memory.bounds[1])
    low, high = values + guide[-2:]
    if memory.is_carbon:
        low = np.maximum(low, 0.0)
    return values, np.stack([np.minimum(low, values), np.maximum(high, values)]), bool((theirs > 0).any())


def _noted(memory: Memory, past: Past, told: Values, values: Values, band: Values) -> Memory:
    """Return the memory with this forecast, to be compared with what comes true; a lead beyond it has no value."""
    leads = memory.models.leads
    reached = leads <= len(values)
    index = np.minimum(leads, len(values)) - 1
    rows = np.where(reached, np.vstack([memory.outlook[:, index], told[index], values[index], band[:, index]]), np.nan)
    snapshot = Snapshot(members=rows[:-4], given=rows[-4], issued=rows[-3], band=rows[-2:])
    return replace(memory, record=with_snapshot(memory.record, past.end_s, snapshot))


def _at_each(values: Values, leads: NDArray[np.int_], n: int) -> Values:
    """Return values (m, c) at the leads as lines between them at each of the leads 1 to n, shape (m, n)."""
    if len(leads) == n == leads[-1]:
        return values
    position = np.interp(np.arange(1, n + 1), leads, np.arange(len(leads)))
    below = position.astype(np.int_)
    above = np.minimum(below + 1, len(leads) - 1)
    part = position - below
    return np.asarray(values[:, below] * (1 - part) + values[:, above] * part, dtype=np.float64)
