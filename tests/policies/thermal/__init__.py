"""Tests of how boards warm."""
