"""Weighted ridge regression: small, closed, and indifferent to columns that do not vary."""

import numpy as np

from policies.forecasting.forecast import Values

TINY = 1e-7
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
    total = weights.sum()
    if not total > 0:
        return np.zeros(features.shape[1] + 1)
    shares = weights / total
    feature_means, target_mean = shares @ features, shares @ targets
    centred = features - feature_means
    weighted = centred * shares[:, None]
    products, cross = weighted.T @ centred, weighted.T @ (targets - target_mean)
    scales = np.sqrt(np.diag(products))
    floor = 1e-9 * (np.abs(feature_means) + scales.max(initial=0.0)) + 1e-300
    scales = np.where(scales > floor, scales, np.inf)
    matrix = products / np.outer(scales, scales)
    matrix[np.diag_indices_from(matrix)] = 1.0 + penalty_ratio + TINY
    coefficients = np.linalg.solve(matrix, cross / scales) / scales
    return np.concatenate(([target_mean - feature_means @ coefficients], coefficients))
