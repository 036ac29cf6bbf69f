"""Tests of the vocabulary of the policies."""
