"""Tests of the grid signal."""
