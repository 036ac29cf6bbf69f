"""Tests of the pages of jobs."""
