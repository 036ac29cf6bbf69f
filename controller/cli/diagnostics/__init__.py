"""What is wrong, and where: the verbs `check`, for a node, and `doctor`, for the environment of a training."""
