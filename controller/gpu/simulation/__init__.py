"""Simulated GPUs that follow measured curves."""
