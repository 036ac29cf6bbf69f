"""Tests: one run id and the true rank, however a training is launched, and each training one run."""
