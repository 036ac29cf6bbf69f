"""What a training process uses: one line around its loop, and no privilege.

from publishers import publish_iterations
for batch in publish_iterations(loader, job="resnet50"):
    ...
"""

from publishers.training.publisher import Publisher, publish_iterations

__all__ = ["Publisher", "publish_iterations"]
