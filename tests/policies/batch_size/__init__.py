"""Tests of the batch sizes of recurring jobs."""
