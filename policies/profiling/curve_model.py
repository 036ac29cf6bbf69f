"""A Gaussian process over the measured points: the most probable power curve, and random samples of it.

The logarithms of rate and power, over the logarithm of the limit, are a straight line with a flat prior, a smooth bend,
and a little roughness; each point is an observation, as noisy as its interval says. So neighbouring limits inform each
other, and the best of forty limits is not simply the luckiest one. Everything is relative: other units of energy or
time change nothing but units.

Pairs of rates that were measured one after the other (`policies.profiling.paired_looks`) are observations of
differences: what a limit is relative to the top one is known much better than either of them.

Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006: equations 2.23, 2.24 and 4.17.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple

import numpy as np

from policies.profiling.measurement import NORMAL_95, WINDOW_CV_RATIO
from policies.profiling.paired_looks import Looks
from policies.profiling.settings import GRID_W
from policies.vocabulary.limit_ratios import LimitRatios
from policies.vocabulary.profile import SAME_POINT_W, PowerProfile, ProfilePoint
from policies.vocabulary.units import Values

LINE_LOG: Final = 10.0
"""The standard deviation of the line's level and of its slope in an e-fold of the limit: practically flat."""
BEND_LOG: Final = 0.2
"""The standard deviation of the bend: a rate that is flat at the top follows the power at the bottom, and falls by
twice as much within …"""
BEND_LENGTH_LOG: Final = 0.4
"""… this part of an e-fold, a third of the range of limits that GPUs allow."""
ROUGH_LOG: Final = 0.01
"""The standard deviation of the roughness: kernels differ in the limit at which they slow down."""
ROUGH_LENGTH_LOG: Final = 0.1
LEAST_ERROR_RATIO: Final = 1e-4
"""The least error of a point; it keeps the equations solvable."""

EXPLORATION_RATIO: Final = 0.7
"""Samples have this share of the posterior standard deviation, half of its variance: the whole of it explores limits
for longer than that repays in a run of some thousand iterations."""
PRIOR_PAIRS: Final = 4.0
"""The errors of pairs are what they are said to be, as if so many had shown it."""
WEIGHTS: Final = (1.0, 0.75, 0.5, 0.25)
"""Weights of energy against time at the power of the highest limit, for any price of either."""
UNKNOWN_POINT: Final = ProfilePoint(power_limit_w=0.0, power_w=0.0, iterations_per_s=0.0)
"""Of a limit that was not measured."""


@lru_cache(maxsize=16)
def posterior_curve(profile: PowerProfile) -> PowerProfile:
    """Return the posterior mean of the curve, at the measured limits and every 5 W between them.

    Points between have `n = 0`; all have intervals. It need not be monotone: fit it with `fit_curve`.
    """
    if len(profile.points) == 1:
        return profile
    limits_w = _limits_w(profile)
    log_powers, power_covariance, log_rates, rate_covariance = _posteriors(profile, limits_w)
    variances = [covariance.diagonal() for covariance in (power_covariance, rate_covariance)]
    return _curve(profile, limits_w, (log_powers, log_rates), np.sqrt(np.maximum(variances, LEAST_ERROR_RATIO**2)))


def sampled_curve(profile: PowerProfile, rng: np.random.Generator) -> PowerProfile:
    """Return a random sample of the posterior of the curve, for Thompson sampling.

    A lone point moves by 0.7 of its standard error. Fit it with `fit_curve`, as `posterior_curve`.
    """
    limits_w = _limits_w(profile)
    log_powers, power_covariance, log_rates, rate_covariance = _posteriors(profile, limits_w)
    sampled = _sample(log_powers, power_covariance, rng), _sample(log_rates, rate_covariance, rng)
    return _curve(profile, limits_w, sampled, None)


class _Differences(NamedTuple):
    """Observed differences between the values at two limits each, both of shape (n,); errors as deviations."""

    logs: Values
    errors: Values


class _Prior(NamedTuple):
    """Covariances before anything is measured: of what is observed, of that and what is wanted, of what is wanted."""

    observed: Values
    cross: Values
    wanted: Values


@dataclass(frozen=True, slots=True)
class RatioEstimate:
    """Ratios of limits to the top one, and what their errors have in common.

    Attributes:
        ratios: one for each limit that was asked for, in that order.
        rate_covariance: the covariance of their rate ratios, shape (n, n).
    """

    ratios: tuple[LimitRatios, ...]
    rate_covariance: Values


def estimate_ratios(profile: PowerProfile, looks: Looks, limits_w: Sequence[float]) -> RatioEstimate:
    """Return what each of some limits is relative to the top of the curve: its rate, and its energy per iteration.

    The curve counts as points that are known to 1 % at best, whatever it says: they were measured at other times, and
    what a job wanders by does not average out. Limits that nobody has looked at follow from their neighbours.

    Args:
        profile: the measured points; the highest limit is the top.
        looks: what was seen in pairs.
        limits_w: the limits [W], at least one. At the top, and above, all ratios are 1.
    """
    top_w = profile.fastest.power_limit_w
    points, wanted = profile.points, np.log([*(min(limit_w, top_w) for limit_w in limits_w), top_w])
    at = np.log(profile.power_limits_w)
    rate_errors = np.array([_error_ratio(point.iterations_per_s_ci, point.iterations_per_s) for point in points])
    power_errors = np.array([_error_ratio(point.power_ci_w, point.power_w) for point in points])
    rate_errors, power_errors = np.maximum(rate_errors, WINDOW_CV_RATIO), np.maximum(power_errors, WINDOW_CV_RATIO)
    energies_j = profile.power_w / profile.iterations_per_s
    prior = _prior(at, wanted, looks)
    rates = _posterior(prior, np.log(profile.iterations_per_s), rate_errors, _differences(looks, "rate"))
    energies = _posterior(prior, np.log(energies_j), np.hypot(rate_errors, power_errors), _differences(looks, "energy"))
    rate_ratios, rate_covariance = _relative_to_last(*rates)
    energy_ratios, energy_covariance = _relative_to_last(-energies[0], energies[1])
    rate_sds, energy_sds = (
        np.sqrt(np.maximum(covariance.diagonal(), 0.0)) for covariance in (rate_covariance, energy_covariance)
    )
    ratios = tuple(
        LimitRatios(
            power_limit_w=limit_w,
            rate_ratio=float(rate_ratios[i]),
            rate_error_ratio=float(rate_sds[i]),
            energy_ratio=float(energy_ratios[i]),
            energy_error_ratio=float(energy_sds[i]),
            n_looks=looks.n_between(limit_w, top_w) if limit_w < top_w else 0,
        )
        for i, limit_w in enumerate(limits_w)
    )
    return RatioEstimate(ratios, rate_covariance)


def _relative_to_last(logs: Values, covariance: Values) -> tuple[Values, Values]:
    """Return the ratios of all values but the last to that one, and their covariance, from those of the logarithms."""
    ratios = np.exp(logs[:-1] - logs[-1])
    shared = covariance[:-1, :-1] - covariance[:-1, -1:] - covariance[-1:, :-1] + covariance[-1, -1]
    return ratios, np.asarray(ratios[:, None] * shared * ratios, dtype=np.float64)


def _differences(looks: Looks, what: Literal["rate", "energy"]) -> _Differences:
    """Return the differences that pairs show; their errors are scaled to how much pairs of the same limits scatter."""
    pools = [getattr(pair, what) for pair in looks.pairs]
    n_degrees = sum(pool.n - 1 for pool in pools)
    variance = (PRIOR_PAIRS + sum(pool.square for pool in pools)) / (PRIOR_PAIRS + n_degrees)
    return _Differences(
        logs=np.array([pool.mean_log for pool in pools]),
        errors=np.sqrt(variance / np.array([pool.precision for pool in pools])),
    )


def _limits_w(profile: PowerProfile) -> Values:
    """Return the measured limits and the multiples of 5 W between them, ascending [W]."""
    measured_w = profile.power_limits_w
    grid_w = np.arange(np.ceil(measured_w[0] / GRID_W), measured_w[-1] // GRID_W + 1) * GRID_W
    apart_w = np.abs(grid_w[:, None] - measured_w).min(axis=1, initial=np.inf)
    return np.sort(np.concatenate((grid_w[apart_w > SAME_POINT_W], measured_w)))


def _posteriors(profile: PowerProfile, limits_w: Values) -> tuple[Values, Values, Values, Values]:
    """Return posterior mean and covariance of the log of power, and those of the rate, at some limits."""
    points = profile.points
    power_errors = np.array([_error_ratio(point.power_ci_w, point.power_w) for point in points])
    rate_errors = np.array([_error_ratio(point.iterations_per_s_ci, point.iterations_per_s) for point in points])
    prior = _prior(np.log(profile.power_limits_w), np.log(limits_w))
    return (
        *_posterior(prior, np.log(profile.power_w), power_errors),
        *_posterior(prior, np.log(profile.iterations_per_s), rate_errors),
    )


def _prior(at: Values, wanted: Values, looks: Looks | None = None) -> _Prior:
    """Return the covariances of points at some log limits, of the pairs of looks, and of the values at `wanted`."""
    centre, n, nodes, select = at.mean(), len(at), at, np.eye(len(at))
    if looks is not None and looks.pairs:
        n_pairs = len(looks.pairs)
        lower, upper = (np.log([getattr(pair, end) for pair in looks.pairs]) for end in ("lower_w", "upper_w"))
        nodes = np.concatenate((at, lower, upper))
        pairs = np.hstack((np.zeros((n_pairs, n)), np.eye(n_pairs), -np.eye(n_pairs)))
        select = np.vstack((np.hstack((select, np.zeros((n, 2 * n_pairs)))), pairs))
    nodes, wanted = nodes - centre, wanted - centre
    return _Prior(
        observed=select @ _covariance(nodes, nodes) @ select.T,
        cross=select @ _covariance(nodes, wanted),
        wanted=_covariance(wanted, wanted),
    )


def _posterior(
    prior: _Prior, values: Values, errors: Values, differences: _Differences | None = None
) -> tuple[Values, Values]:
    """Return the mean (n,) and the covariance (n, n) of what is wanted, after values with errors, and differences."""
    middle = values.mean()
    seen = values - middle
    if differences is not None and len(differences.logs):
        seen, errors = np.concatenate((seen, differences.logs)), np.concatenate((errors, differences.errors))
    gain = np.linalg.solve(prior.observed + np.diag(errors**2), prior.cross)
    return middle + gain.T @ seen, prior.wanted - gain.T @ prior.cross


def _covariance(one: Values, other: Values) -> Values:
    """Return the covariance of the curve at two sets of log limits before anything is measured, shape (n, m)."""
    distance = np.abs(one[:, None] - other)
    bend, rough = np.sqrt(5) * distance / BEND_LENGTH_LOG, np.sqrt(3) * distance / ROUGH_LENGTH_LOG
    line = LINE_LOG**2 * (1 + one[:, None] * other)
    bends = BEND_LOG**2 * (1 + bend + bend**2 / 3) * np.exp(-bend)
    return np.asarray(line + bends + ROUGH_LOG**2 * (1 + rough) * np.exp(-rough), dtype=np.float64)


def _sample(mean: Values, covariance: Values, rng: np.random.Generator) -> Values:
    """Return a sample of a normal distribution; a tiny diagonal keeps a singular one solvable."""
    factor = np.linalg.cholesky(covariance + LEAST_ERROR_RATIO**2 * np.eye(len(mean)))
    return np.asarray(mean + EXPLORATION_RATIO * factor @ rng.standard_normal(len(mean)))


def _curve(profile: PowerProfile, limits_w: Values, logs: tuple[Values, Values], errors: Values | None) -> PowerProfile:
    """Return the curve at some limits; measured points keep how long they were measured.

    Args:
        profile: the measured points.
        limits_w: the limits, ascending [W].
        logs: the logarithms of powers and of rates there.
        errors: their standard deviations, shape (2, n_limits); None: measured points keep their intervals.
    """
    measured = {point.power_limit_w: point for point in profile.points}
    powers_w, rates_per_s = (np.exp(each).tolist() for each in logs)
    ci_ratios = [(None, None)] * len(limits_w) if errors is None else (NORMAL_95 * errors).T.tolist()
    points = []
    for limit_w, power_w, rate_per_s, (power_ci, rate_ci) in zip(
        limits_w.tolist(), powers_w, rates_per_s, ci_ratios, strict=True
    ):
        known = measured.get(limit_w, UNKNOWN_POINT)
        points.append(
            ProfilePoint(
                power_limit_w=limit_w,
                power_w=power_w,
                iterations_per_s=rate_per_s,
                power_ci_w=known.power_ci_w if power_ci is None else power_w * power_ci,
                iterations_per_s_ci=known.iterations_per_s_ci if rate_ci is None else rate_per_s * rate_ci,
                n=known.n,
                active_s=known.active_s,
            )
        )
    return PowerProfile(tuple(points))


def _error_ratio(ci: float | None, value: float) -> float:
    return WINDOW_CV_RATIO if ci is None else max(ci / NORMAL_95 / value, LEAST_ERROR_RATIO)


@lru_cache(maxsize=16)
def max_gain_ratio(profile: PowerProfile) -> float:
    """Return the most that the cost of a plan may still fall if the curve were known exactly (95 %).

    For several weights of energy against time, the best limit is compared with every other one; errors that two limits
    share, as in the level of the whole curve, cancel.
    """
    if len(profile.points) == 1:
        return 0.0
    limits_w = _limits_w(profile)
    log_powers, power_covariance, log_rates, rate_covariance = _posteriors(profile, limits_w)
    gains = []
    for weight in WEIGHTS:
        energy_powers, time_power = weight * np.exp(log_powers), (1 - weight) * np.exp(log_powers[-1])
        log_costs = np.log(energy_powers + time_power) - log_rates
        shares = energy_powers / (energy_powers + time_power)
        covariance = shares[:, None] * power_covariance * shares + rate_covariance
        best, variances = int(np.argmin(log_costs)), covariance.diagonal()
        differences = np.maximum(variances + variances[best] - 2 * covariance[best], 0.0)
        gains.append(float((log_costs[best] - log_costs + NORMAL_95 * np.sqrt(differences)).max()))
    return max(gains)
