"""Tests of the providers, one file each."""
