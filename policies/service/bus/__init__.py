"""The policy service on the bus: answers requests, follows runs, and keeps results until they are stored."""
