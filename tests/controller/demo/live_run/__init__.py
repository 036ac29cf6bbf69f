"""Tests of runs that the controller plays on simulated time."""
