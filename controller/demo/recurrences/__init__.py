"""The demo of a recurring job, which learns its batch size."""
