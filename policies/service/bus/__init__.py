"""The policy service on the bus: questions answered, runs followed, results kept until they are stored."""
