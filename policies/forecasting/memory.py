"""What a forecaster remembers of one series, and how that changes with what it sees."""

from dataclasses import dataclass, replace
from typing import Final
from zlib import crc32

import numpy as np

from policies.forecasting import bands, blend
from policies.forecasting.backtest import backtest
from policies.forecasting.bands import Bands
from policies.forecasting.blend import Skill
from policies.forecasting.forecast import Values
from policies.forecasting.models import MIN_DAYS, N_MEMBERS, Models, fit, outlook, rung_of, widened
from policies.forecasting.record import Record, empty_record, settle
from policies.forecasting.series import DAY_S, HOUR_S, Past, Series, series_of
from policies.vocabulary.signal import Signal

FITTED_DAYS: Final = 60
RECENT_DAYS: Final = 30
"""What a forecast looks at between two fits: the days of the climatology, and two whose anomaly is known."""
REFIT_S: Final = DAY_S
SHORT_REFIT_S: Final = HOUR_S
"""While the history is short, much of it is new after an hour."""
REWOUND_S: Final = 2 * DAY_S
"""A history that ends so much earlier than before is another one."""

Key = tuple[str, str, str, float]
Seen = tuple[int, float, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Memory:
    """What is remembered of one series; nothing in it grows.

    Attributes:
        key: kind, zone, unit and step: what is learned from one series says nothing about another.
        seen: what tells one history from another: number, end, and checksum of the values.
        models: what was fitted.
        fitted_s: where the history ended then [Unix s].
        bounds: the least and the greatest that is forecast, shape (2,).
        outlook: what each model says from the end of the history on, shape (m, n_leads).
        record: the past forecasts that have not come true.
        skill: the errors of the models and of the given forecast.
        bands: the errors of the forecast.
        guide: what follows from both at each lead, shape (m + 3, c): the weights of the models, that of the given
            forecast against ours, and the lower and the upper end of the band relative to the estimate.
    """

    key: Key
    seen: Seen
    models: Models
    fitted_s: float
    bounds: Values
    outlook: Values
    record: Record
    skill: Skill
    bands: Bands
    guide: Values

    @property
    def is_carbon(self) -> bool:
        """Return whether values are above 0, so that ratios of them have a meaning."""
        return _is_carbon(self.key)

    @property
    def step_s(self) -> float:
        """Return the step [s]."""
        return self.key[-1]


def looked(memory: Memory | None, history: Signal, past: Past, n_leads: int) -> Memory:
    """Return what is remembered after a look at a history: learned, refitted where due, with an outlook.

    Args:
        memory: what was remembered, or None.
        history: the history.
        past: what is known of it now.
        n_leads: how many steps the outlook has at least.
    """
    key = (history.kind, history.zone, history.unit, past.step_s)
    seen = _seen(history, past)
    if memory is not None and (memory.key != key or past.end_s < memory.seen[1] - REWOUND_S):
        memory = None
    if memory is not None and memory.seen == seen and memory.outlook.shape[1] >= n_leads:
        return memory
    memory, series = _fitted(memory, history, past, key, seen)
    # A look within the same step needs one lead more; who looks again at the same history even later will do so on.
    n_spare = round(HOUR_S / past.step_s) if memory.seen == seen and memory.outlook.shape[1] else 1
    bounds = widened(memory.models.bounds, series, is_carbon=memory.is_carbon)
    said = np.asarray(np.clip(outlook(memory.models, series, n_leads + n_spare), *bounds), dtype=np.float64)
    return _learned(replace(memory, seen=seen, bounds=bounds, outlook=said), history, past)


def _is_carbon(key: Key) -> bool:
    return key[0] in {"average", "marginal"}


def _seen(history: Signal, past: Past) -> Seen:
    return past.n_known, past.end_s, crc32(history.values[: past.n_known].data)


def _fitted(memory: Memory | None, history: Signal, past: Past, key: Key, seen: Seen) -> tuple[Memory, Series]:
    """Return what is remembered, with models that are fresh, and the series to forecast from."""
    if memory is not None:
        period_s = REFIT_S if memory.models.name == "regression" else SHORT_REFIT_S
        series = series_of(history, past, max_days=RECENT_DAYS)
        has_shrunk = len(series.values) < MIN_DAYS * series.day and memory.models.recursion is not None
        if 0 <= past.end_s - memory.fitted_s < period_s - 1 and not has_shrunk:
            return memory, series
    series = series_of(history, past, max_days=FITTED_DAYS)
    models = fit(series, rung=rung_of(series), is_carbon=_is_carbon(key))
    if memory is not None and memory.models.name == models.name:
        return replace(memory, models=models, fitted_s=past.end_s), series
    skill, errors = backtest(series, models, is_carbon=_is_carbon(key))
    if memory is not None:  # the models have changed, what the provider's forecast is worth has not
        skill = replace(skill, rivals=memory.skill.rivals, n_given=memory.skill.n_given)
        errors = bands.fuller(memory.bands, errors)
    fresh = Memory(
        key=key,
        seen=seen,
        models=models,
        fitted_s=past.end_s,
        bounds=models.bounds,
        outlook=np.empty((N_MEMBERS, 0)),
        record=memory.record if memory is not None else empty_record(models.leads, series.step_s, N_MEMBERS),
        skill=skill,
        bands=errors,
        guide=_guide(models, series.step_s, skill, errors),
    )
    return fresh, series


def _learned(memory: Memory, history: Signal, past: Past) -> Memory:
    """Return what is remembered after the errors of what has come true."""
    record, outcomes = settle(memory.record, history, past.end_s)
    if not outcomes:
        return memory
    skill, errors = memory.skill, memory.bands
    for outcome in outcomes:
        skill, errors = blend.learned(skill, outcome), bands.learned(errors, outcome)
    guide = _guide(memory.models, memory.step_s, skill, errors)
    return replace(memory, record=record, skill=skill, bands=errors, guide=guide)


def _guide(models: Models, step_s: float, skill: Skill, errors: Bands) -> Values:
    """Return the weights of the models, the share of the given forecast, and the ends of the band, shape (m + 3, c)."""
    share = blend.given_weights(skill, models.leads.astype(np.float64) * step_s)
    return np.vstack([blend.weights_of(skill), share, bands.offsets(errors)])
