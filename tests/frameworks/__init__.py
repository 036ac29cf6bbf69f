"""Real trainings with the real frameworks, in processes of their own, against a real broker: `make test-frameworks`."""
