"""The messages of the bus: records, topics and their encoding."""
