"""The training side's API: one line around the training loop; it needs no privilege.

from publishers import publish_iterations
for batch in publish_iterations(loader, job="resnet50"):
    ...
"""

from publishers.training.publisher import Publisher, publish_iterations

__all__ = ["Publisher", "publish_iterations"]
