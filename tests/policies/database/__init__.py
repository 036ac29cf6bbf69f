"""Tests of the databases."""
