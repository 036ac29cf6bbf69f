"""Tests of the policy service."""
