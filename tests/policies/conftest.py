"""Hypothesis without deadlines: how long an example takes on a shared machine says nothing about it."""

from hypothesis import settings

settings.register_profile("gridchase", deadline=None)
settings.load_profile("gridchase")
