"""Fakes of the providers' APIs, as real servers."""
