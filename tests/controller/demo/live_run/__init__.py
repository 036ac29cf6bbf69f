"""Tests of runs under the controller on simulated time."""
