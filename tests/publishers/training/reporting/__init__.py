"""Tests of what a training is told of its run."""
