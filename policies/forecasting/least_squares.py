"""Weighted ridge regression: small, closed, many at once, and indifferent to columns that do not vary."""

from typing import Final

import numpy as np

from policies.forecasting.forecast import Values

TINY_RATIO: Final = 1e-7
"""Added to the diagonal of the correlations: columns may repeat each other."""


def solve(features: Values, targets: Values, weights: Values, *, penalty_ratio: float) -> Values:
    """Return the intercept and the coefficients of a weighted ridge regression, shape (1 + p,).

    It minimises Σ w (y - b₀ - x·b)² / Σ w + penalty Σ b_k² var(x_k): each coefficient is shrunk in the unit of its
    own feature, the intercept is free.

    Args:
        features: shape (n, p).
        targets: shape (n,).
        weights: shape (n,), at least 0; where all are 0, so is the result.
        penalty_ratio: the penalty, in shares of a feature's own variance.
    """
    columns = np.column_stack([np.ones(len(features)), features])
    weighted = columns * (weights / (weights.sum() or 1.0))[:, None]
    solved = _solved((weighted.T @ columns)[None], (weighted.T @ targets)[None, :, None], penalty_ratio)
    return np.asarray(solved[0], dtype=np.float64)


def solve_each(features: Values, own: Values, targets: Values, weights: Values, *, penalty_ratio: float) -> Values:
    """Return the coefficients of c such regressions, which share their features but one, shape (c, 1 + p + 1).

    All sums are products of few matrices, which is what makes a refit cheap.

    Args:
        features: shape (n, p).
        own: the last feature of each, shape (n, c).
        targets: shape (n, c).
        weights: shape (n, c), at least 0; where all of one are 0, so is its result.
        penalty_ratio: as in `solve`.
    """
    columns = np.column_stack([np.ones(len(features)), features])
    n_shared, n_each = columns.shape[1], targets.shape[1]
    totals = weights.sum(axis=0)
    shares = weights / np.where(totals > 0, totals, 1.0)
    upper = np.triu_indices(n_shared)
    products = (columns[:, upper[0]] * columns[:, upper[1]]).T @ shares
    moments = np.empty((n_each, n_shared + 1, n_shared + 1))
    moments[:, upper[0], upper[1]] = moments[:, upper[1], upper[0]] = products.T
    moments[:, -1, :-1] = moments[:, :-1, -1] = (columns.T @ (shares * own)).T
    moments[:, -1, -1] = (shares * own**2).sum(axis=0)
    shared = (columns.T @ (shares * targets)).T
    cross = np.concatenate((shared, (shares * own * targets).sum(axis=0)[:, None]), axis=1)
    return _solved(moments, cross[..., None], penalty_ratio)


def _solved(moments: Values, cross: Values, penalty_ratio: float) -> Values:
    """Return the coefficients, of 1 first, from weighted means of products (c, k, k) and with targets (c, k, 1)."""
    means, target_means = moments[:, 0, 1:], cross[:, 0, 0]
    squares = np.diagonal(moments, axis1=1, axis2=2)[:, 1:]
    products = moments[:, 1:, 1:] - means[:, :, None] * means[:, None, :]
    scales = np.sqrt(np.maximum(np.diagonal(products, axis1=1, axis2=2), 0.0))
    scales = np.where(scales > 1e-7 * np.sqrt(squares) + 1e-150, scales, np.inf)  # below it, rounding
    matrix = products / scales[:, :, None] / scales[:, None, :]
    diagonal = np.arange(matrix.shape[1])
    matrix[:, diagonal, diagonal] = 1.0 + penalty_ratio + TINY_RATIO
    right = (cross[:, 1:, 0] - means * target_means[:, None]) / scales
    coefficients = np.linalg.solve(matrix, right[..., None])[..., 0] / scales
    intercepts = target_means - (means * coefficients).sum(axis=1)
    return np.concatenate((intercepts[:, None], coefficients), axis=1)
