"""Tests of a run as a trial of a batch size."""
