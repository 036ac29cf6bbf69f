"""A training run under the real controller on simulated time, as fast as it can be computed."""
