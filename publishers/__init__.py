"""What travels on the bus, and the training side; training code imports its names from `gridchase`."""

from publishers.training.publisher import Publisher, publish_iterations

__all__ = ["Publisher", "publish_iterations"]
