"""Tests of what slack is used for."""
