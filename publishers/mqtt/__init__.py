"""Mqtt."""
