"""The providers, one file each."""
