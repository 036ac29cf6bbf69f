"""Gaussian processes over the logarithm of the batch size, and mixtures of them."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.vocabulary.units import Values

FLAT_VARIANCE: Final = 100.0
"""The variance of the common level: a flat prior, a factor of e¹⁰ either way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian:
    """A normal distribution of n values: mean, shape (n,), and covariance, shape (n, n)."""

    mean: Values
    covariance: Values

    @property
    def variance(self) -> Values:
        """Return the variance of each value, shape (n,), above 0."""
        return np.maximum(np.diag(self.covariance), 1e-12)

    def plus(self, other: "Gaussian") -> "Gaussian":
        """Return the distribution of the sum with another, independent one."""
        return Gaussian(mean=self.mean + other.mean, covariance=self.covariance + other.covariance)

    def after_measuring(self, index: int, noise_variance: float) -> "Gaussian":
        """Return the distribution expected after a measurement of one value, its outcome unknown: the mean stays."""
        column = self.covariance[:, index]
        learned = np.outer(column, column) / (self.covariance[index, index] + noise_variance)
        return Gaussian(mean=self.mean, covariance=self.covariance - learned)


def kernel(octaves: Values, *, sd_log: float, length_octaves: float, nugget_log: float) -> Values:
    """Return the covariance of a smooth function of log2 of the batch size with an unknown level, shape (n, n).

    The smooth part is a Matérn process of order 3/2; the nugget is independent for each batch size.

    Args:
        octaves: log2 of the batch sizes, shape (n,).
        sd_log: the standard deviation of the smooth part, of a logarithm.
        length_octaves: its length scale.
        nugget_log: the standard deviation of the nugget, of a logarithm.
    """
    distance = np.sqrt(3.0) * np.abs(octaves[:, None] - octaves[None, :]) / length_octaves
    smooth = sd_log**2 * (1.0 + distance) * np.exp(-distance)
    own: Values = FLAT_VARIANCE + smooth + nugget_log**2 * np.eye(len(octaves))
    return own


def regress(
    means: Values, covariance: Values, seen: NDArray[np.intp], values: Values, noise_variance: Values
) -> Gaussian:
    """Return the posterior of a function whose prior mean is one of several, equally likely, with one covariance.

    The mixture is given by its first two moments.

    Args:
        means: the prior means, shape (n_means, n).
        covariance: the prior covariance, shape (n, n).
        seen: the indices of the measured values, shape (k,).
        values: the measurements, shape (k,).
        noise_variance: of each measurement, shape (k,).
    """
    level = float(np.mean(values) - np.mean(means[:, seen]))  # so that the unit of the values does not matter
    means = means + level
    cross = covariance[:, seen]
    factor = np.linalg.cholesky(covariance[np.ix_(seen, seen)] + np.diag(noise_variance))
    whitened = np.linalg.solve(factor, np.column_stack([cross.T, (values - means[:, seen]).T]))
    gains, residuals = whitened[:, : len(covariance)], whitened[:, len(covariance) :]
    log_weights = -0.5 * np.sum(residuals**2, axis=0)
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    each = means + (gains.T @ residuals).T
    mean = weights @ each
    spread = each - mean
    return Gaussian(mean=mean, covariance=covariance - gains.T @ gains + (spread * weights[:, None]).T @ spread)


def normal_pdf(values: Values) -> Values:
    """Return the standard normal density."""
    density: Values = np.exp(-(values**2) / 2) / math.sqrt(2 * math.pi)
    return density


def normal_cdf(values: Values) -> Values:
    """Return the standard normal distribution function."""
    return np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in values])
