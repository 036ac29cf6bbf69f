"""Tests of the history of a site."""
