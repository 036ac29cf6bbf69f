"""Tests of the providers: fakes of their APIs, the contract that all keep, and the details of each."""
