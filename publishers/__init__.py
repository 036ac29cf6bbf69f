"""What travels on the bus, and the training side; training code imports its names from `gridchase`."""

from publishers.training.publish_iterations import publish_iterations
from publishers.training.publisher import Publisher

__all__ = ["Publisher", "publish_iterations"]
