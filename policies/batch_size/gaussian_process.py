"""Gaussian processes over the logarithm of the batch size, and mixtures of them: the algebra of the posterior."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.batch_size.study import Floats

FLAT_VARIANCE: Final = 100.0
"""Of the common level: nothing is known of it beforehand, a factor of e¹⁰ either way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian:
    """A normal distribution of n values: mean, shape (n,), and covariance, shape (n, n)."""

    mean: Floats
    covariance: Floats

    @property
    def variance(self) -> Floats:
        """Return the variance of each value, shape (n,), above 0."""
        return np.maximum(np.diag(self.covariance), 1e-12)

    def plus(self, other: "Gaussian") -> "Gaussian":
        """Return the distribution of the sum with another, independent one."""
        return Gaussian(mean=self.mean + other.mean, covariance=self.covariance + other.covariance)

    def seen_once(self, index: int, noise_variance: float) -> "Gaussian":
        """Return what is left to learn once a value is measured, whose outcome is not known yet: the mean stays."""
        column = self.covariance[:, index]
        learned = np.outer(column, column) / (self.covariance[index, index] + noise_variance)
        return Gaussian(mean=self.mean, covariance=self.covariance - learned)


def kernel(octaves: Floats, *, sd_log: float, length_octaves: float, nugget_log: float) -> Floats:
    """Return the covariance of a smooth function of log2 of the batch size and an unknown level, shape (n, n).

    The smooth part is a Matérn process of order 3/2; the nugget is what each batch size has of its own.

    Args:
        octaves: log2 of the batch sizes, shape (n,).
        sd_log: the standard deviation of the smooth part, of a logarithm.
        length_octaves: how far it reaches.
        nugget_log: the standard deviation of each batch size's own part, of a logarithm.
    """
    distance = np.sqrt(3.0) * np.abs(octaves[:, None] - octaves[None, :]) / length_octaves
    smooth = sd_log**2 * (1.0 + distance) * np.exp(-distance)
    own: Floats = FLAT_VARIANCE + smooth + nugget_log**2 * np.eye(len(octaves))
    return own


def regress(
    means: Floats, covariance: Floats, seen: NDArray[np.intp], values: Floats, noise_variance: Floats
) -> Gaussian:
    """Return the posterior of a function whose prior is one of several means, each as likely, with one covariance.

    The mixture is told by its first two moments.

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


def normal_pdf(values: Floats) -> Floats:
    """Return the standard normal density."""
    density: Floats = np.exp(-(values**2) / 2) / math.sqrt(2 * math.pi)
    return density


def normal_cdf(values: Floats) -> Floats:
    """Return the standard normal distribution function."""
    return np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in values])
