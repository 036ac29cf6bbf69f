"""The HTTP API of the policy service."""
