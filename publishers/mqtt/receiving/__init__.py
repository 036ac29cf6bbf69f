"""What arrives: who sends too much is cut off, the rest is handed to its handlers."""
