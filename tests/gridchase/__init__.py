"""Tests of `gridchase`."""
