"""Tests of `publishers.training.run`."""
