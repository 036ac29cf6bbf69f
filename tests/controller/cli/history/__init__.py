"""Tests of the verbs of the history."""
