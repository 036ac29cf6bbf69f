"""Tests of the energy history."""
