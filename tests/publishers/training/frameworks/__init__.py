"""Tests of what needs no framework to be there."""
